"""SIMD values for numba: vectors, tiles of vectors, and the operations that kernels are written in.

A `Vec(elem, lanes, count, rows)` is a grid of LLVM vectors held in registers: 1 by 1 is a plain vector, `count` goes over
tokens, `rows` over groups of weight rows. Element-wise operations broadcast: a side that is 1 meets every vector.
LLVM splits vectors that are wider than the machine's, so kernels are written once, for 512 bits; only `dot` has a
spelling a target. Knows nothing of models, formats or plans.
"""

from . import operators as operators
from .arithmetic import *  # noqa: F403
from .dot import *  # noqa: F403
from .memory import *  # noqa: F403
from .numbers import *  # noqa: F403
from .threads import *  # noqa: F403
from .values import Vec as Vec
