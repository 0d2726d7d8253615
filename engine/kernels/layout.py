"""Sizes that kernels and the code that feeds them agree on. Knows no numba."""

from .targets import current_target

QUERIES = 8  # tokens that attention takes at a time in prefill
PART = 128  # positions of a part of the cache, in which attention is computed and which threads share out in decode

# Activation width -> (groups of sixteen rows, tokens) that a matrix product takes at a time: what fits the registers.
_TILES = {
    "avx512vnni": {8: (2, 4), 16: (2, 3), 32: (2, 8)},  # 32 registers of sixteen lanes
    "avxvnni": {8: (1, 4), 16: (1, 2), 32: (1, 4)},  # 16 of eight lanes
    "avx2": {8: (1, 4), 16: (1, 3), 32: (1, 4)},
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


def cache_layer_bytes(kv_heads: int, head_dim: int, kv: str) -> int:
    """Bytes of a part of one layer's cache: keys and values of PART positions; kv "f16" or "f32"."""
    return 2 * kv_heads * PART * 16 * row_vectors(head_dim) * (2 if kv == "f16" else 4)


def attention_result_bytes(head_dim: int) -> int:
    """Bytes of a query's result over a part: maximum, lane sums and D/16 weighted values."""
    return 64 * (2 + row_vectors(head_dim))


def attention_scratch_bytes(head_dim: int, group: int, tokens: int) -> int:
    """Bytes that one thread of the attention kernel needs for runs of `tokens`: scores and limits, a new result, one a tile."""
    tile = max(QUERIES, group)
    return tile * (4 * PART + 64 + attention_result_bytes(head_dim) * (1 + max(1, tokens // QUERIES)))


def attention_part_bytes(head_dim: int, heads: int, capacity: int) -> int:
    """Bytes of the parts that are left of tokens which fill no tile."""
    return (QUERIES - 1) * attention_result_bytes(head_dim) * heads * -(-capacity // PART)
