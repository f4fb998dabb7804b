"""Training: the loop, the folder of a run, and checkpoints that survive being killed."""

from ..settings import Recipe
from .checkpoint import CheckpointError
from .loop import Interruption, Trainer, TrainingError, resume, train
from .runs import Run

__all__ = [
    "CheckpointError",
    "Interruption",
    "Recipe",
    "Run",
    "Trainer",
    "TrainingError",
    "resume",
    "train",
]
