"""The sources' figures and tables: each is run, recorded and drawn by a file of its own."""
