"""The naive truth of every attention variant: quadratic, plain NumPy, no cleverness.

Every kernel of this package is judged against these functions, so they are written from the
definitions: the whole matrix of scores, one line for each equation, nothing saved and nothing
reused. With `dtype=numpy.float64` they are the truth; with `dtype=numpy.float32` the yardstick, the
error that anyone's first implementation makes. (With `dtype=numpy.complex128` they differentiate
themselves: the tests prove each backward by the complex step.) Each stands in its room's
`reference.py`, beside the derivation whose equations it cites.

Arrays are (N, H, L, E): batch, heads, length, head dim; values are (N, H, L, M).
"""

from .delta.reference import *
from .features.reference import *
from .fourier.reference import *
from .graph.reference import *
from .linear.reference import *
from .local.reference import *
from .recurrent.reference import *
from .relative.reference import *
from .softmax.reference import *
