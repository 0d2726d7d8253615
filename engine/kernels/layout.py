"""Sizes that kernels and the code that feeds them agree on. Knows no numba."""

QUERIES = 4  # queries that attention takes at a time
TOKENS = {8: 8, 16: 4, 32: 8}  # activation width -> tokens that a matrix product takes at a time


def attention_scratch_bytes(head_dim: int) -> int:
    """Bytes that one thread of the attention kernel needs: probabilities, limits, and a tile of sums for each 16 of D."""
    return 64 * QUERIES * (2 + head_dim // 16)
