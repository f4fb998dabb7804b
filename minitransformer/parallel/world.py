"""Ranks that compute together: an MPI communicator, and how much went over it.

MPI takes memory. NumPy arrays have it at hand. Those of CuPy go to MPI as they are where it is
CUDA-aware, that is where it was built to read a GPU's memory; else they are staged: copied to the
host, sent, and copied back. `World.describe` says which.
"""

from __future__ import annotations

import ctypes
import importlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ..device import Array, array_module, device_of
from ..errors import UserError

Arrays = Sequence[Array]
Then = Callable[[list[Array], list[Array]], None]
Back = Callable[[Array], Array]
INSTALL = 'pip install "minitransformer[mpi]"'


@cache
def mpi() -> Any:
    """Return the module `mpi4py.MPI`; its first import starts MPI.

    Raises:
        UserError: mpi4py is missing, or finds no MPI; the message says what to install.
    """
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        problem = str(error).splitlines()[0]
        raise UserError(f"parallel needs mpi4py and an MPI ({problem}): {INSTALL}") from None


@cache
def cuda_aware() -> bool:
    """Return whether this MPI reads a GPU's memory; MPICH and Open MPI both answer the question."""
    library = ctypes.CDLL(mpi().__file__)
    try:
        return bool(library.MPIX_Query_cuda_support())
    except AttributeError:
        return False


class Sent(NamedTuple):
    """What one kind of call handed to MPI on this rank.

    Attributes:
        calls: how many calls there were.
        bytes: the sizes of what they sent, added up; what MPI makes of a call is not in it.
    """

    calls: int = 0
    bytes: int = 0


class World:
    """The ranks of a communicator.

    Every method that sends is *collective*, like MPI's own: all ranks must call it, in one order.

    Args:
        comm: an `mpi4py.MPI.Comm`; None takes all ranks that `mpiexec` started, one where it did
            not.

    Attributes:
        comm: the communicator.
        rank: who this process is, from 0.
        size: P, how many ranks there are.
        sent: what was sent, by the name of the MPI call.
        seconds: how long this rank was in MPI, waiting for others included.

    Raises:
        UserError: mpi4py is missing, or finds no MPI.
    """

    def __init__(self, comm: Any = None) -> None:
        self.comm = mpi().COMM_WORLD if comm is None else comm
        self.rank: int = self.comm.Get_rank()
        self.size: int = self.comm.Get_size()
        self.seconds = 0.0
        self._calls: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    @property
    def sent(self) -> dict[str, Sent]:
        """What this rank has sent, by the name of the MPI call."""
        return {name: Sent(self._calls[name], self._bytes[name]) for name in self._calls}

    @property
    def bytes(self) -> int:
        """How many bytes this rank has sent in all."""
        return self._bytes.total()

    @property
    def messages(self) -> int:
        """How many calls that send this rank has made in all."""
        return self._calls.total()

    def forget(self) -> None:
        """Count from zero again."""
        self._calls.clear()
        self._bytes.clear()
        self.seconds = 0.0

    @property
    def library(self) -> str:
        """Name and version of the MPI that joins the ranks."""
        first = mpi().Get_library_version().splitlines()[0].strip("\0")
        return " ".join(first.replace("Version:", "").split(",")[0].split())

    def describe(self) -> str:
        """Return in a line how many ranks there are, by which MPI, and how arrays of a GPU go."""
        way = "directly: it is CUDA-aware" if cuda_aware() else "through the host: it knows no CUDA"
        ranks = "1 rank" if self.size == 1 else f"{self.size} ranks"
        return f"{ranks} by {self.library}; arrays of a GPU go {way}"

    def split(self, color: int, key: int = 0) -> World:
        """Return the world of the ranks that gave this color, in the order of their keys."""
        return World(self.comm.Split(color, key))

    # -- Sending -----------------------------------------------------------------------------

    def sum(self, array: Array) -> Array:
        """Return the sum of all ranks' arrays, which have one shape and dtype."""
        return self.start_sum(array)()

    def start_sum(self, array: Array) -> Callable[[], Array]:
        """Begin such a sum; what comes back waits for its end, and returns it.

        The array must not be changed in between.
        """
        buffer, back = ready(array)
        total = array_module(buffer).empty_like(buffer)
        with self.sending("Iallreduce", buffer.nbytes):
            request = self.comm.Iallreduce(buffer, total)  # it keeps both alive

        def wait() -> Array:
            with self.waiting():
                request.Wait()
            return back(total)

        return wait

    def gather(self, array: Array) -> Array:
        """Return (P, ...): the arrays of all ranks, which have one shape and dtype."""
        buffer, back = ready(array)
        everyone = array_module(buffer).empty((self.size, *buffer.shape), buffer.dtype)
        with self.sending("Allgather", buffer.nbytes):
            self.comm.Allgather(buffer, everyone)
        return back(everyone)

    def sum_to_each(self, parts: Array) -> Array:
        """Return the sum of what all ranks have for this one, in row `rank` of their (P, ...)."""
        buffer, back = ready(parts)
        own = array_module(buffer).empty(buffer.shape[1:], buffer.dtype)
        with self.sending("Reduce_scatter_block", buffer.nbytes):
            self.comm.Reduce_scatter_block(buffer, own)
        return back(own)

    def start_exchange(
        self, parts: dict[int, Array], expected: dict[int, Array]
    ) -> Callable[[], dict[int, Array]]:
        """Begin to send arrays to other ranks and to receive some.

        Nobody but the two has to call; what one sends, the other must expect.

        Args:
            parts: what to send, by rank.
            expected: arrays like those that come, by rank.

        Returns:
            What waits for the end, and returns what came, by rank.
        """
        outgoing = {rank: ready(array)[0] for rank, array in parts.items()}
        incoming = {rank: room(array) for rank, array in expected.items()}
        requests = [self.comm.Irecv(buffer, rank) for rank, (buffer, _) in incoming.items()]
        for rank, buffer in outgoing.items():
            with self.sending("Isend", buffer.nbytes):
                requests.append(self.comm.Isend(buffer, rank))

        def wait() -> dict[int, Array]:
            with self.waiting():
                mpi().Request.Waitall(requests)
            return {rank: back(buffer) for rank, (buffer, back) in incoming.items()}

        return wait

    def scan(self, arrays: Arrays, then: Then, reverse: bool = False) -> list[Array] | None:
        """Return what the ranks before this one make together; None on the first.

        Args:
            arrays: what this rank adds, NumPy arrays; all ranks have the same shapes and dtypes.
            then: an associative function of two such lists, the first from earlier ranks, that
                writes to the second what both make together.
            reverse: whether the last rank comes first.
        """
        sizes = [x.nbytes for x in arrays]
        ends = np.cumsum(sizes)

        def views(memory: Any) -> list[Array]:
            flat = np.frombuffer(memory, np.uint8)
            parts = zip(arrays, ends - sizes, ends, strict=True)
            return [flat[i:j].view(x.dtype).reshape(x.shape) for x, i, j in parts]

        own = np.concatenate([np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in arrays])
        before = np.empty_like(own)
        comm = self._reversed if reverse else self.comm
        # All bytes are one element: MPI may cut a message between elements.
        packet = mpi().BYTE.Create_contiguous(own.nbytes).Commit()
        combine = mpi().Op.Create(lambda a, b, _: then(views(a), views(b)), commute=False)
        with self.sending("Exscan", own.nbytes):
            comm.Exscan([own, 1, packet], [before, 1, packet], combine)
        combine.Free()
        packet.Free()
        return None if comm.Get_rank() == 0 else views(before)

    @cached_property
    def _reversed(self) -> Any:
        return self.comm.Split(0, -self.rank)

    # -- Counting ----------------------------------------------------------------------------

    @contextmanager
    def sending(self, name: str, count: int) -> Iterator[None]:
        """Count a call that sends so many bytes, and its time."""
        self._calls[name] += 1
        self._bytes[name] += count
        with self.waiting():
            yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time in MPI."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds += perf_counter() - start


def ready(array: Array) -> tuple[Array, Back]:
    """Return an array as MPI can read it, and the way back to where it came from."""
    xp = array_module(array)
    if not _reads(array):
        return xp.asnumpy(array, order="C"), xp.asarray
    buffer = xp.ascontiguousarray(array)
    if xp is not np:
        xp.cuda.get_current_stream().synchronize()  # MPI does not wait for kernels
    return buffer, lambda result: result


def room(like: Array) -> tuple[Array, Back]:
    """Return memory that MPI can write to, for an array of this shape, and the way back."""
    xp = array_module(like)
    if not _reads(like):
        return np.empty(like.shape, like.dtype), xp.asarray
    return xp.empty(like.shape, like.dtype), lambda result: result


def _reads(array: Array) -> bool:
    """Return whether MPI reads the memory that an array is in."""
    return device_of(array) == "cpu" or cuda_aware()
