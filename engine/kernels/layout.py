"""Sizes that kernels and the code that feeds them agree on. Knows no numba."""

from .targets import current_target

QUERIES = 8  # tokens that attention takes at a time in prefill
PART = 128  # keys after which a softmax starts afresh, to be merged: what threads share out in decode
CACHE_BLOCK = 32  # positions that attention reads at a time: the cache's capacity is a multiple

# Activation width -> (groups of sixteen rows, tokens) that a matrix product takes at a time: what fits the registers.
_TILES = {
    "avx512vnni": {8: (2, 4), 16: (2, 3), 32: (2, 6)},  # 32 registers of sixteen lanes
    "avxvnni": {8: (1, 4), 16: (1, 2), 32: (1, 3)},  # 16 of eight lanes
    "avx2": {8: (1, 4), 16: (1, 3), 32: (1, 3)},
    "i8mm": {8: (1, 4), 16: (1, 3), 32: (1, 3)},  # 32 of four lanes
    "dotprod": {8: (1, 4), 16: (1, 3), 32: (1, 3)},
    "generic": {8: (1, 3), 16: (1, 3), 32: (2, 6)},  # halves cost most here: they are converted once for twelve results
}


def product_tile(width: int) -> tuple[int, int]:
    """(groups of rows, tokens) that a matrix product takes at a time on this target. No result depends on it."""
    return _TILES[current_target().name][width]


def attention_group(heads: int, kv_heads: int) -> int:
    """Query heads that decode takes together: the largest divisor, up to 8, of those that share a kv head."""
    shared = heads // kv_heads
    return max(g for g in range(1, 9) if shared % g == 0)


def row_vectors(head_dim: int) -> int:
    """Vectors of sixteen that a head's row takes in the cache."""
    return -(-head_dim // 16)


def attention_scratch_bytes(head_dim: int, group: int) -> int:
    """Bytes that one thread of the attention kernel needs: three tiles, and two results of D/16 + 2 tiles."""
    return 64 * max(QUERIES, group) * (3 + 2 * (2 + row_vectors(head_dim)))


def attention_part_bytes(head_dim: int, heads: int, capacity: int) -> int:
    """Bytes of the parts that decode leaves: D/16 + 2 vectors a head and part."""
    return 64 * (2 + row_vectors(head_dim)) * heads * -(-capacity // PART)
