"""Bugs that a test plants into the ranks: each must make some case differ from one process."""

from typing import Any, NamedTuple

import numpy as np

from minitransformer.parallel import attention, collectives, softmax
from minitransformer.parallel.collectives import PRODUCT, WINDOW
from minitransformer.parallel.slices import around
from minitransformer.parallel.world import World

scan, cut_of, part = World.scan, attention.cut_of, softmax.Ring._part


class Bug(NamedTuple):
    """In which attention it must be found, and an attribute with what it is replaced by."""

    attention: str
    of: Any
    name: str
    wrong: Any

    def plant(self) -> None:
        """Replaces it, for the rest of this process."""
        setattr(self.of, self.name, self.wrong)


def forgets_other_ranks(ctx: Any, gradient: Any) -> Any:
    """The backward of `Rows`, but for what other ranks send."""
    world, held, wanted = ctx.saved
    one, (begin, end) = [held[world.rank]] * world.size, held[world.rank]
    full = np.zeros((*gradient.shape[:2], end - begin, *gradient.shape[3:]), gradient.dtype)
    for s, i, j in collectives._common(wanted[world.rank], one[:1]):
        assert s == 0
        a, b = held[world.rank][0], wanted[world.rank][0]
        full[:, :, i - a : j - a] = gradient[:, :, i - b : j - b]
    return full


def one_further(ring: Any, source: int) -> Any:
    """What is seen of a part of the ring, and one key more."""
    seen = part(ring, source)
    return None if seen is None else seen._replace(query_offset=seen.query_offset + 1)


BUGS = {
    "states_come_from_behind": Bug(
        "linear", World, "scan",
        lambda self, arrays, then, reverse=False: scan(self, arrays, then, not reverse),
    ),
    "gradients_go_forward": Bug(
        "linear", World, "scan",
        lambda self, arrays, then, reverse=False: scan(self, arrays, then),
    ),
    "packed_sequences_leak": Bug(
        "linear", attention, "cut_of", lambda *arguments: cut_of(*arguments)._replace(fresh=False)
    ),
    "a_boundary_does_not_stop_states": Bug(
        "linear", attention, "cut_of", lambda *arguments: cut_of(*arguments)._replace(passes=True)
    ),
    "products_in_the_wrong_order": Bug(
        "delta", attention, "PRODUCT",
        PRODUCT._replace(join=lambda one, two: PRODUCT.join(two, one)),
    ),
    "windows_do_not_move": Bug(
        "relative", attention, "WINDOW", WINDOW._replace(through=lambda a, s: s)
    ),
    "window_gradients_do_not_move": Bug(
        "relative", attention, "WINDOW", WINDOW._replace(back=lambda a, h: h)
    ),
    "halo_is_too_narrow": Bug(
        "local", softmax, "around",
        lambda queries, keys, before, behind: around(queries, keys, max(before - 1, 0), behind),
    ),
    "lengths_count_from_the_slice": Bug(
        "linear", attention, "own_part",
        lambda lengths, span: None if lengths is None else lengths.clip(0, span[1] - span[0]),
    ),
    "gradients_of_rows_stay_away": Bug(
        "local", collectives.Rows, "backward", staticmethod(forgets_other_ranks)
    ),
    "ring_forgets_the_offset": Bug("softmax", softmax.Ring, "_part", one_further),
    "totals_of_gradients_are_not_summed": Bug(
        "linear", collectives.Total, "backward",
        staticmethod(lambda ctx, *gradients: tuple(ctx.filled(*gradients))),
    ),
}  # fmt: skip
