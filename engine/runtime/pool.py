"""The buffer pool: outputs of ops reuse storage, so that steady work faults no new pages in.

    with pool.output((64, 1024), np.dtype(np.float32)) as guard:
        kernel(guard.address)                               # writes every element; nobody else sees the storage
        y = guard.finish()                                  # an array; its storage returns when its last view is gone

Storage is never cleared. It returns by a weak reference to the array, whose callback never waits: finalizers may run
anywhere, also inside this module while it holds its lock.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from .arrays import address_of

ENV_LIMIT = "LLAMITA_POOL_LIMIT"
DEFAULT_LIMIT = 100 * 2**20
SMALLEST = 2**15  # bytes; below, the C library's allocator is faster than any pool and touches no new pages
_ALIGNMENT = 64

Array = np.ndarray[Any, np.dtype[Any]]


class _Storage(np.ndarray[Any, Any]):
    """Bytes that own their memory. A subclass, so that NumPy makes views of an output hold the output, not these bytes."""

    __slots__ = ("address", "capacity", "key", "lease", "offset", "pool")
    address: int  # of the first aligned byte
    offset: int  # where that byte is
    capacity: int
    key: np.dtype[Any]
    pool: weakref.ref[BufferPool]
    lease: _Lease | None


class _Lease(weakref.ref[Any]):
    """A weak reference to the array that uses a storage."""

    __slots__ = ("storage",)
    storage: _Storage


def _allocate(nbytes: int, key: np.dtype[Any], pool: weakref.ref[BufferPool]) -> _Storage:
    storage: _Storage = _Storage((nbytes + _ALIGNMENT,), np.uint8)
    start = address_of(storage)
    storage.offset = -start % _ALIGNMENT
    storage.address = start + storage.offset
    storage.capacity, storage.key, storage.pool = nbytes, key, pool
    return storage


def _return(lease: Any) -> None:
    """The array is gone. Storage of a pool that is gone too is simply freed."""
    storage = lease.storage
    storage.lease = None  # the two held each other
    pool = storage.pool()
    if pool is not None:
        pool._receive(storage)


class _Shelf:
    """Idle storage of one dtype, sorted by capacity."""

    def __init__(self) -> None:
        self.capacities: list[int] = []
        self.storages: list[_Storage] = []

    def put(self, storage: _Storage) -> None:
        at = bisect_left(self.capacities, storage.capacity)
        self.capacities.insert(at, storage.capacity)
        self.storages.insert(at, storage)

    def take(self, nbytes: int) -> _Storage | None:
        """The smallest one that holds `nbytes`."""
        at = bisect_left(self.capacities, nbytes)
        if at == len(self.capacities):
            return None
        del self.capacities[at]
        return self.storages.pop(at)


@dataclass(frozen=True)
class PoolStats:
    """What a pool holds and has done.

    Attributes:
        buffers, capacity_bytes: idle storage that it retains.
        hits, misses: outputs that found storage, and those that had to allocate.
        evictions: buffers let go to stay under the limit; one larger than the limit is refused and not counted.
    """

    buffers: int
    capacity_bytes: int
    hits: int
    misses: int
    evictions: int


class OutputGuard:
    """A result under construction: nobody else sees it before `finish`. Dropping the guard returns the storage."""

    __slots__ = ("_array", "address")

    def __init__(self, array: Array, address: int) -> None:
        self._array: Array | None = array
        self.address = address

    def __enter__(self) -> OutputGuard:
        return self

    def __exit__(self, *exc: object) -> None:
        self._array = None

    @property
    def array(self) -> Array:
        """The storage as an array, to be filled."""
        if self._array is None:
            raise InvalidArgument("pool: output: expected an open guard, got one that was finished or left")
        return self._array

    def finish(self) -> Array:
        """Every element has been written: the array may be seen."""
        array, self._array = self._array, None
        if array is None:
            raise InvalidArgument("pool: output: expected an open guard, got one that was finished or left")
        return array


class BufferPool:
    """Idle storage by dtype and capacity. Thread-safe; storage may come back at any moment, even during a checkout.

    Args:
        limit: idle bytes to retain; None: the environment variable LLAMITA_POOL_LIMIT, or 100 MiB where that is unset or
            no number >= 0. 0 retains nothing.
        poison: fill storage with NaN (1 where there is none) before handing it out, to expose unwritten elements.
        smallest: outputs of fewer bytes come from NumPy's allocator.

    Raises:
        InvalidArgument: a negative limit, or no integer.
    """

    def __init__(self, limit: int | None = None, poison: bool = False, smallest: int = SMALLEST) -> None:
        self._limit = _limit_from_environment() if limit is None else valid_limit(limit)
        self._poison, self._smallest = poison, max(1, smallest)
        self._shelves: dict[np.dtype[Any], _Shelf] = {}
        self._lock = threading.Lock()
        self._returned: deque[_Storage] = deque()  # not yet on a shelf
        self._weak = weakref.ref(self)
        self._idle = self._hits = self._misses = self._evictions = 0

    # ----- taking -----
    def output(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> OutputGuard:
        """Row-major storage with undefined contents; from the pool, it starts on a cache line."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < self._smallest:
            array: Array = np.empty(shape, dtype)
            address = address_of(array)
        else:
            storage = self._take(nbytes, dtype)
            array, address = np.ndarray(shape, dtype, storage, storage.offset), storage.address
            storage.lease = lease = _Lease(array, _return)
            lease.storage = storage
        if self._poison:
            array[...] = np.nan if dtype.kind in "fc" else np.ones((), dtype)
        return OutputGuard(array, address)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """The array itself, for callers that write every element before they let anybody see it."""
        return np.empty(shape, dtype) if self._is_plain(shape, dtype) else self.output(shape, dtype).finish()

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], Array]:
        """`empty` with its choice made once."""
        return partial(np.empty, shape, dtype) if self._is_plain(shape, dtype) else partial(self.empty, shape, dtype)

    def _is_plain(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
        """Whether NumPy's allocator serves: a guard would only cost time."""
        return math.prod(shape) * dtype.itemsize < self._smallest and not self._poison

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A cleared array, for results that are read before they are written."""
        array = self.empty(shape, dtype)
        array[...] = np.zeros((), dtype)
        return array

    def _take(self, nbytes: int, dtype: np.dtype[Any]) -> _Storage:
        with self._lock:
            shelf = self._shelves.get(dtype)
            storage = shelf.take(nbytes) if shelf is not None else None
            if storage is None:
                self._misses += 1
            else:
                self._hits += 1
                self._idle -= storage.capacity
        if self._returned:
            self._settle()
        return storage if storage is not None else _allocate(nbytes, dtype, self._weak)

    # ----- giving back -----
    def _receive(self, storage: _Storage) -> None:
        if storage.capacity <= self._limit:
            self._returned.append(storage)
            self._settle()

    def _settle(self) -> None:
        """Put away what has returned, unless somebody holds the lock: they settle when they have released it."""
        while self._returned and self._lock.acquire(blocking=False):
            try:
                self._put_away()
            finally:
                self._lock.release()

    def _put_away(self) -> None:
        """Returned storage onto its shelf, then down to the limit. The lock is held."""
        while self._returned:
            storage = self._returned.popleft()
            if storage.capacity <= self._limit:  # one that can never fit must not push the others out first
                if storage.key not in self._shelves:
                    self._shelves[storage.key] = _Shelf()
                self._shelves[storage.key].put(storage)
                self._idle += storage.capacity
        while self._idle > self._limit:
            shelf = min((shelf for shelf in self._shelves.values() if shelf.storages), key=lambda shelf: shelf.capacities[0])
            evicted = shelf.take(0)
            self._idle -= evicted.capacity if evicted is not None else 0
            self._evictions += 1

    # ----- control -----
    @property
    def limit(self) -> int:
        """Idle bytes to retain; lowering it evicts at once."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._lock:
            self._limit = valid_limit(limit)
            self._put_away()
        self._settle()

    @property
    def stats(self) -> PoolStats:
        """What is idle now, and the counts since the pool was made."""
        with self._lock:
            self._put_away()
            buffers = sum(len(shelf.storages) for shelf in self._shelves.values())
            stats = PoolStats(buffers, self._idle, self._hits, self._misses, self._evictions)
        self._settle()
        return stats

    def clear(self) -> None:
        """Free everything idle; arrays in use are not touched, and return when they are dropped."""
        with self._lock:
            self._put_away()
            self._shelves.clear()
            self._idle = 0
        self._settle()


def valid_limit(limit: int) -> int:
    """The limit. Raises InvalidArgument if it is no number of bytes."""
    if isinstance(limit, bool) or not isinstance(limit, (int, np.integer)) or limit < 0:
        raise InvalidArgument(f"pool: invalid argument limit: expected a number of bytes >= 0, got {limit!r}")
    return int(limit)


def _limit_from_environment() -> int:
    """The environment's limit; what is no valid number counts as not set."""
    try:
        return valid_limit(int(os.environ[ENV_LIMIT]))
    except (KeyError, ValueError, InvalidArgument):
        return DEFAULT_LIMIT
