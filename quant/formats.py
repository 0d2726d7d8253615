"""The tensor formats, by name and by GGML type id.

    format_by_name("Q4_0").dequantize(blocks)      # uint8 [n, 18] -> float32 [n, 32]

To add a format: write one `Format` subclass in a formats_*.py module that is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..engine.errors import UnsupportedModelError
from .formats_base import REGISTRY, Format
from .formats_k import Q2_K, Q3_K, Q4_K, Q5_K, Q6_K
from .formats_simple import BF16, F16, F32, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0

__all__ = [
    "BF16", "F16", "F32", "FORMATS", "Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0",
    "Format", "format_by_id", "format_by_name", "type_label",
]  # fmt: skip

FORMATS: Mapping[str, Format] = MappingProxyType(dict(sorted(REGISTRY.items(), key=lambda item: item[1].type_id)))

_BY_ID = {fmt.type_id: fmt for fmt in FORMATS.values()}

# Types that GGML knows and we do not read, so that an error can name them.
_OTHER_TYPES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
    40: "NVFP4", 41: "Q1_0", 42: "Q2_0",
}  # fmt: skip
_RETIRED_TYPES = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
}  # fmt: skip


def format_by_id(type_id: int) -> Format | None:
    """The format that GGML numbers `type_id`, or None if we cannot read it (`type_label` says what it is)."""
    return _BY_ID.get(type_id)


def format_by_name(name: str) -> Format:
    """The format called `name`, in any case. Raises UnsupportedModelError naming those that exist."""
    fmt = FORMATS.get(name.upper())
    if fmt is None:
        raise UnsupportedModelError(f"format: name: expected one of {', '.join(FORMATS)}, got {name!r}")
    return fmt


def type_label(type_id: int) -> str:
    """How a message should call a GGML type id: "Q4_0", "IQ4_NL", "Q4_0_4_4 (retired from GGUF)" or "unknown (id 99)"."""
    if type_id in _BY_ID:
        return _BY_ID[type_id].name
    if type_id in _OTHER_TYPES:
        return _OTHER_TYPES[type_id]
    if type_id in _RETIRED_TYPES:
        return f"{_RETIRED_TYPES[type_id]} (retired from GGUF)"
    return f"unknown (id {type_id})"
