"""The Python blocks of the documentation run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llamita.engine.ops.dispatch import OPS

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("page", ["adding-an-op.md"])
def test_python_blocks_run(page):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)
    assert blocks
    before = set(OPS)
    scope: dict[str, object] = {"__name__": "docs"}
    try:
        for block in blocks:
            exec(block, scope)
    finally:
        for name in set(OPS) - before:  # what a page defines is its own
            del OPS[name]
