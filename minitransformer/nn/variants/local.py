"""Local attention as a variant."""

from typing import Any

from ...attention import local_attention
from ...tensor import Tensor
from ..variant import AttentionVariant, register_attention


@register_attention("local")
class LocalAttention(AttentionVariant):
    """The softmax of the scores near by: cost and, without a stride, state do not grow with length.

    Across to another sequence, query i looks around place i of that sequence. That fits two
    sequences that run in step, as in copying; a larger window, or global keys, do for others.

    Args:
        window: how many keys a query sees on either side of its place; layers pass on more.
        stride, num_global, global_queries: see `local_attention`.
        scale: factor of the scores; 1 / sqrt(E) by default.
        max_distance: as in `SoftmaxAttention`.

    Source: Child et al. 2019; Beltagy et al. 2020.
    """

    has_dropout = True

    def __init__(
        self,
        window: int = 16,
        stride: int | None = None,
        num_global: int = 0,
        global_queries: int = 0,
        scale: float | None = None,
        max_distance: int | None = None,
    ) -> None:
        self.max_distance = max_distance
        self.options: dict[str, Any] = {
            "window": window,
            "stride": stride,
            "num_global": num_global,
            "global_queries": global_queries,
            "scale": scale,
        }

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **keywords: Any) -> Tensor:
        """Attend, see `AttentionVariant.forward`; `dropout` is the fraction of weights to drop."""
        options = {**self.options, "relative_embedding": self.embedding, **keywords}
        return local_attention(query, key, value, **options)

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Attend, see `AttentionVariant.step`; then forget what no later query sees.

        First keys that stay come nearer by that; all farther than `max_distance` are alike.
        """
        output, state = super().step(query, key, value, state)
        window, few = self.options["window"], self.options["stride"] is None
        if few and not self.options["global_queries"] and (self.max_distance or 0) <= window:
            state.forget(self.options["num_global"], window)
        return output, state

    def extra_repr(self) -> str:
        """Return the window, and the options that are not their defaults."""
        options = {**self.options, "max_distance": self.max_distance}
        chosen = {name: x for name, x in options.items() if x or name == "window"}
        return ", ".join(f"{name}={x!r}" for name, x in chosen.items())
