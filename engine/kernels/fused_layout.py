"""What the fused kernels and their callers agree on. Knows no numba."""

from __future__ import annotations

# NumPy's loops that an activation calls, in order; their (function, data) end its argument words.
ACTIVATION_LOOPS: dict[str, tuple[str, ...]] = {
    "sigmoid": ("exp",),
    "silu": ("exp",),
    "softplus": ("exp", "log1p"),
    "gelu": (),
    "gelu_tanh": ("tanh",),
    "gated_silu": ("exp",),
    "mish": ("exp", "log1p", "tanh"),
    "elu": ("expm1",),
    "leaky_relu": (),
    "hardsigmoid": (),
    "hardswish": (),
}
COLUMNS = 512  # most columns that a thread takes at a time across an axis that is not the last
SDPA_ROWS = 64  # queries that share one turn of a block of keys
SDPA_STACK = 16384  # bytes; a thread that needs no more takes its scratch memory from its own stack
MOST_WORDS = 48  # argument words of a prepared call


def sdpa_scratch_bytes(dim: int, itemsize: int) -> int:
    """Bytes that a thread needs: sixteen keys turned, sixteen weights, a maximum and a sum a query; whole cache lines."""
    return (16 * dim + 16 + 2 * SDPA_ROWS) * itemsize + 63 & -64
