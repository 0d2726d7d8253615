"""Run a fused region: NumPy's loops and compiled steps over blocks, or one compiled kernel over everything.

Kernels are loaded when a region is made ready; running it only fills in addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..errors import KernelError
from ..kernels import blocks_layout as layout
from .arrays import address_of, aligned_zeros
from .engine import Engine
from .fusion_steps import FusionCode, Step, make_steps, place_values
from .launch import Kernel
from .store import KernelSpec
from .ufuncs import inner_loop

Array = np.ndarray[Any, np.dtype[Any]]
BLOCKS = KernelSpec.of("blocks")
POOLED = 1 << 19  # bytes; below, the C library's allocator serves again without new pages, and sooner than the pool
_ROW_MAJOR_ALIGNED = 0x101  # NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED


@dataclass(frozen=True)
class View:
    """How a row-major array of `extents` is broadcast to `shape`: its axis j lies on axis dims[j]."""

    extents: tuple[int, ...]
    shape: tuple[int, ...]
    dims: tuple[int, ...]

    def words(self, itemsize: int) -> list[int]:
        """Axes, then extent and stride of each, innermost first; neighbouring axes that continue each other are joined."""
        strides = [0] * len(self.shape)
        step = itemsize
        for axis in reversed(range(len(self.extents))):
            if self.extents[axis] > 1:
                strides[self.dims[axis]] = step
            step *= self.extents[axis]
        joined: list[list[int]] = []
        for extent, stride in zip(reversed(self.shape), reversed(strides), strict=True):
            if extent == 1:
                continue
            if joined and stride == joined[-1][0] * joined[-1][1]:
                joined[-1][0] *= extent
            else:
                joined.append([extent, stride])
        joined = joined or [[1, 0]]
        return [len(joined), *(word for pair in joined for word in pair)]


class _Frame:
    """Argument words and scratch memory of one run; kept for the next."""

    __slots__ = ("address", "instruction", "n_threads", "scratch", "words")

    def __init__(self, words: Sequence[int], bytes_a_thread: int, n_threads: int, kernel: int) -> None:
        self.n_threads = n_threads
        self.scratch = aligned_zeros(max(layout.UNIT_BYTES, bytes_a_thread * n_threads))
        self.words = (ctypes.c_int64 * len(words))(*words)
        self.address = ctypes.addressof(self.words)
        self.instruction = np.array([[kernel, self.address, 0]], np.int64)


class FusionKernel:
    """A region that is ready to run.

    Attributes:
        path: ``compiled``: one kernel over the whole arrays; ``chunk``: steps over blocks.

    Args:
        views: how a source that is a view is broadcast, by its number.
        numbers: one-element arrays for sources that are constants, by number; the other sources come with each run.
        addresses: of the kernels that `fusion_specs` names.

    Raises:
        KernelError: NumPy does not show the loop of a ufunc.
    """

    def __init__(
        self, code: FusionCode, views: Mapping[int, View], numbers: Mapping[int, Array], addresses: Mapping[KernelSpec, int]
    ) -> None:
        self._code, self._numbers = code, numbers
        self._kind, self._times = code.cost
        steps = make_steps(code)
        whole = steps[0].spec if len(steps) == 1 and not views else None
        if whole is not None:
            self.path, self._kernel, self._bytes_a_thread = "compiled", Kernel(addresses[whole]), 0
            place = self._fill_plain(steps[0])
        else:
            self.path, self._kernel = "chunk", Kernel(addresses[BLOCKS])
            place = self._fill_blocks(steps, views, addresses)
        for value, array in numbers.items():
            self._words[place[value]] = address_of(array)
        self._source_words = [place[value] for value in range(len(code.sources)) if value not in numbers]
        self._output_words = [place[value] for value in code.outputs]
        self._frames: list[_Frame] = []

    def _fill_plain(self, step: Step) -> dict[int, int]:
        """The argument words of an `elementwise` kernel. Returns the word that holds a value's address."""
        values = (*step.writes, *step.reads)
        self._words = [0] * (1 + len(values))
        return {value: 1 + i for i, value in enumerate(values)}

    def _fill_blocks(self, steps: Sequence[Step], views: Mapping[int, View], addresses: Mapping[KernelSpec, int]) -> dict[int, int]:
        """The same of the `blocks` kernel; see kernels/blocks_layout.py."""
        code, item = self._code, self._code.dtype.itemsize
        blocks, n_blocks = place_values(code, steps)
        place = {value: at for at, value in enumerate((*range(len(code.sources)), *code.outputs, *blocks))}
        most = max(len(step.reads) + len(step.writes) for step in steps)
        self._bytes_a_thread, scratch = layout.frame_bytes(len(place), most, n_blocks + len(views))
        words = [0] * (layout.PLACES + layout.PLACE_WORDS * len(place))
        words[layout.ITEM], words[layout.BLOCK] = item, layout.BLOCK_BYTES // item
        words[layout.FRAME_BYTES], words[layout.N_PLACES] = self._bytes_a_thread, len(place)
        base = {value: layout.PLACES + layout.PLACE_WORDS * at for value, at in place.items()}
        for value, at in base.items():
            words[at + 1] = 0 if value < len(code.sources) and code.sources[value] == "number" else item
            if value in blocks:
                words[at], words[at + 2] = scratch + layout.BLOCK_BYTES * blocks[value], layout.SCRATCH
        for i, (value, view) in enumerate(views.items()):
            words[base[value] + 2], words[base[value] + 3] = 8 * len(words), scratch + layout.BLOCK_BYTES * (n_blocks + i)
            words += view.words(item)
        words[layout.N_STEPS], words[layout.STEPS] = len(steps), 8 * len(words)
        for step in steps:
            words += self._step_record(step, place, addresses)
        self._words = words
        return base

    def _step_record(self, step: Step, place: Mapping[int, int], addresses: Mapping[KernelSpec, int]) -> list[int]:
        if step.spec is not None:
            places = [place[value] for value in (*step.writes, *step.reads)]
            return [addresses[step.spec], layout.COMPILED, len(places), *places]
        loop = None if step.ufunc is None else inner_loop(step.ufunc, self._code.dtype)
        if loop is None:
            raise KernelError(f"region: expected an inner loop in NumPy's {step.ufunc}, found none")
        places = [place[value] for value in (*step.reads, *step.writes)]
        return [*loop, len(places), *places]

    def run(self, sources: Sequence[Array], shape: tuple[int, ...], engine: Engine, parallel: bool | None = None) -> list[Array]:
        """The outputs, row-major.

        Args:
            parallel: share the work; None: as the engine's cost model says.
            sources: those that are no constants, in the code's dtype: arrays of ``shape``, one number, or what a view
                broadcasts. Strides of any kind; what is not row-major is copied first.
        """
        elements = prod(shape)
        plain = [s if s.flags.num & _ROW_MAJOR_ALIGNED == _ROW_MAJOR_ALIGNED else np.array(s, order="C") for s in sources]
        dtype = self._code.dtype
        empty = engine.pool.empty if elements * dtype.itemsize >= POOLED else np.empty
        outputs = [empty(shape, dtype) for _ in self._code.outputs]
        if parallel is None:
            parallel = engine.fused.is_parallel(self._kind, dtype, elements * self._times)
        frame = self._take_frame(engine.n_threads if parallel else 1)
        words = frame.words
        words[0] = elements
        for at, array in zip(self._source_words, plain, strict=True):
            words[at] = address_of(array)
        for at, array in zip(self._output_words, outputs, strict=True):
            words[at] = address_of(array)
        if parallel:
            engine.team.run(frame.instruction)
        else:
            self._kernel.call(frame.address, 0, 1)
        self._frames.append(frame)
        return outputs

    def _take_frame(self, n_threads: int) -> _Frame:
        """A frame for at least so many threads that no other run is using."""
        frame = None
        try:
            frame = self._frames.pop()
        except IndexError:
            pass
        if frame is None or frame.n_threads < n_threads:
            frame = _Frame(self._words, self._bytes_a_thread, n_threads, self._kernel.address)
            if self.path == "chunk":
                frame.words[layout.FRAMES] = frame.scratch.ctypes.data
        return frame


def fusion_specs(code: FusionCode) -> list[KernelSpec]:
    """The kernels that a region needs."""
    return [BLOCKS, *(step.spec for step in make_steps(code) if step.spec is not None)]
