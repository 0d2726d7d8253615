"""Sizes that the attention kernel for arrays and its caller agree on. Knows no numba."""

SDPA_ROWS = 64  # queries that share one turn of a block of keys
COLUMNS = 16  # columns of a value row that are taken at a time: Dv has to be a multiple


def sdpa_scratch_bytes(dim: int, itemsize: int) -> int:
    """Bytes that a thread needs: sixteen keys turned, sixteen weights, a maximum and a sum a query; whole cache lines."""
    return (16 * dim + 16 + 2 * SDPA_ROWS) * itemsize + 63 & -64
