"""Packed weights: a QTensor rearranged into the layout that its matrix kernel streams (engine/kernels/matmul.py).

Packing moves bits and rounds nothing. A format needs a `Layout` here and its block reader in engine/kernels/packing.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.errors import RankMismatch, UnsupportedDType
from ..engine.runtime.arrays import Arena
from ..engine.runtime.store import KernelSpec
from ..engine.runtime.team import Team
from .formats_base import UInt8
from .qtensor import QTensor

ROWS = 16  # rows side by side, one a lane


@dataclass(frozen=True)
class Layout:
    """How sixteen rows of a format lie in memory; the fields are those of the matrix kernel.

    planes: widths of the bit planes of a code, low bits first. sub: weights that share a scale. zero: the code of 0 in
    formats without a minimum. minimum: whether a minimum is subtracted. negated: the file stores the minimum with the
    other sign. scales: "f16", or how a super-block's scale bytes read. dense: the float type, for unquantised formats.
    """

    planes: tuple[int, ...] = ()
    sub: int = 32
    zero: int = 0
    minimum: bool = False
    negated: bool = False
    scales: str = "f16"
    dense: str = ""

    def kernel(self) -> dict[str, Any]:
        """Parameters of the matrix kernel that reads this layout."""
        if self.dense:
            return {"dense": self.dense}
        return {
            "planes": self.planes,
            "sub": self.sub,
            "zero": self.zero,
            "minimum": self.minimum,
            "negated": self.negated,
            "scales": self.scales,
        }

    def group_bytes(self, columns: int) -> int:
        """Bytes of a group of sixteen rows of `columns` weights, padded to whole units of 32."""
        units = -(-columns // 32)
        if self.dense:
            return units * 32 * ROWS * (4 if self.dense == "f32" else 2)
        codes = 64 * sum(self.planes)
        factors = 2 if self.minimum else 1
        if self.scales == "f16":
            return units * (codes + 32 * factors)
        scale_bytes = 16 * (32 // self.sub) * (1 if self.scales == "nibbles" else factors)
        return units * (codes + scale_bytes) + -(-units // 8) * 32 * factors


LAYOUTS: dict[str, Layout] = {
    "F32": Layout(dense="f32"),
    "F16": Layout(dense="f16"),
    "BF16": Layout(dense="bf16"),
    "Q4_0": Layout((4,), zero=8),
    "Q4_1": Layout((4,), minimum=True, negated=True),
    "Q5_0": Layout((4, 1), zero=16),
    "Q5_1": Layout((4, 1), minimum=True, negated=True),
    "Q8_0": Layout((8,), zero=128),
    "Q2_K": Layout((2,), sub=16, minimum=True, scales="nibbles"),
    "Q3_K": Layout((2, 1), sub=16, zero=4, scales="signed"),
    "Q4_K": Layout((4,), minimum=True, scales="bytes"),
    "Q5_K": Layout((4, 1), minimum=True, scales="bytes"),
    "Q6_K": Layout((4, 2), sub=16, zero=32, scales="signed"),
}


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A matrix [n_rows, n_columns] in its kernel's layout.

    data: uint8 [groups, group_bytes], 64-byte aligned; rows beyond n_rows are zero.
    """

    name: str
    layout: Layout
    n_rows: int
    n_columns: int
    data: UInt8

    @property
    def units(self) -> int:
        """Runs of 32 columns in a row."""
        return -(-self.n_columns // 32)

    @property
    def nbytes(self) -> int:
        """Bytes that the kernel reads to multiply by the whole matrix."""
        return self.data.nbytes

    def kernel_params(self) -> dict[str, Any]:
        """Parameters of the matrix kernel that reads this weight."""
        return self.layout.kernel()


def layout_of(tensor: QTensor) -> Layout:
    """The layout for a tensor's format. Raises UnsupportedDType when its format has no kernel."""
    layout = LAYOUTS.get(tensor.format.name)
    if layout is None:
        raise UnsupportedDType(f"{tensor.name or 'QTensor'}: format: expected one of {', '.join(LAYOUTS)}, got {tensor.format.name}")
    return layout


def pack_spec(tensor: QTensor) -> KernelSpec:
    """The kernel that packs a tensor's format."""
    layout = layout_of(tensor)
    if layout.dense:
        return KernelSpec.of("packing", format=tensor.format.name)
    shape = {"planes": layout.planes, "sub": layout.sub, "minimum": layout.minimum, "scales": layout.scales}
    return KernelSpec.of("packing", format=tensor.format.name, **shape)


def reserve(tensor: QTensor, arena: Arena) -> PackedWeight:
    """Memory of `arena` for a matrix [N, K], to be filled by `fill`: its address is final, so plans may be made at once.

    Raises RankMismatch unless it has two axes, UnsupportedDType when its format has no kernel.
    """
    if tensor.ndim != 2:
        raise RankMismatch(f"{tensor.name or 'QTensor'}: pack: expected a matrix, got shape {list(tensor.shape)}")
    layout = layout_of(tensor)
    n_rows, n_columns = tensor.shape
    group_bytes = layout.group_bytes(n_columns)
    data = arena.take(-(-n_rows // ROWS) * group_bytes).reshape(-1, group_bytes)
    return PackedWeight(tensor.name, layout, n_rows, n_columns, data)


def fill(weights: Sequence[tuple[PackedWeight, QTensor]], team: Team) -> None:
    """Rearrange tensors' blocks into their reserved memory, on a team's threads, which wait for each other only at the end."""
    addresses = team.store.load(pack_spec(tensor) for _, tensor in weights)
    keep, rows = [], []
    for packed, tensor in weights:
        blocks, data = np.ascontiguousarray(tensor.blocks), packed.data
        args = [blocks.ctypes.data, blocks.shape[1], packed.n_rows, packed.units, data.ctypes.data, data.shape[1], packed.n_columns]
        block = np.array([*args, int(packed.layout.negated)], np.int64)
        keep.append((blocks, block))
        rows.append((addresses[pack_spec(tensor)], block.ctypes.data, 0))
    team.run(np.array(rows, np.int64).reshape(-1, 3))


def pack(tensor: QTensor, team: Team) -> PackedWeight:
    """Pack a matrix [N, K]: `reserve`, in memory of its own, then `fill`."""
    packed = reserve(tensor, Arena(0))
    fill([(packed, tensor)], team)
    return packed
