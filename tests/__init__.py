"""What the two packages promise, checked."""
