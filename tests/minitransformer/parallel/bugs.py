"""Bugs that a test plants into the ranks: each must make some case differ from one process."""

from collections.abc import Callable
from typing import Any

import numpy as np

from minitransformer.parallel import attention, collectives, slices, softmax
from minitransformer.parallel.world import World


def _states_come_from_behind() -> None:
    scan = World.scan
    World.scan = lambda self, arrays, then, reverse=False: scan(self, arrays, then, not reverse)


def _gradients_go_forward() -> None:
    scan = World.scan
    World.scan = lambda self, arrays, then, reverse=False: scan(self, arrays, then)


def _packed_sequences_leak() -> None:
    cut_of = attention.cut_of

    def leaking(*args: Any, **options: Any) -> Any:
        return cut_of(*args, **options)._replace(fresh=False)

    attention.cut_of = leaking


def _a_boundary_does_not_stop_states() -> None:
    cut_of = attention.cut_of

    def passing(*args: Any, **options: Any) -> Any:
        return cut_of(*args, **options)._replace(passes=True)

    attention.cut_of = passing


def _products_in_the_wrong_order() -> None:
    join = collectives.PRODUCT.join
    attention.PRODUCT = collectives.PRODUCT._replace(join=lambda one, two: join(two, one))


def _windows_do_not_move() -> None:
    attention.WINDOW = collectives.WINDOW._replace(through=lambda a, s: s)


def _window_gradients_do_not_move() -> None:
    attention.WINDOW = collectives.WINDOW._replace(back=lambda a, h: h)


def _halo_is_too_narrow() -> None:
    def narrow(queries: Any, keys: Any, before: int, behind: int) -> Any:
        return slices.around(queries, keys, max(before - 1, 0), behind)

    softmax.around = narrow


def _lengths_count_from_the_slice() -> None:
    for module in (attention, softmax):
        module.own_part = lambda lengths, span: (
            None if lengths is None else lengths.clip(0, span[1] - span[0])
        )


def _gradients_of_rows_stay_away() -> None:
    def forgets(ctx: Any, gradient: Any) -> Any:
        world, held, wanted = ctx.saved
        one, (begin, end) = [held[world.rank]] * world.size, held[world.rank]
        full = np.zeros((*gradient.shape[:2], end - begin, *gradient.shape[3:]), gradient.dtype)
        for s, i, j in collectives._common(wanted[world.rank], one[:1]):
            assert s == 0
            a, b = held[world.rank][0], wanted[world.rank][0]
            full[:, :, i - a : j - a] = gradient[:, :, i - b : j - b]
        return full

    collectives.Rows.backward = staticmethod(forgets)


def _ring_forgets_the_offset() -> None:
    part = softmax.Ring._part

    def shifted(self: Any, source: int) -> Any:
        seen = part(self, source)
        return None if seen is None else seen._replace(query_offset=seen.query_offset + 1)

    softmax.Ring._part = shifted


def _totals_of_gradients_are_not_summed() -> None:
    collectives.Total.backward = staticmethod(lambda ctx, *gs: tuple(ctx.filled(*gs)))


BUGS: dict[str, Callable[[], None]] = {
    name.strip("_"): bug
    for name, bug in list(globals().items())
    if name.startswith("_") and getattr(bug, "__module__", "") == __name__
}
WHERE = {
    "states_come_from_behind": "linear",
    "gradients_go_forward": "linear",
    "packed_sequences_leak": "linear",
    "a_boundary_does_not_stop_states": "linear",
    "products_in_the_wrong_order": "delta",
    "windows_do_not_move": "relative",
    "window_gradients_do_not_move": "relative",
    "halo_is_too_narrow": "local",
    "lengths_count_from_the_slice": "linear",
    "gradients_of_rows_stay_away": "local",
    "ring_forgets_the_offset": "softmax",
    "totals_of_gradients_are_not_summed": "linear",
}
"""In which attention each of them must be found."""
