"""How ranks begin together, decide together, and end together.

What a run does beside its steps, one rank does for all: it makes the folder, writes metrics,
checkpoints and pictures, and talks. What all must do alike, they agree on: that they have the same
versions, options and files, and when to stop.

A rank that fails ends the others. If all fail at one place, such as at a loss that is no number,
rank 0 says so for all. A rank that fails alone says so itself, and aborts. One that is killed can
say nothing: so each works in a child process (`watched`), whose parent tells of its death. Whatever
started the ranks (mpiexec, srun) then ends the others, as it does when any process fails that has
begun with MPI. Of one that ends before, MPICH's mpiexec tells nobody, and who has begun waits: so
one that cannot begin, as by an option that there is not, begins with MPI only to say so (`refuse`).
"""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from minitransformer_kernels.cpu import num_threads

from ..device import to_numpy
from ..errors import UserError
from ..machine import launched
from . import data
from .grid import Grid
from .layers import along_sequence
from .world import World, mpi

Result = TypeVar("Result")
Tell = Callable[[str], object]

_PATIENCE = 2.0  # seconds in which what ends all ranks has ended, or reached, each of them
_HEARD = 0.5  # seconds in which a launcher has read a sentence, which an abort may overtake
_PAUSE = 0.01  # seconds between looks, as MPI's own waiting keeps a core busy
_DONE = "done"
_REMEDY = "MPI adds in another order on each: choose another algorithm of its Iallreduce"


class Alone:
    """One process, which does everything."""

    rank = 0
    size = 1

    def describe(self) -> str:
        """Return in a line who shares the work, and by which MPI."""
        return "1 process"

    def first(self, action: Callable[[], Result]) -> Result:
        """Do something on rank 0, and return on every rank what came of it.

        Raises:
            UserError: What the action raised, on every rank.
        """
        return action()

    def highest(self, number: int) -> int:
        """Return the highest of the ranks' numbers."""
        return number

    def agree(self, facts: Callable[[], Mapping[str, str]], remedy: str) -> None:
        """Go on if all ranks give the same facts.

        Raises:
            UserError: On every rank: the first fact on which two differ, by whom, and the remedy.
        """

    def settle(self, device: str) -> None:
        """Take this rank's part of its machine: of the cores for kernels, or one of the GPUs.

        Who has set `MINITRANSFORMER_NUM_THREADS` has decided.
        """

    def accept(self, model: Any) -> None:
        """Go on if these ranks can share the model's work.

        Raises:
            UserError: One of its layers cannot run on slices.
        """

    def differentiate(self, task: Any, model: Any, batch: Any, count: int) -> tuple[float, float]:
        """Leave in each parameter's `grad` the gradient of the loss of a batch of `count` examples.

        Returns:
            The loss, and the share of answers that are right.
        """
        loss, right = task.loss(model, batch)
        loss.backward()
        return loss.item(), right


ALONE = Alone()


class Together(Alone):
    """Ranks that share every batch among themselves.

    Args:
        grid: The ranks, and what each has of a batch.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid, self.world = grid, grid.world
        self.rank, self.size = grid.world.rank, grid.world.size
        self._checked = False

    def settle(self, device: str) -> None:
        """See `Alone.settle`."""
        here = self.world.comm.Split_type(mpi().COMM_TYPE_SHARED)
        if device == "cuda":
            cupy: Any = importlib.import_module("cupy")
            cupy.cuda.Device(here.rank % cupy.cuda.runtime.getDeviceCount()).use()
        threads = str(max(1, num_threads() // here.size))
        os.environ.setdefault("MINITRANSFORMER_NUM_THREADS", threads)

    def describe(self) -> str:
        """See `Alone.describe`."""
        alone = "; to share the work among 4 ranks, start this by mpiexec -n 4"
        return f"{self.world.describe()}{alone * (self.size == 1)}"

    def first(self, action: Callable[[], Result]) -> Result:
        """See `Alone.first`."""
        done: tuple[Any, UserError | None] = None, None
        if self.rank == 0:
            try:
                done = action(), None
            except UserError as error:
                done = None, error
        result, failure = self.world.comm.bcast(done)
        if failure:
            raise failure
        return result  # type: ignore[no-any-return]

    def highest(self, number: int) -> int:
        """See `Alone.highest`."""
        found = np.array([number])
        with self.world.sending("Allreduce", found.nbytes):
            self.world.comm.Allreduce(mpi().IN_PLACE, found, mpi().MAX)
        return int(found[0])

    def agree(self, facts: Callable[[], Mapping[str, str]], remedy: str) -> None:
        """See `Alone.agree`."""
        everyone = self.world.comm.allgather((platform.node(), dict(facts())))
        first_node, expected = everyone[0]
        for rank, (node, found) in enumerate(everyone):
            for name in expected | found:
                here, there = expected.get(name, "missing"), found.get(name, "missing")
                if here != there:
                    raise UserError(
                        f"the ranks disagree: {name} is {here} on rank 0 ({first_node}), and "
                        f"{there} on rank {rank} ({node}); {remedy}"
                    )

    def accept(self, model: Any) -> None:
        """See `Alone.accept`."""
        if self.grid.sequence.size > 1:
            with along_sequence(model, self.grid.sequence):
                pass

    def differentiate(self, task: Any, model: Any, batch: Any, count: int) -> tuple[float, float]:
        """See `Alone.differentiate`."""
        found = data.differentiate(self.grid, task, model, batch, count)
        if not self._checked:
            # Models that differ in a last digit drift apart, and MPI need not add alike everywhere.
            self.agree(lambda: {"the sum of gradients": _digest(model)}, _REMEDY)
            self._checked = True
        return found


def arranged(world: World, parallel: str) -> Grid:
    """Return the ranks as a grid.

    Args:
        world: All ranks.
        parallel: "data": each has some of a batch's examples; "sequence": each has a slice of every
            sequence; "2x3": two shares of the examples, and each in three slices.

    Raises:
        OptionError: There are not as many ranks as that needs.
        UserError: Several processes were started, of which each is alone.
    """
    started = launched()[1]
    if world.size == 1 < started:
        raise UserError(
            f"{started} processes were started, but each finds itself alone, as if it were started "
            f"by the mpiexec of another MPI; take that of the MPI found here: {world.library}"
        )
    whole = {"data": (world.size, 1), "sequence": (1, world.size)}
    shares, slices = whole.get(parallel) or map(int, parallel.split("x"))
    return Grid.of(world, shares, slices)


@contextmanager
def watched() -> Iterator[Tell]:
    """Go on in a child process; this one waits for its end, and tells of it if the child cannot.

    Signals that are sent to a rank by its launcher reach both; the child obeys them.

    Yields:
        How the child tells its name, for the sentence that the parent may have to say.
    """
    if not hasattr(os, "fork"):
        yield lambda word: None
        return
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child:
        os.close(writing)
        _watch(child, reading)
    os.close(reading)

    def tell(word: str) -> None:
        os.write(writing, f"{word}\n".encode())

    try:
        yield tell
    finally:
        tell(_DONE)


def _watch(child: int, reading: int) -> None:
    """Wait for the end of a rank, and end likewise; if it left without a word, name it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with os.fdopen(reading) as pipe:
        name, *words = pipe.read().splitlines() or [f"process {child} on {platform.node()}"]
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if _DONE not in (name, *words):
        how = f"ended with code {code}, and no word"
        if code >= 0:
            time.sleep(_PATIENCE)  # an abort elsewhere ends this process, too, and tells the cause
        else:
            how = f"was killed by {signal.Signals(-code).name}"
            how += ", as by a system without memory left" * (-code == signal.SIGKILL)
        _say(f"{name} {how}; that ends the others, and --resume goes on from the last checkpoint")
        code = code or 1
    os._exit(code if code >= 0 else 128 - code)


@contextmanager
def together(world: World, tell: Tell, parallel: str = "data") -> Iterator[Together]:
    """Work with the other ranks; whatever ends one of them ends all.

    Args:
        world: All ranks.
        tell: See `watched`.
        parallel: What they share, see `arranged`.

    Raises:
        OptionError: There are not as many ranks as that needs.
        UserError: One of the ranks failed, of those that did the first: only that one raises it.
        SystemExit: Another rank says why.
    """
    comm = world.comm.Dup()  # its messages meet no others
    name = f"rank {world.rank} of {world.size} (process {os.getpid()} on {platform.node()})"
    tell(name)
    failure: BaseException | None = None
    try:
        yield Together(arranged(world, parallel))
    except BaseException as error:
        failure = error
    code = _code(failure) if failure else 1
    speaker = _first_to_fail(comm, failure is not None)
    if speaker is None:
        if not isinstance(failure, UserError | KeyboardInterrupt):
            traceback.print_exception(failure)
        _say(f"{name}: {_in_words(failure)}; that ends the others")
        tell(_DONE)
        time.sleep(_HEARD)
        mpi().COMM_WORLD.Abort(code)
    if speaker == world.size:
        return
    if speaker != world.rank:
        raise SystemExit(code)
    if speaker and isinstance(failure, UserError):
        raise type(failure)(f"{name}: {failure}") from failure
    assert failure is not None
    raise failure


def refuse(problem: str, code: int) -> str:
    """Tell the other ranks, which wait for this one, that it has not even begun.

    Args:
        problem: Why.
        code: With which exit code they end.

    Returns:
        What to say: by the first of them if none could begin.

    Raises:
        SystemExit: Another rank says it.
    """
    try:
        world = World()
    except UserError:
        return problem  # without MPI nobody waits
    try:
        with together(world, lambda word: None):
            failure = UserError(problem)
            failure.exit_code = code
            raise failure
    except UserError as error:
        return str(error)


def _first_to_fail(comm: Any, failed: bool) -> int | None:
    """Wait for all ranks; return the first that failed, or how many there are if none did.

    None: this one has failed, and the others have not come here in time.
    """
    mine = np.array([comm.rank if failed else comm.size])
    lowest = np.empty_like(mine)
    request = comm.Iallreduce(mine, lowest, mpi().MIN)
    end = time.monotonic() + _PATIENCE
    while not request.Test():
        if failed and time.monotonic() > end:
            return None
        time.sleep(_PAUSE)
    return int(lowest[0])


def _digest(model: Any) -> str:
    """Return the start of the SHA-256 of all gradients."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        if parameter.grad is not None:
            digest.update(to_numpy(parameter.grad.data).tobytes())
    return digest.hexdigest()[:12]


def _code(failure: BaseException) -> int:
    if isinstance(failure, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return getattr(failure, "exit_code", 1)


def _in_words(failure: BaseException | None) -> str:
    if isinstance(failure, UserError):
        return str(failure)
    if isinstance(failure, KeyboardInterrupt):
        return "interrupted"
    return f"{type(failure).__name__}: {failure}"


def _say(sentence: str) -> None:
    """Write a line to stderr at once, and in one piece, as others may write there, too."""
    os.write(2, f"minitransformer: {sentence}\n".encode())
