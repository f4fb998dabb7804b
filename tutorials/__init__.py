"""The lessons of the course; `minitransformer course` finds them here."""
