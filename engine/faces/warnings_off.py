"""NumPy's floating-point warnings off for a block of code, at a tenth of what `np.errstate` costs: that is longer than a small op.

token = warnings_off()
try:
    ...
finally:
    warnings_back(token)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

warnings_off: Callable[[], Any]
warnings_back: Callable[[Any], Any]

try:
    # What errstate sets in NumPy 2, a context variable, with the value made once.
    from numpy._core.umath import _extobj_contextvar, _make_extobj

    warnings_off, warnings_back = partial(_extobj_contextvar.set, _make_extobj(all="ignore")), _extobj_contextvar.reset
except (ImportError, TypeError):

    def warnings_off() -> Any:
        return np.seterr(all="ignore")

    def warnings_back(token: Any) -> Any:
        np.seterr(**token)
