"""How the kernels of features are launched on an example."""

from __future__ import annotations

from functools import partial
from typing import Any

from . import dpfp_backward, dpfp_forward, favor_backward, favor_forward, normalised


def _features(query: Any, key: Any, value: Any, **how: Any) -> None:
    favor = query, key[0, 0]
    phi = favor_forward(*favor, **how)
    favor_backward(phi, *favor, phi, projection_needs_gradient=True, **how)
    dpfp_backward(dpfp_forward(query, **how), query, **how)


def _normalised(query: Any, key: Any, value: Any) -> None:
    options: dict[str, Any] = {"feature_map": "elu", "normalize": "sum"}
    phi, inverse = normalised.forward(query, **options)
    normalised.backward(phi, query, phi, inverse, **options)


HOSTS = {"features": _features, "normalised": _normalised}
MORE = {"features_plain": partial(_features, version="plain")}
