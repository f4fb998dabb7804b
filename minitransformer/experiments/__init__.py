"""The sources' figures and tables: each is run, recorded and drawn by a file of its own.

`minitransformer experiment NAME` runs one, `minitransformer report NAME` renders its record.
"""

SCALES = ("smoke", "default", "full")
"""Seconds, for the tests; minutes a model on two cores; the source's own size, for a GPU."""
