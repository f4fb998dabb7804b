"""One model on many machines: ranks that MPI starts, each with a share of the work."""

from .world import Sent, World

__all__ = ["Sent", "World"]
