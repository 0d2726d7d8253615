"""The header of a GGUF file: version, metadata, tensor table.

    magic "GGUF" | version u32 | tensors u64 | keys u64
    keys    x (key string, type u32, value)            string = length u64 + UTF-8; array = type u32 + count u64 + values
    tensors x (name string, rank u32, extents u64 ..., GGML type u32, offset u64)
    padding to general.alignment, then the tensors' data

Everything is little-endian. Every count and length is compared with the bytes that are left before anything is made from it,
so damaged or hostile bytes end in CorruptFileError. Arrays are only walked here; `Metadata` decodes them when somebody asks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from mmap import mmap
from typing import Any, NoReturn, TypeAlias

import numpy as np

from ..engine.errors import CorruptFileError, UnsupportedModelError

Buffer: TypeAlias = "bytes | mmap"

MAX_NESTING = 64
MAX_RANK = 4
MAX_NAME = 255
DEFAULT_ALIGNMENT = 32

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS = {
    code: struct.Struct("<" + letter)
    for code, letter in {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d"}.items()
}
_MIN_KEY_BYTES = 8 + 4 + 1  # empty key, type, smallest value
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # empty name, rank, one extent, type, offset


@dataclass(frozen=True)
class RawTensor:
    """A line of the tensor table as it stands there; extents already reversed to row-major. The offset counts from `Header.data_start`."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    at: int  # where this line starts in the file, for messages


@dataclass(frozen=True)
class Header:
    """A parsed header. `data_start` is the aligned position of the first tensor."""

    version: int
    metadata: Metadata
    tensors: list[RawTensor]
    alignment: int
    data_start: int


@dataclass(frozen=True)
class _LazyArray:
    type_code: int
    count: int
    start: int


class Metadata(Mapping[str, Any]):
    """The key-value pairs of a header: bool, int, float, str, and arrays (list of str, NumPy array, list of those if nested).

    Arrays are decoded on first access and kept. The mapping owns a copy of the header's bytes: it outlives the file.
    Bytes of a string value that are not UTF-8 become U+FFFD.
    """

    def __init__(self, values: dict[str, Any], header: bytes) -> None:
        self._values = values
        self._header = header

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, _LazyArray):
            value, _ = _decode_array(self._header, value.type_code, value.count, value.start)
            self._values[key] = value
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __repr__(self) -> str:
        return f"Metadata({len(self)} keys)"


def read_header(data: Buffer, label: str) -> Header:
    """Parse and check the header of a GGUF file that starts at data[0] and is len(data) bytes long. `label` names it in messages."""
    cursor = _Cursor(data, label)
    version = _read_version(cursor)
    n_tensors, n_keys = cursor.u64("tensor count"), cursor.u64("metadata count")
    cursor.need(n_keys * _MIN_KEY_BYTES, f"{n_keys} metadata keys")
    values: dict[str, Any] = {}
    for _ in range(n_keys):
        key = cursor.name("metadata key")
        if key in values:
            cursor.fail(f"metadata key: expected each key once, got {key!r} again")
        values[key] = _read_value(cursor, key)
    cursor.need(n_tensors * _MIN_TENSOR_BYTES, f"{n_tensors} tensors")
    tensors = [_read_tensor(cursor) for _ in range(n_tensors)]
    _check_names(cursor, tensors)
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        cursor.fail(f"general.alignment: expected a power of two, got {alignment if type(alignment) is int else type(alignment).__name__}")
    data_start = -(-cursor.at // alignment) * alignment
    return Header(version, Metadata(values, data[: cursor.at]), tensors, alignment, data_start)


class _Cursor:
    """A position in the file. Every step first checks that the bytes are there."""

    def __init__(self, data: Buffer, label: str) -> None:
        self.data = data
        self.size = len(data)
        self.label = label
        self.at = 0

    def fail(self, what: str, at: int | None = None) -> NoReturn:
        where = self.at if at is None else at
        raise CorruptFileError(f"{self.label}: {what} [offset {where}]; the file is damaged or incomplete, download it again")

    def need(self, n: int, what: str) -> None:
        """Fail unless `n` more bytes are left."""
        if n > self.size - self.at:
            self.fail(f"{what}: expected {n} more bytes, got {self.size - self.at}")

    def take(self, form: struct.Struct, what: str) -> Any:
        if form.size > self.size - self.at:
            self.need(form.size, what)
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return value

    def u32(self, what: str) -> int:
        return int(self.take(_U32, what))

    def u64(self, what: str) -> int:
        return int(self.take(_U64, what))

    def raw(self, what: str) -> bytes:
        """A string's bytes."""
        n = self.u64(f"length of {what}")
        self.need(n, what)
        start, self.at = self.at, self.at + n
        return self.data[start : self.at]

    def name(self, what: str) -> str:
        """A string that names something: short, printable UTF-8, so that messages can quote it."""
        start = self.at
        raw = self.raw(what)
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"{what}: expected UTF-8, got byte 0x{raw[error.start]:02x}", start)
        if not name.isprintable() or not 0 < len(name) <= MAX_NAME:
            self.fail(f"{what}: expected 1 to {MAX_NAME} printable characters, got {len(name)}: {name[:40]!r}", start)
        return name


def _read_version(cursor: _Cursor) -> int:
    magic = bytes(cursor.data[:4])
    if magic != b"GGUF":
        _refuse_magic(cursor, magic)
    cursor.at = 4
    version = cursor.u32("version")
    if version in (2, 3):
        return version
    if version and version & 0xFFFF == 0:
        raise UnsupportedModelError(f"{cursor.label}: byte order: expected little-endian, got a big-endian GGUF file; convert it again")
    raise UnsupportedModelError(f"{cursor.label}: GGUF version: expected 2 or 3, got {version}; convert the model again or update llamita")


def _refuse_magic(cursor: _Cursor, magic: bytes) -> NoReturn:
    head = bytes(cursor.data[:64])
    if magic in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
        raise UnsupportedModelError(f"{cursor.label}: file format: expected GGUF, got its predecessor GGML; convert the model again")
    if head.startswith(b"version https://git-lfs"):
        what = "a Git LFS pointer instead of the file; run `git lfs pull` or download it"
    elif b"GGUF".startswith(magic):
        what = f"only {len(magic)} bytes; download it again"
    elif head.lstrip()[:1] == b"<":
        what = "a web page; check the address it was downloaded from"
    else:
        what = f"{magic!r} at its start; this is no GGUF model, check the path"
    raise CorruptFileError(f"{cursor.label}: file format: expected a GGUF file, got {what} [offset 0]")


def _read_value(cursor: _Cursor, key: str) -> Any:
    """One metadata value; an array comes back as a _LazyArray, its bytes walked and checked."""
    type_code = cursor.u32(f"type of {key}")
    if type_code == _STRING:
        return cursor.raw(key).decode("utf-8", "replace")
    if type_code == _ARRAY:
        return _walk_array(cursor, key, 1)
    form = _SCALARS.get(type_code)
    if form is None:
        cursor.fail(f"type of {key}: expected 0 to 12, got {type_code}", cursor.at - 4)
    value = cursor.take(form, key)
    return bool(value) if type_code == _BOOL else value


def _walk_array(cursor: _Cursor, key: str, depth: int) -> _LazyArray:
    if depth > MAX_NESTING:
        cursor.fail(f"{key}: expected arrays nested at most {MAX_NESTING} deep, got more")
    type_code, count = cursor.u32(f"element type of {key}"), cursor.u64(f"element count of {key}")
    start = cursor.at
    if type_code == _STRING:
        cursor.need(count * 8, f"{count} strings of {key}")
        _walk_strings(cursor, key, count)
    elif type_code == _ARRAY:
        cursor.need(count * 12, f"{count} arrays of {key}")
        for _ in range(count):
            _walk_array(cursor, key, depth + 1)
    elif type_code in _SCALARS:
        nbytes = count * _SCALARS[type_code].size
        cursor.need(nbytes, f"{count} elements of {key}")
        cursor.at += nbytes
    else:
        cursor.fail(f"element type of {key}: expected 0 to 12, got {type_code}", start - 12)
    return _LazyArray(type_code, count, start)


def _walk_strings(cursor: _Cursor, key: str, count: int) -> None:
    # A vocabulary has up to a few hundred thousand strings: this loop is most of the time that a header takes.
    at, last, data, unpack = cursor.at, cursor.size - 8, cursor.data, _U64.unpack_from
    for _ in range(count):
        if at > last:
            cursor.fail(f"strings of {key}: expected {count}, got the end of the file", at)
        at += 8 + unpack(data, at)[0]
    if at > cursor.size:
        cursor.fail(f"last string of {key}: expected it to end by {cursor.size}, got {at}")
    cursor.at = at


def _decode_array(header: bytes, type_code: int, count: int, at: int) -> tuple[Any, int]:
    """A walked array and the position behind it."""
    if type_code == _STRING:
        strings, unpack = [], _U64.unpack_from
        for _ in range(count):
            start = at + 8
            at = start + unpack(header, at)[0]
            strings.append(header[start:at].decode("utf-8", "replace"))
        return strings, at
    if type_code == _ARRAY:
        arrays = []
        for _ in range(count):
            inner_type, inner_count = _U32.unpack_from(header, at)[0], _U64.unpack_from(header, at + 4)[0]
            inner, at = _decode_array(header, inner_type, inner_count, at + 12)
            arrays.append(inner)
        return arrays, at
    dtype = np.dtype(_SCALARS[type_code].format)
    flat = np.frombuffer(header, dtype, count, at) if count else np.empty(0, dtype)
    return (flat.astype(np.bool_) if type_code == _BOOL else flat), at + count * dtype.itemsize


def _read_tensor(cursor: _Cursor) -> RawTensor:
    at = cursor.at
    name = cursor.name("tensor name")
    rank = cursor.u32(f"rank of tensor {name}")
    if not 1 <= rank <= MAX_RANK:
        cursor.fail(f"rank of tensor {name}: expected 1 to {MAX_RANK}, got {rank}", at)
    extents = [cursor.u64(f"extent of tensor {name}") for _ in range(rank)]
    if 0 in extents:
        cursor.fail(f"extents of tensor {name}: expected all above 0, got {extents}", at)
    type_id, offset = cursor.u32(f"type of tensor {name}"), cursor.u64(f"offset of tensor {name}")
    return RawTensor(name, tuple(reversed(extents)), type_id, offset, at)


def _check_names(cursor: _Cursor, tensors: list[RawTensor]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            cursor.fail(f"tensor names: expected each once, got {tensor.name!r} again", tensor.at)
        seen.add(tensor.name)
