"""The naive truth of the feature maps of rows, with the equations of `features`.

There are no gradients: the tests take them by the complex step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..arrays import Array
from ..linear.reference import phi


def favor(x: ArrayLike, projection: ArrayLike, *, normalised: bool = False) -> Array:
    """FAVOR+ features of rows x (..., E) for a projection w (R, E): (..., R).

    With s = E^(-1/4) they are exp(s w_r.x - s^2 |x|^2 / 2) / sqrt(R), or with `normalised`
    exp(s w_r.x) divided by its sum over r.

    Source: Choromanski et al. 2021, lemma 1.
    """
    x, projection = np.asarray(x), np.asarray(projection)
    scaled = x.dtype.type(x.shape[-1] ** -0.25) * x
    z = scaled @ projection.T  # (1)
    if normalised:
        e = np.exp(z - np.max(z.real, axis=-1, keepdims=True))
        return e / np.sum(e, axis=-1, keepdims=True)  # (1), (3)
    half_square = np.sum(scaled * scaled, axis=-1, keepdims=True) / 2
    return np.exp(z - half_square) / x.dtype.type(len(projection) ** 0.5)  # (1), (2)


def dpfp(x: ArrayLike, nu: int) -> Array:
    """DPFP-nu features of rows x (..., E): r_a r_(a+m) for m = 1 .. nu, (..., 2 E nu).

    Here r = [relu(x), relu(-x)], and a + m comes round at 2 E.

    Source: Schlag et al. 2021, section 5.3.
    """
    x = np.asarray(x)
    r = np.concatenate([phi(x, "relu"), phi(-x, "relu")], axis=-1)
    return np.concatenate([r * np.roll(r, -m, axis=-1) for m in range(1, nu + 1)], axis=-1)  # (7)
