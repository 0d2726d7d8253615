"""What every layer is: a forward pass, and the same pass in a form that gradients can go through."""

from __future__ import annotations

from typing import Any

from ..engine import ops


class Layer:
    """A part of a model. Subclasses define `forward`; `forward_diff` follows from it.

    Shape letters: B batch, T new tokens, S cached length, H heads, K kv heads, D head dim, C hidden, F ffn, V vocabulary.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's result: fused kernels where nothing is tracked, composites otherwise. No gradient is ever lost."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def forward_diff(self, *args: Any, **kwargs: Any) -> Any:
        """The differentiable spelling of `forward`: always composites, for any layout; slower."""
        with ops.composites_only():
            return self.forward(*args, **kwargs)
