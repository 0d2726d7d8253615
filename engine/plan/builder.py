"""Lower a traced decoder to a plan: one handler an op, a kernel or a view each.

Values that a neighbouring kernel can take over wait: a rotation for the append that stores its result, a residual sum for
the product that it follows. Everything has batch 1; the number of tokens is a register, up to the traced extent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ContextMismatch, UnsupportedDType
from ..faces.graph import Node
from ..faces.program import Program
from ..kernels.layout import PART, attention_group, attention_part_bytes, attention_scratch_bytes, cache_layer_bytes, product_tile
from ..runtime.arrays import aligned_zeros
from ..runtime.store import KernelSpec
from ..runtime.team import Team
from .plan import Instruction, Plan
from .views import UNIT, Buffer, View, float_row_bytes, quantised_row_bytes


@dataclass(frozen=True)
class _Rotated:
    """A rotation that nobody has carried out yet."""

    x: View
    cos: NDArray[np.float32]
    sin: NDArray[np.float32]
    interleaved: bool


@dataclass(frozen=True)
class _Rows:
    """Rows of a table at the new tokens' positions."""

    table: NDArray[np.float32]


@dataclass(frozen=True)
class _Last:
    """The last token's row of a value, or all rows when the run says so."""

    x: View


@dataclass(frozen=True)
class _Appended:
    """Keys and values that wait to be written into a layer's cache."""

    k: Any
    v: View
    layer: int


class CacheMemory:
    """The cache that a plan writes, in parts of PART positions (kernels/attention.py); memory is touched as positions are used.

    Args:
        kv: "f16" or "f32".

    Attributes:
        capacity: positions, whole parts. part_stride: bytes from one part to the next. layers: each layer's memory, from its
            first part on.
    """

    def __init__(self, n_layers: int, n_kv_heads: int, head_dim: int, capacity: int, kv: str = "f16"):
        n_parts, layer = -(-capacity // PART), cache_layer_bytes(n_kv_heads, head_dim, kv)
        self.kv, self.capacity, self.part_stride = kv, n_parts * PART, n_layers * layer
        self.memory = aligned_zeros(n_parts * self.part_stride)
        self.layers = [self.memory[i * layer :] for i in range(n_layers)]


class PlanBuilder:
    """Turns a program (lowering "plan") into a `Plan`.

    Args:
        n_threads: of the team that will run the plan. tokens: the most tokens of one run.
        all_rows: the most tokens of a run that wants every token's logits.
        width: bits of activations that meet quantised weights (8, 16 or 32).
        pack: weight tensor -> its packed form, filled or still to be filled (quant/packing.py); called once a weight.
    """

    def __init__(self, n_threads: int, cache: CacheMemory, tokens: int, all_rows: int, width: int, pack: Callable[[Any], Any]):
        self.n_threads, self.cache, self.tokens, self.all_rows, self.width = n_threads, cache, tokens, all_rows, width
        self.registers = np.zeros(8, np.int64)
        self.ids = np.zeros(tokens, np.int64)
        self._pack, self._packed = pack, dict[int, Any]()
        self._values: dict[Node, Any] = {}
        self._instructions: list[Instruction] = []
        self._users: dict[Node, list[Node]] = {}
        self._quantised: dict[int, Buffer] = {}  # float buffer -> its quantised twin
        self._keep: list[Any] = [self.registers, self.ids, cache]

    def lower(self, program: Program) -> View:
        """Turn the program into instructions; returns where they leave its one output.

        Raises ContextMismatch for an op, a layout or a feature that has no kernel.
        """
        for node in program.nodes:
            for read in node.inputs:
                self._users.setdefault(read, []).append(node)
        self._values[program.inputs[0]] = None
        for capture in program.captures:
            self._values[capture] = capture.value
        for node in program.nodes:
            handler = getattr(self, f"_lower_{node.name}", None)
            if handler is None:
                raise ContextMismatch(f"plan: op: expected one that has a kernel, got {node.name}")
            if node not in self._values:  # else a product has taken it over
                self._values[node] = handler(node)
        output: View = self._values[program.outputs[0]]
        self._output = output.buffer
        return output

    @property
    def specs(self) -> list[KernelSpec]:
        """The kernels that the plan needs, once each."""
        return list(dict.fromkeys(instruction.spec for instruction in self._instructions))

    def bind(self, team: Team) -> Plan:
        """The plan for a team of `n_threads`; kernels that the store lacks are compiled here."""
        return Plan(self._instructions, team, self.registers, self._output, (self._keep, self._packed))

    # ----- memory -----
    def _buffer(self, columns: int, rows: int | None = None) -> Buffer:
        return Buffer(rows or self.tokens, float_row_bytes(columns), columns)

    def _twin(self, buffer: Buffer) -> Buffer:
        """A buffer for the quantised form of a float buffer's rows."""
        twin = Buffer(buffer.rows, quantised_row_bytes(buffer.columns), buffer.columns)
        self._quantised[id(buffer)] = twin
        self._keep.append(buffer)  # ids stay unique while it lives
        return twin

    def _emit(self, spec: KernelSpec, args: list[int | Buffer], reads: list[Any], writes: list[Any], label: str) -> Instruction:
        self._instructions.append(Instruction(spec, args, reads, writes, label))
        return self._instructions[-1]

    @property
    def _register_address(self) -> int:
        return int(self.registers.ctypes.data)

    def _vector(self, values: Any, columns: int) -> int:
        """Address of a float32 vector padded with zeros to whole units."""
        padded = aligned_zeros(float_row_bytes(columns)).view(np.float32)
        padded[: len(values)] = values
        self._keep.append(padded)
        return int(padded.ctypes.data)

    def _weight(self, tensor: Any) -> Any:
        if id(tensor) not in self._packed:
            self._packed[id(tensor)] = (self._pack(tensor), tensor)
        return self._packed[id(tensor)][0]

    def _quantised_rows(self, view: View) -> Buffer:
        """The quantised form of a value: made by its producer, or here."""
        twin = self._quantised.get(id(view.buffer))
        if twin is None:
            columns = view.shape[2]
            source, target = view.buffer, self._twin(view.buffer)
            args: list[int | Buffer] = [source, source.row_bytes, 0, 0, -(-columns // UNIT), self._register_address, 0, 0]
            args += [target, target.row_bytes, 0, 0]
            self._emit(KernelSpec.of("quantize", width=self.width), args, [source], [target], "quantize")
            return target
        return twin

    def _wants_integers(self, node: Node) -> bool:
        """Whether a quantised product reads this value."""
        users = self._users.get(node, [])
        for user in users:
            if user.name in ("last_token", "reshape") and self._wants_integers(user):
                return True
            if user.name == "qmatmul" and self.width < 32 and not self._weight(user.inputs[1].value).layout.dense:
                return True
        return False

    # ----- views -----
    def _lower_reshape(self, node: Node) -> View:
        value: View = self._values[node.inputs[0]]
        return value.reshape(tuple(node.shape))

    def _lower_transpose(self, node: Node) -> View:
        value: View = self._values[node.inputs[0]]
        return value.transpose(tuple(node.attrs["permutation"]))

    def _lower_position_rows(self, node: Node) -> _Rows:
        return _Rows(self._values[node.inputs[0]])

    def _lower_last_token(self, node: Node) -> _Last:
        return _Last(self._values[node.inputs[0]])

    # ----- kernels -----
    def _lower_embedding(self, node: Node) -> View:
        weight = self._weight(node.inputs[1].value)
        out = self._buffer(weight.n_columns)
        spec = KernelSpec.of("matmul", rows=True, **weight.kernel_params())
        args: list[int | Buffer] = [int(weight.data.ctypes.data), 0, weight.units, weight.data.shape[1], int(self.ids.ctypes.data), 8]
        args += [out, out.row_bytes, self._register_address, 0, 0, 0, 0]
        self._emit(spec, args, [], [out], "embedding")
        return View.of_rows(out, self.tokens, weight.n_columns)

    def _lower_rms_norm(self, node: Node) -> View:
        source = self._values[node.inputs[0]]
        x = source.x if isinstance(source, _Last) else source
        weight = node.operand("weight")
        if not x.is_rows() or weight is None or node.operand("bias") is not None:
            raise ContextMismatch(f"plan: rms_norm: expected rows with a weight and no bias, got shape {node.shape}")
        columns = x.shape[2]
        out = self._buffer(columns)
        integers = self._wants_integers(node)
        twin = self._twin(out) if integers else None
        spec = KernelSpec.of("quantize", norm=True, width=self.width if integers else 32)
        args: list[int | Buffer] = [x.buffer, x.buffer.row_bytes, out, out.row_bytes, -(-columns // UNIT), self._register_address]
        args += [self._vector(weight.value, columns), 0, twin or 0, twin.row_bytes if twin else 0, _bits(node.attrs["eps"]), columns]
        self._emit(spec, args, [x.buffer], [b for b in (out, twin) if b], "rms_norm")
        view = View.of_rows(out, self.tokens, columns)
        return _Last(view) if isinstance(source, _Last) else view  # type: ignore[return-value]

    def _lower_gated_silu(self, node: Node) -> View:
        gate, up = (self._values[i] for i in node.inputs)
        columns = node.shape[2]
        integers = self._wants_integers(node)
        out = self._buffer(columns)
        twin = self._twin(out) if integers else None
        spec = KernelSpec.of("quantize", gate="silu", width=self.width if integers else 32)
        a, b = gate.buffer, up.buffer
        args: list[int | Buffer] = [a, a.row_bytes, out, out.row_bytes, -(-columns // UNIT), self._register_address, b, b.row_bytes]
        args += [twin or 0, twin.row_bytes if twin else 0, 0, 0]
        self._emit(spec, args, [a, b], [b for b in (out, twin) if b], "gated_silu")
        return View.of_rows(out, self.tokens, columns)

    def _lower_qmatmul(self, node: Node) -> View:
        bias, residual, target, taken_over = None, None, node, list[Node]()
        # A sum with a bias, then with a value that is already there, is taken over by the product.
        for _ in range(2):
            users = self._users.get(target, [])
            if len(users) != 1 or users[0].name != "add":
                break
            other = next((i for i in users[0].inputs if i is not target), target)
            if other.is_capture and len(other.shape) == 1 and bias is None and residual is None:
                bias = other.value
            elif residual is None and isinstance(self._values.get(other), View) and other.shape == node.shape:
                residual = self._values[other]
            else:
                break
            target = users[0]
            taken_over.append(target)
        result = self._product(node, bias, residual)
        self._values.update(dict.fromkeys(taken_over, result))
        return result

    def _product(self, node: Node, bias: Any, residual: View | None) -> View:
        source = self._values[node.inputs[0]]
        last = isinstance(source, _Last)
        x: View = source.x if isinstance(source, _Last) else source
        weight = self._weight(node.inputs[1].value)
        dense = bool(weight.layout.dense)
        if not x.is_rows():
            raise ContextMismatch(f"plan: qmatmul: expected rows, got strides {x.strides} for shape {x.shape}")
        width = 32 if dense else self.width
        rows = self._quantised_rows(x) if width < 32 else x.buffer
        out = self._buffer(weight.n_rows, self.all_rows if last else None)
        spec = KernelSpec.of("matmul", width=width, tile=product_tile(width), **weight.kernel_params())
        groups = weight.data.shape[0]
        args: list[int | Buffer] = [int(weight.data.ctypes.data), groups, weight.units, weight.data.shape[1], rows, rows.row_bytes]
        args += [out, out.row_bytes, self._register_address, int(last), self._vector(bias, 16 * groups) if bias is not None else 0]
        args += [*([residual.buffer, residual.buffer.row_bytes] if residual else [0, 0]), 0]
        reads = [rows, *([residual.buffer] if residual else [])]
        product = self._emit(spec, args, reads, [out], f"matmul {weight.name}")
        product.bytes_read, product.next_word = weight.nbytes, len(args) - 1
        return View.of_rows(out, self.all_rows if last else self.tokens, weight.n_rows)

    def _lower_add(self, node: Node) -> View:
        raise UnsupportedDType(f"plan: add: expected a sum that follows a product, got shape {node.shape}")

    def _lower_rope(self, node: Node) -> _Rotated:
        x, cos, sin = (self._values[i] for i in node.inputs)
        return _Rotated(x, cos.table, sin.table, False)

    def _lower_rope_i(self, node: Node) -> _Rotated:
        x, cos, sin = (self._values[i] for i in node.inputs)
        return _Rotated(x, cos.table, sin.table, True)

    def _lower_kv_append(self, node: Node) -> _Appended:
        k, v = (self._values[i] for i in node.inputs)
        return _Appended(k, v, node.attrs["layer"])

    def _lower_kv_keys(self, node: Node) -> Any:
        return self._values[node.inputs[0]]

    _lower_kv_values = _lower_kv_keys

    def _lower_sdpa(self, node: Node) -> View:
        query, appended = self._values[node.inputs[0]], self._values[node.inputs[1]]
        rotated = isinstance(query, _Rotated)
        q: View = query.x if isinstance(query, _Rotated) else query
        k: View = appended.k.x if isinstance(appended.k, _Rotated) else appended.k
        v: View = appended.v
        _, heads, _, dim = q.shape
        kv_heads = k.shape[1]
        attrs = node.attrs
        supported = attrs["causal"] and attrs["softcap"] == 1.0 and len(node.inputs) == 3 and rotated == isinstance(appended.k, _Rotated)
        if not supported or not (q.is_heads() and k.is_heads() and v.is_heads()):
            raise ContextMismatch(f"plan: sdpa: expected causal attention over rows of heads, got {dim}, {dict(attrs)}")
        cache = self.cache.layers[appended.layer]
        args: list[int | Buffer] = [q.buffer, k.buffer, v.buffer, *(b.buffer.row_bytes for b in (q, k, v))]
        args += [int(cache.ctypes.data), self.cache.part_stride, heads, kv_heads, dim, dim if rotated else 0]
        tables = [query.cos, query.sin] if isinstance(query, _Rotated) else []
        self._keep.extend(tables)
        args += [*(int(t.ctypes.data) for t in tables), *([0, 0] if not tables else []), self._register_address]
        interleaved = isinstance(query, _Rotated) and query.interleaved
        append = KernelSpec.of("attention", part="append", kv=self.cache.kv, interleaved=interleaved)
        self._emit(append, list(args), [k.buffer, v.buffer], [q.buffer, k.buffer, cache], "rope, append")
        out = self._buffer(heads * dim)
        group = attention_group(heads, kv_heads)
        scratch = Buffer(self.n_threads, attention_scratch_bytes(dim, group, self.tokens))
        parts = Buffer(1, attention_part_bytes(dim, heads, self.cache.capacity))
        scale = dim**-0.5 if attrs["scale"] is None else attrs["scale"]
        args += [out, out.row_bytes, _bits(scale), scratch, scratch.row_bytes, parts]
        attend = KernelSpec.of("attention", part="attend", kv=self.cache.kv, group=group)
        self._emit(attend, args, [q.buffer, cache], [out, scratch, parts], "sdpa")
        self._emit(KernelSpec.of("attention", part="merge", group=group), list(args), [parts], [out], "sdpa, merge")
        view = View(out, (1, heads, self.tokens, dim), (out.rows * out.row_bytes, 4 * dim, out.row_bytes, 4))
        return view


def _bits(value: float) -> int:
    """A float32's bits, for an argument word."""
    return int(struct.unpack("<i", struct.pack("<f", value))[0])
