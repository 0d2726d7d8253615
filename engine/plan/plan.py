"""A plan: kernels in order, with their arguments placed, run by a team in one native call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..runtime.store import KernelSpec
from ..runtime.team import Team
from .views import Buffer, place

# Words of the register block, which kernels read when they run
N_TOKENS, POSITION, ALL_ROWS = range(3)


@dataclass
class Instruction:
    """One kernel call. args: 64-bit words, buffers standing for their addresses. reads, writes: what it touches."""

    spec: KernelSpec
    args: list[int | Buffer]
    reads: Sequence[object]
    writes: Sequence[object]
    label: str = ""
    bytes_read: int = 0  # of weights
    next_word: int | None = None  # the argument word that takes the address of the next product's arguments
    barrier: bool = field(default=False)


class Plan:
    """Instructions bound to addresses.

    Args:
        instructions: in order; barriers are put where one touches what an earlier one wrote, or writes what it read.
        registers: int64 words that kernels read (see above).
        output: the buffer that is read after a run.
        keep: objects whose memory the instructions point into.
    """

    def __init__(
        self,
        instructions: Sequence[Instruction],
        team: Team,
        registers: NDArray[np.int64],
        output: Buffer,
        keep: object,
    ):
        place([[b for b in (*i.reads, *i.writes) if isinstance(b, Buffer)] for i in instructions], output)
        _place_barriers(instructions)
        addresses = team.store.load(i.spec for i in instructions)
        self.instructions, self.registers, self.team = tuple(instructions), registers, team
        self._keep = keep
        self._blocks = [
            np.array([a.address if isinstance(a, Buffer) else a for a in instruction.args], np.int64) for instruction in instructions
        ]
        self._link_products(instructions)
        rows = [(addresses[i.spec], int(block.ctypes.data), int(i.barrier)) for i, block in zip(instructions, self._blocks, strict=True)]
        self.code: NDArray[np.int64] = np.array(rows, np.int64).reshape(-1, 3)

    def _link_products(self, instructions: Sequence[Instruction]) -> None:
        """Tell each product which one is next (after the last: the next token's first), so that it can ask for its weights."""
        products = [(block, i.next_word) for i, block in zip(instructions, self._blocks, strict=True) if i.next_word is not None]
        for (block, word), (following, _) in zip(products, products[1:] + products[:1], strict=True):
            block[word] = following.ctypes.data

    def set_registers(self, n_tokens: int, position: int, all_rows: bool = False) -> None:
        """What a run is about: `n_tokens` tokens, the first at `position`; `all_rows`: whether all their logits are wanted."""
        self.registers[N_TOKENS], self.registers[POSITION], self.registers[ALL_ROWS] = n_tokens, position, all_rows

    def run(self, n_tokens: int, position: int, all_rows: bool = False) -> None:
        """Carry the plan out; the arguments are those of `set_registers`."""
        self.set_registers(n_tokens, position, all_rows)
        self.team.run(self.code)


def _memory(touched: Sequence[object]) -> set[int]:
    """Identities of the memory that stands behind buffers and arrays."""
    return {id(item.data) if isinstance(item, Buffer) else id(item) for item in touched}


def _place_barriers(instructions: Sequence[Instruction]) -> None:
    read: set[int] = set()
    written: set[int] = set()
    for previous, instruction in zip([None, *instructions], instructions, strict=False):
        reads, writes = _memory(instruction.reads), _memory(instruction.writes)
        if previous is not None and (reads & written or writes & (read | written)):
            previous.barrier = True
            read, written = set(), set()
        read |= reads
        written |= writes
