"""Calls of fused kernels, prepared: the checks are done and the argument words are kept, so that a repeated call only
allocates its result and says where its arrays lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from ..errors import KernelError
from ..kernels.fused_layout import MOST_WORDS
from . import arrays as memory
from .arrays import address_of
from .launch import ALONE, ALWAYS_SERIAL, FIRST, Array, Kernel, Launcher

Change = Callable[[Array], Array]

_BYTES = np.dtype(np.uint8)
# Native code that is given an array object finds its data: so many bytes on, where NumPy's struct is as expected. Else (-1)
# it is given the data's address.
_DATA_FIELD = object.__basicsize__ if address_of is memory._field_address else -1
_handle_of: Callable[[Array], int] = id if _DATA_FIELD >= 0 else address_of


class Place(NamedTuple):
    """An argument word that is the address of an array of the call, so many bytes on.

    Attributes:
        array: 0 the result, 1... the operands in order, -1 the scratch memory.
    """

    array: int
    offset: int = 0


RESULT, SCRATCH = Place(0), Place(-1)
Word = int | float | Place


class PreparedCall:
    """One call: a kernel and operands of known types, shapes and strides.

    Args:
        kernel: what runs; it checks nothing.
        words: its argument words, of which the places are filled in at each run.
        shape, dtype: of the result.
        kind, elements: the work, as the cost model asks for it.
        changes: what to do to each operand first (a dense copy), None for nothing.
        scratch: bytes of memory that each thread needs.
        divisible: threads may share the work.
    """

    def __init__(
        self,
        launcher: Launcher,
        kernel: Kernel,
        words: Sequence[Word],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        kind: str,
        elements: int,
        changes: Sequence[Change | None],
        scratch: int = 0,
        divisible: bool = True,
    ) -> None:
        frame = launcher.prepared
        if frame is None:
            raise KernelError("prepared call: expected the kernel that runs it, got none")
        self._launcher, self._frame = launcher, frame
        self._call = frame.call_briefly if elements < ALWAYS_SERIAL else frame.call_packed
        self._changes = tuple(changes) if any(changes) else None
        self._kind, self._type, self._elements = kind, dtype, elements
        self._shared = divisible and launcher.may_share(elements)
        self._plain = not (self._changes or self._shared or scratch)
        self._new = launcher.pool.maker(shape, dtype)
        self._scratch = scratch
        n_arrays = 1 + len(changes) + bool(scratch)
        self._pack = Struct(f"={1 + n_arrays}q").pack
        self._kept = _record(kernel, words, n_arrays)
        self._record = address_of(self._kept)

    def run(self, arrays: Sequence[Array]) -> Array:
        """The result for operands of the signature that the call was prepared for."""
        out = self._new()
        if self._plain:
            self._call(self._pack(self._record, _handle_of(out), *map(_handle_of, arrays)), FIRST, ALONE)
            return out
        arrays = self._changed(arrays)
        parallel = self._shared and self._launcher.is_parallel(self._kind, self._type, self._elements)
        if self._scratch:
            threads = self._launcher.n_threads if parallel else 1
            arrays = [*arrays, self._launcher.pool.empty((threads * self._scratch,), _BYTES)]
        words = self._pack(self._record, _handle_of(out), *map(_handle_of, arrays))
        if parallel:
            self._launcher.run(self._frame, words, True)
        else:
            self._call(words, FIRST, ALONE)
        return out

    def _changed(self, arrays: Sequence[Array]) -> Sequence[Array]:
        if self._changes is None:
            return arrays
        return [x if change is None else change(x) for x, change in zip(arrays, self._changes, strict=True)]

    def bare(self, arrays: Sequence[Array]) -> Callable[[], None]:
        """The native call alone, with words made once: what a run costs beyond it is the price of the face."""
        scratch = [self._launcher.pool.empty((self._scratch,), _BYTES)] if self._scratch else []
        kept = [self._new(), *self._changed(arrays), *scratch]
        words = self._pack(self._record, *map(_handle_of, kept))

        def call(kept: Any = kept) -> None:
            self._call(words, FIRST, ALONE)

        return call


def _record(kernel: Kernel, words: Sequence[Word], n_arrays: int) -> Array:
    """What kernels/prepared.py reads."""
    if len(words) > MOST_WORDS:
        raise ValueError(f"prepared call: expected at most {MOST_WORDS} argument words, got {len(words)}")
    places = [(at, word.array % n_arrays) for at, word in enumerate(words) if isinstance(word, Place)]
    plain = [word.offset if isinstance(word, Place) else word for word in words]
    layout = "".join("d" if isinstance(word, float) else "q" for word in plain)
    head = (kernel.address, len(words), _DATA_FIELD, len(places), *(number for place in places for number in place))
    return np.frombuffer(Struct(f"={len(head)}q{layout}").pack(*head, *plain), np.uint8)
