"""How the kernels of linear attention, by any of its algorithms, are launched on an example."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..algorithms import ALGORITHMS, backward, forward, step
from ..guards import divided
from ..visible import Visible


def _linear(
    query: Any, key: Any, value: Any, *, algorithm: str, feature_map: str = "elu",
    guard: str = "clamp", version: str = "fast",
) -> None:  # fmt: skip
    inputs, visible = (query, key, value), Visible(causal=algorithm != "linear")
    of_token: dict[str, Any] = {"feature_map": feature_map, "guard": guard}
    options: dict[str, Any] = {"algorithm": algorithm, "version": version, **of_token}
    output, denominator, state = forward(*inputs, visible, **options)
    backward(output, state, *inputs, output, denominator, visible, **options)
    divided(output, denominator, guard=guard, eps=None)
    if state is not None:
        q, k, v = (x[:, :, 0] for x in inputs)
        step(q, k, v, state, **of_token)


HOSTS = {algorithm: partial(_linear, algorithm=algorithm) for algorithm in ALGORITHMS}

# Of the feature maps, softplus is the longest; of the guards, "signed".
OTHER = {"feature_map": "softplus", "guard": "signed"}
MORE = {
    f"{algorithm}_{name}": partial(host, **options)
    for algorithm, host in HOSTS.items()
    for name, options in {"softplus": OTHER, "plain": {"version": "plain"}}.items()
}
