"""The kernels that the direct face asks for most, compiled in one batch instead of one by one as ops meet them."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidArgument
from .launch import ELEMS, NOTHING, PREPARED
from .store import KernelSpec, Progress, default_store

_ACTIVATIONS = ("sigmoid", "silu", "softplus", "gelu", "gelu_tanh", "gated_silu")
_NORMS = (("rms_norm", True, False), ("rms_norm", False, False), ("layer_norm", True, True), ("layer_norm", False, False))


def common_kernels(elem: str) -> list[KernelSpec]:
    """Activations, softmaxes, norms, rotary embedding and attention of one element type, "f32" or "f64"."""
    of = KernelSpec.of
    return [
        *(of("fused_elementwise", op=op, elem=elem) for op in _ACTIVATIONS),
        *(
            of(module, part=part, elem=elem, masked=masked)
            for module in ("rows", "columns")
            for part in ("softmax", "log_softmax")
            for masked in (False, True)
        ),
        *(of("rows", part=part, elem=elem, weighted=weighted, biased=biased) for part, weighted, biased in _NORMS),
        *(of("rotary", elem=elem, interleaved=interleaved) for interleaved in (False, True)),
        *(of("sdpa", elem=elem, mask=mask, capped=False) for mask in ("none", "bool")),
    ]


def warm_up(elems: Sequence[str] = ("f32",), on_progress: Progress | None = None) -> int:
    """Compile what the store lacks of these, all processors at work; returns how many kernels are ready.

    Args:
        elems: element types, of "f32" and "f64".
        on_progress: called with ("compile", done, total) while something is compiled.

    Raises:
        InvalidArgument: another element type.
        KernelError: a kernel does not compile.
    """
    for elem in elems:
        if elem not in ELEMS.values():
            raise InvalidArgument(f"warm_up: elems: expected some of {', '.join(ELEMS.values())}, got {elem!r}")
    specs = [NOTHING, PREPARED, *(spec for elem in elems for spec in common_kernels(elem))]
    return len(default_store().load(specs, on_progress))
