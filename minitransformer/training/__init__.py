"""Training: the loop, the folder of a run, and checkpoints that survive being killed."""

from ..settings import Recipe
from .checkpoint import CheckpointError
from .loop import Interruption, Trainer, TrainingError, resume, train
from .runs import Run, Standing

__all__ = [
    "CheckpointError",
    "Interruption",
    "Recipe",
    "Run",
    "Standing",
    "Trainer",
    "TrainingError",
    "resume",
    "train",
]
