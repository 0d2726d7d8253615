"""Which steps of a core program are fused: the one place that decides; execution only consumes the plan.

A region is a run of consecutive elementwise steps of one dtype and shape, two or more. Constants between them do not end
a run, and a broadcast of a value from outside is read through its strides instead of being made. A splat constant is a
number, not an input. A run with more than `MAX_INPUTS` inputs is cut, but only where every value that crosses the cut is
needed outside anyway: cutting an expression in its middle would write a value that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .dtypes import FLOAT, dtype_name
from .graph import Node
from .spec import Shape

MAX_INPUTS = 4
MIN_ELEMENTS = 16384
FUSABLE = frozenset(
    "add sub mul div neg conj abs maximum minimum clamp exp expm1 log log1p sin cos tanh sqrt rsqrt pow".split(),
)
NEVER_FUSED = frozenset({"erf", "remainder"})  # elementwise, and part of runs, but without a fused form

InputKind = Literal["array", "view", "number"]


@dataclass(frozen=True, eq=False)
class RegionInput:
    """A value that a region reads.

    Attributes:
        node: the value, before any broadcast.
        kind: ``array`` has the region's shape, ``number`` one element, ``view`` is broadcast to the shape.
        dims: axes of the region that the value's axes lie on (view).
    """

    node: Node
    kind: InputKind
    dims: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[Node, tuple[int, ...] | None]:
        return self.node, self.dims if self.kind == "view" else None


@dataclass(frozen=True, eq=False)
class FusionRegion:
    """Steps that run as one.

    Attributes:
        nodes: the fused steps, in order.
        inputs: what they read, without constants given as numbers in the program.
        constants: rank-0 constants that they read.
        operands: for each step, the operands: an input or constant, or the position of an earlier step.
        outputs: positions of the steps whose values are needed outside.
        last_uses: for each step, the positions of earlier steps whose values nothing reads afterwards.
        broadcasts: broadcast steps that it reads through.
        absorbed: those of them that only regions read, and that need not run by themselves.
        refusal: why the region never runs fused; empty: it may.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[RegionInput, ...]
    constants: tuple[Node, ...]
    operands: tuple[tuple[RegionInput | Node | int, ...], ...]
    outputs: tuple[int, ...]
    last_uses: tuple[tuple[int, ...], ...]
    broadcasts: tuple[Node, ...]
    absorbed: tuple[Node, ...]
    refusal: str

    @property
    def shape(self) -> Shape:
        return self.nodes[0].shape

    @property
    def output_nodes(self) -> tuple[Node, ...]:
        return tuple(self.nodes[i] for i in self.outputs)

    def __repr__(self) -> str:
        return f"FusionRegion({' '.join(node.name for node in self.nodes)}; {len(self.inputs)} inputs, {len(self.outputs)} outputs)"


def plan_regions(nodes: Sequence[Node], outputs: Iterable[Node]) -> tuple[list[Node], tuple[FusionRegion, ...]]:
    """(the steps in the order in which they run, their regions in order); regions run where their first step stands."""
    users: dict[Node, list[Node]] = {}
    for node in nodes:
        for read in node.inputs:
            users.setdefault(read, []).append(node)
    needed = frozenset(outputs)
    order, runs = _runs(nodes)
    pieces = [piece for run in runs for piece in _cut(run, users, needed)]
    member = frozenset(node for piece in pieces for node in piece)
    return order, tuple(_region(piece, users, needed, member) for piece in pieces)


def _is_number(node: Node) -> bool:
    return all(n == 1 for n in node.shape)


def _runs(nodes: Sequence[Node]) -> tuple[list[Node], list[list[Node]]]:
    """(order, maximal runs): one dtype, one shape, and nothing read that is computed inside a run and broadcast there.

    A reshape of an earlier value moves in front of the run that it interrupts.
    """
    order: list[Node] = []
    runs: list[list[Node]] = [[]]
    begin = 0  # where the run stands in the order
    since: set[Node] = set()  # its steps and the broadcasts between them
    for node in nodes:
        run = runs[-1]
        elementwise = node.name in FUSABLE or node.name in NEVER_FUSED
        if run and node.name == "reshape" and node.inputs[0] not in since:
            order.insert(begin, node)
            begin += 1
            continue
        if elementwise and all(i.shape == node.shape for i in node.inputs):  # else it broadcasts without saying so
            same = run and node.dtype == run[0].dtype and node.shape == run[0].shape
            if not same or not all(_available(i, run, since) for i in node.inputs):
                runs.append([])
                begin, since = len(order), set()
            runs[-1].append(node)
            since.add(node)
        elif node.name == "broadcast_in_dim":
            since.add(node)
        elif node.name != "constant":
            runs.append([])
            since = set()
        order.append(node)
    return order, [run for run in runs if len(run) > 1]


def _available(value: Node, run: Sequence[Node], since: set[Node]) -> bool:
    """Whether a step of the run may read a value: a step of the run, a broadcast of an earlier value, or earlier itself."""
    if value not in since or value in run:
        return True
    return value.name == "broadcast_in_dim" and value.inputs[0] not in since


def _source(value: Node) -> RegionInput:
    """How a region reads a value from outside."""
    if value.name != "broadcast_in_dim":
        return RegionInput(value, "number" if _is_number(value) else "array")
    source = value.inputs[0]
    if _is_number(source):
        return RegionInput(source, "number")
    if source.shape == value.shape and value.attrs["dims"] == tuple(range(len(value.shape))):
        return RegionInput(source, "array")
    return RegionInput(source, "view", tuple(value.attrs["dims"]))


def _is_constant(source: RegionInput) -> bool:
    return source.node.name == "constant" and tuple(source.node.shape) == ()


def _count_inputs(piece: Sequence[Node]) -> int:
    inside = set(piece)
    sources = (_source(value) for node in piece for value in node.inputs if value not in inside)
    return len({source.key for source in sources if not _is_constant(source)})


def _cut(run: list[Node], users: Mapping[Node, list[Node]], needed: frozenset[Node]) -> list[list[Node]]:
    """Pieces of a run with at most `MAX_INPUTS` inputs and two steps; a piece that cannot be cut so far is dropped."""
    if _count_inputs(run) <= MAX_INPUTS:
        return [run]
    position = {node: i for i, node in enumerate(run)}

    def kept_anyway(node: Node) -> bool:
        return node in needed or any(user not in position for user in users.get(node, ()))

    last_private = [-1] * len(run)  # for each step the last one that reads it, if nothing outside does
    for node, i in position.items():
        if not kept_anyway(node):
            last_private[i] = max((position[user] for user in users.get(node, ())), default=i)
    atoms: list[list[Node]] = [[]]
    reach = -1
    for i, node in enumerate(run):
        atoms[-1].append(node)
        reach = max(reach, last_private[i])
        if reach <= i and i + 1 < len(run):
            atoms.append([])
    pieces: list[list[Node]] = []
    current: list[Node] = []
    for atom in atoms:
        if _count_inputs([*current, *atom]) > MAX_INPUTS:
            pieces.append(current)
            current = []
        current = [*current, *atom] if _count_inputs(atom) <= MAX_INPUTS else []
    return [piece for piece in [*pieces, current] if len(piece) > 1]


def _region(piece: Sequence[Node], users: Mapping[Node, list[Node]], needed: frozenset[Node], member: frozenset[Node]) -> FusionRegion:
    position = {node: i for i, node in enumerate(piece)}
    found: dict[tuple[Node, tuple[int, ...] | None], RegionInput] = {}
    constants: dict[Node, None] = {}
    operands: list[tuple[RegionInput | Node | int, ...]] = []
    broadcasts: dict[Node, None] = {}
    for node in piece:
        row: list[RegionInput | Node | int] = []
        for value in node.inputs:
            if value in position:
                row.append(position[value])
                continue
            source = _source(value)
            if value.name == "broadcast_in_dim":
                broadcasts[value] = None
            if _is_constant(source):
                constants[source.node] = None
                row.append(source.node)
            else:
                row.append(found.setdefault(source.key, source))
        operands.append(tuple(row))
    outputs = tuple(i for i, node in enumerate(piece) if node in needed or any(user not in position for user in users.get(node, ())))
    absorbed = tuple(v for v in broadcasts if v not in needed and all(user in member for user in users[v]))
    return FusionRegion(
        nodes=tuple(piece),
        inputs=tuple(found.values()),
        constants=tuple(constants),
        operands=tuple(operands),
        outputs=outputs,
        last_uses=_last_uses(operands),
        broadcasts=tuple(broadcasts),
        absorbed=absorbed,
        refusal=_refusal(piece),
    )


def _last_uses(operands: Sequence[Sequence[object]]) -> tuple[tuple[int, ...], ...]:
    last: dict[int, int] = {}
    for i, row in enumerate(operands):
        last.update((value, i) for value in row if isinstance(value, int))
    return tuple(tuple(sorted(value for value, at in last.items() if at == i)) for i in range(len(operands)))


def _refusal(piece: Sequence[Node]) -> str:
    """The first condition that a region can never meet; those of the operands are looked at when it runs."""
    found = next((node.name for node in piece if node.name in NEVER_FUSED), None)
    if found:
        return f"it contains {found}"
    if piece[0].dtype not in FLOAT:
        return f"its dtype is {dtype_name(piece[0].dtype)}"
    return ""
