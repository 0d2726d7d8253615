"""Switches that a block of code turns on for everything called inside it (context variables, so per thread and task)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

composites_forced: ContextVar[bool] = ContextVar("composites_forced", default=False)
grad_recording: ContextVar[bool] = ContextVar("grad_recording", default=True)


@contextmanager
def _switched(variable: ContextVar[bool], value: bool) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def composites_only() -> Iterator[None]:
    """Inside, no fused kernel is asked for: every op takes its composite (differentiable, slower)."""
    with _switched(composites_forced, True):
        yield


@contextmanager
def no_grad() -> Iterator[None]:
    """Inside, the eager face records nothing: results are untracked and fused kernels may serve tracked operands."""
    with _switched(grad_recording, False):
        yield
