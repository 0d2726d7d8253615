"""The sequence as a traced decoder sees it: positions and cache are registers, read when the plan runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..faces.graph import Graph


class PlanPast:
    """Records what depends on the position as special nodes of a plan graph.

    rows -> "position_rows", append -> "kv_append" and "kv_keys" / "kv_values", last -> "last_token".
    """

    def __init__(self, graph: Graph, capacity: int):
        self._graph, self._capacity = graph, capacity

    def rows(self, table: NDArray[np.float32], n_tokens: int) -> Any:
        """A symbol for the rows of the new tokens' positions."""
        return self._graph.emit("position_rows", [table], {}, (n_tokens, table.shape[1]), np.float32, effect=False)

    def append(self, layer: int, k: Any, v: Any) -> tuple[Any, Any]:
        """Symbols for a layer's whole cache."""
        batch, heads, _, dim = k.shape
        written = self._graph.emit("kv_append", [k, v], {"layer": layer}, (), np.float32)
        shape = (batch, heads, self._capacity, dim)
        keys, values = (
            self._graph.emit(name, [written], {"layer": layer}, shape, np.float32, effect=False) for name in ("kv_keys", "kv_values")
        )
        return keys, values

    def last(self, x: Any) -> Any:
        """A symbol for the last token's row (or all rows, when the run says so)."""
        return self._graph.emit("last_token", [x], {}, (x.shape[0], 1, x.shape[2]), np.float32, effect=False)
