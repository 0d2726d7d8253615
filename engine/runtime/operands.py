"""How kernels see operands: as rows at even distances, or as a dense copy where a view is anything else."""

from __future__ import annotations

from .arrays import address_of
from .launch import Array, Launcher
from .prepared import Change


def dense(launcher: Launcher, x: Array) -> Change | None:
    """What makes arrays like x row-major; None: they are."""
    return None if x.flags.c_contiguous else launcher.dense


def change_to(fn: Change, x: Array) -> tuple[Change | None, Array]:
    """(fn, its result), or None instead of fn if its result lies where x does, so that the address needs no change."""
    y = fn(x)
    return (None if address_of(y) == address_of(x) else fn), y


def pitch_of(x: Array) -> int | None:
    """Bytes between rows of dense elements; None where one number does not tell."""
    if x.shape[-1] != 1 and x.strides[-1] != x.itemsize:
        return None
    pitch, step = 0, None
    for extent, stride in zip(x.shape[-2::-1], x.strides[-2::-1], strict=True):
        if extent == 1:
            continue
        if step is None:
            pitch = stride
        elif stride != step:
            return None
        step = extent * stride
    return pitch


def with_dense_rows(launcher: Launcher, x: Array) -> tuple[Change | None, tuple[int, ...]]:
    """(what makes the elements of the last axis lie side by side, strides in bytes after that)."""
    if x.strides[-1] == x.itemsize or x.shape[-1] == 1:
        return None, x.strides
    return launcher.dense, dense_strides(x.shape, x.itemsize)


def dense_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a row-major array."""
    found = []
    for extent in reversed(shape):
        found.append(itemsize)
        itemsize *= extent
    return tuple(reversed(found))
