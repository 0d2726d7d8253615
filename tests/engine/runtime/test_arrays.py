"""Raw memory: alignment, zeros, and pieces that do not overlap."""

import numpy as np
import pytest

from llamita.engine.runtime.arrays import Arena, address_of, aligned_zeros


@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 1000])
def test_aligned_zeros(nbytes):
    array = aligned_zeros(nbytes)
    assert array.size == nbytes and array.ctypes.data % 64 == 0 and not array.any()
    assert address_of(array) == array.ctypes.data


def test_pieces_of_an_arena_do_not_overlap():
    arena = Arena(1000)
    sizes = [1, 64, 65, 500, 400, 999, 1000, 5000, 3, 333]  # some start a block, some need one of their own
    pieces = [arena.take(n) for n in sizes]
    for i, piece in enumerate(pieces):
        assert piece.size == sizes[i] and piece.ctypes.data % 64 == 0 and not piece.any()
        piece[:] = i + 1
    assert all((piece == i + 1).all() for i, piece in enumerate(pieces))


def test_pieces_follow_each_other():
    arena = Arena(4096)
    a, b = arena.take(100), arena.take(100)
    assert b.ctypes.data - a.ctypes.data == 128
    del a, arena
    b[:] = 7  # its block lives on
    assert np.all(b == 7)
