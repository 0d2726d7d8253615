"""QMatMul: x @ W^T with a quantised W, at once, on the weight's packed form. The op's fused hook ends here."""

from __future__ import annotations

import weakref
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.kernels.layout import product_tile
from ..engine.plan.views import float_row_bytes, quantised_row_bytes
from ..engine.runtime.arrays import aligned_zeros
from ..engine.runtime.engine import current_engine
from ..engine.runtime.store import KernelSpec
from .packing import LAYOUTS, PackedWeight, pack
from .qtensor import QTensor, multiply_with

_packed: weakref.WeakKeyDictionary[QTensor, PackedWeight] = weakref.WeakKeyDictionary()


def fused_matmul(x: Any, weight: QTensor) -> NDArray[np.float32] | None:
    """x float32 [..., K] @ weight[N, K]^T -> float32 [..., N] on the current engine's threads, or None if not served.

    The engine's `activations` decide the arithmetic: 8 or 16 bits against integer codes, 32 in floats. The weight is packed
    at its first use, and the packed form lives as long as the weight.
    """
    if x.dtype != np.float32 or x.ndim < 1 or weight.ndim != 2 or x.shape[-1] != weight.shape[1] or x.size == 0:
        return None
    if weight.format.name not in LAYOUTS:
        return None
    engine = current_engine()
    packed = _packed.get(weight)
    if packed is None:
        packed = _packed[weight] = pack(weight, engine.team)
    rows = prod(x.shape[:-1])
    width = 32 if packed.layout.dense else engine.activations
    y = _product(np.ascontiguousarray(x).reshape(rows, -1), packed, width)
    return y.reshape(*x.shape[:-1], weight.shape[0])


def _product(x: NDArray[np.float32], weight: PackedWeight, width: int) -> NDArray[np.float32]:
    rows, columns = x.shape
    team = current_engine().team
    registers = np.array([rows, 0, 1, 0], np.int64)
    at = int(registers.ctypes.data)
    stride = float_row_bytes(columns)
    if stride != 4 * columns:  # kernels read whole units
        padded = aligned_zeros(rows * stride).view(np.float32).reshape(rows, -1)
        padded[:, :columns] = x
        x = padded
    groups = weight.data.shape[0]
    out = np.empty((rows, 16 * groups), np.float32)
    matmul = KernelSpec.of("matmul", width=width, tile=product_tile(width), **weight.kernel_params())
    specs, blocks = [matmul], []
    source: Any = x
    if width < 32:
        specs.insert(0, KernelSpec.of("quantize", width=width))
        source = aligned_zeros(rows * quantised_row_bytes(columns)).reshape(rows, -1)
        quantise = [x.ctypes.data, stride, 0, 0, weight.units, at, 0, 0, source.ctypes.data, source.shape[1], 0, 0]
        blocks.append(np.array(quantise, np.int64))
        stride = source.shape[1]
    product = [weight.data.ctypes.data, groups, weight.units, weight.data.shape[1], source.ctypes.data, stride]
    product += [out.ctypes.data, 64 * groups, at, 0, 0, 0, 0, 0]
    blocks.append(np.array(product, np.int64))
    addresses = team.store.load(specs)
    team.run(np.array([(addresses[s], b.ctypes.data, 1) for s, b in zip(specs, blocks, strict=True)], np.int64))
    return out[:, : weight.n_rows]


multiply_with(fused_matmul)
