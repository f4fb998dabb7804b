"""Data parallelism: each rank has the whole model and some of the batch's examples.

The loss L of a batch is the mean of the losses l_a of its n answers. Rank r has the answers A_r,
those of its examples, and divides by n as well, so that losses and gradients of all ranks add up:

    L = sum_r L_r        L_r = 1/n sum_(a in A_r) l_a        (1)
    dL/dp = sum_r dL_r/dp                                    (2)

A mean of the ranks' means would be another loss, where one has longer sequences than another. A
rank without an example, where they are fewer than ranks, adds nothing to the sums. Answers may as
well be those of a slice of the share's sequences, where a row of ranks has one share (`grid`).

Sums go over the network while backward still runs. It goes through a model from the last layer to
the first, so the last parameters' gradients are final first. They are laid side by side in
*buckets*: a few large messages, not one for each parameter. A bucket's sum begins once its last
gradient is final, and is waited for after backward. All ranks begin the sums in one order, that of
the buckets, as MPI asks of them.

Source: Li et al. 2020, "PyTorch Distributed", section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from .. import random
from ..device import Array, array_module
from ..tasks import Divisible, share
from ..tensor import Tensor
from .grid import Grid
from .layers import along_sequence
from .world import World

BUCKET = 1 << 20  # bytes


def differentiate(
    grid: Grid, task: Divisible, model: Any, batch: Any, count: int
) -> tuple[float, float]:
    """Leave in each parameter's `grad` the gradient of a batch's loss, on every rank the same.

    Args:
        grid: The ranks; each of them calls this.
        task: Says how wrong the model is.
        model: On every rank the same.
        batch: The whole batch, on every rank the same.
        count: How many examples are in it.

    Returns:
        The loss of the batch, and the share of answers that are right.

    Raises:
        UserError: A layer of the model cannot run on slices.
    """
    gradients = GradientSum(grid.world, model.parameters())
    part = share(count, grid.data.rank, grid.data.size)
    told = np.zeros(2)
    if part.start < part.stop:
        mine = task.take(batch, part)
        sliced: AbstractContextManager[None] = nullcontext()
        if grid.sequence.size > 1:
            mine = task.cut(mine, grid.sequence.rank, grid.sequence.size)
            sliced = along_sequence(model, grid.sequence)
        with random.part_of((part, count)), sliced:
            loss, right = task.loss(model, mine)
            loss.backward(finished=gradients.add)
        told[:] = loss.item(), right
    gradients.finish()
    loss_of_all, right_of_all = grid.world.sum(told).tolist()  # (1)
    return loss_of_all, right_of_all


class GradientSum:
    """The gradients of all ranks, added up; used once.

    Args:
        world: The ranks.
        parameters: Of the model; on every rank the same, in one order.
        most: A bucket of more bytes has one parameter.
    """

    def __init__(self, world: World, parameters: Iterable[Tensor], most: int = BUCKET) -> None:
        self.world = world
        learned = [parameter for parameter in parameters if parameter.requires_grad]
        self.buckets = buckets(learned[::-1], most)
        self._sums: list[Callable[[], Array]] = []  # those that have begun
        self._final: set[int] = set()

    def add(self, parameter: Tensor) -> None:
        """Take note that this rank's gradient of a parameter is final."""
        self._final.add(id(parameter))
        self.world.comm.Iprobe()  # MPI gets on with its sums only when it is called
        for bucket in self.buckets[len(self._sums) :]:
            if not self._final.issuperset(map(id, bucket)):
                break
            self._begin(bucket)

    def finish(self) -> None:
        """Wait for all sums, and leave each in its parameter's `grad`.

        A parameter that no rank has used gets zeros.
        """
        for bucket in self.buckets[len(self._sums) :]:
            self._begin(bucket)
        for bucket, wait in zip(self.buckets, self._sums, strict=True):
            whole, end = wait(), 0
            for parameter in bucket:
                begin, end = end, end + parameter.size
                parameter.grad = Tensor.wrap(whole[begin:end].reshape(parameter.shape))

    def _begin(self, bucket: list[Tensor]) -> None:
        xp = array_module(bucket[0].data)
        gradients = [xp.zeros_like(p.data) if p.grad is None else p.grad.data for p in bucket]
        flat = xp.concatenate([gradient.reshape(-1) for gradient in gradients])
        self._sums.append(self.world.start_sum(flat))  # (2)


def buckets(parameters: Iterable[Tensor], most: int = BUCKET) -> list[list[Tensor]]:
    """Return parameters in buckets of one dtype and of at most so many bytes, or of one parameter.

    >>> found = buckets([Tensor(np.zeros(n)) for n in (3, 1, 9, 2)], most=32)
    >>> [[parameter.size for parameter in bucket] for bucket in found]
    [[3, 1], [9], [2]]
    """
    found: list[list[Tensor]] = []
    room = 0
    for parameter in parameters:
        if not found or parameter.data.nbytes > room or parameter.dtype != found[-1][0].dtype:
            found.append([])
            room = most
        found[-1].append(parameter)
        room -= parameter.data.nbytes
    return found
