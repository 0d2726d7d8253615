"""What a quantised tensor is: formats, packed layouts, QMatMul. Names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "FORMATS": "formats",
    "Format": "formats_base",
    "format_by_id": "formats",
    "format_by_name": "formats",
    "PackedWeight": "packing",
    "QTensor": "qtensor",
    "pack": "packing",
    "fused_matmul": "qmatmul",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "QTensor":
        import_module(".qmatmul", __name__)  # so that its products use the packed kernels
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
