"""Data and sequence parallel at once: ranks in rows and columns."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import OptionError
from .world import World


class Grid(NamedTuple):
    """Ranks in rows and columns.

    A row holds the slices of one sequence, and its ranks have one share of the batch. A column
    holds one slice of every share. Gradients are added up over all of the world, because what each
    rank calls its loss is its share of the loss.

    Attributes:
        world: all ranks.
        data: the ranks of this rank's column; `data.rank` says which share of the batch it has.
        sequence: the ranks of its row; `sequence.rank` says which slice it has.
    """

    world: World
    data: World
    sequence: World

    @classmethod
    def of(cls, world: World, data: int = 1, sequence: int = 1) -> Grid:
        """Return the grid of so many shares of the batch, each cut into so many slices.

        Neighbours in the world are neighbours in a row: slices send in every layer, shares once a
        step, and ranks that MPI numbers one after the other are mostly on one machine.

        Raises:
            OptionError: there are more or fewer ranks than that.
        """
        if data < 1 or sequence < 1 or data * sequence != world.size:
            raise OptionError(
                f"a grid of {data} x {sequence} needs {data * sequence} ranks, got {world.size}; "
                f"start it by mpiexec -n {data * sequence}"
            )
        row, column = divmod(world.rank, sequence)
        return cls(world, world.split(column, row), world.split(row, column))
