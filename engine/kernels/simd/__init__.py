"""SIMD values for numba: vectors, tiles of vectors, and the operations that kernels are written in.

A `Vec(elem, lanes, count)` is `count` LLVM vectors held in registers: count 1 is a plain vector, a larger count is a tile,
one vector a token. Element-wise operations accept any mix of the two (a plain vector meets every vector of a tile).
LLVM splits vectors that are wider than the machine's, so kernels are written once, for 512 bits; only `dot4` has a
lowering a target. Knows nothing of models, formats or plans.
"""

from . import operators as operators
from .arithmetic import *  # noqa: F403
from .dot import *  # noqa: F403
from .memory import *  # noqa: F403
from .numbers import *  # noqa: F403
from .threads import *  # noqa: F403
from .values import Vec as Vec
