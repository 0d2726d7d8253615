"""What `import llamita` offers, and what it costs."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import llamita
from llamita.engine import errors


def test_every_name_exists() -> None:
    for name in llamita.__all__:
        assert getattr(llamita, name) is not None
    assert set(llamita.__all__) <= set(dir(llamita))
    assert len(set(llamita.__all__)) == len(llamita.__all__)


def test_every_error_is_exported() -> None:
    names = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert names <= set(llamita.__all__)
    assert all(issubclass(getattr(llamita, name), llamita.LlamitaError) for name in names)


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = llamita.lode


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_import_brings_nothing_along() -> None:
    heavy = "{'numpy', 'numba', 'llvmlite', 'gguf', 'jinja2', 'tokenizers', 'huggingface_hub', 'typer', 'logging', 'llamita.engine'}"
    assert run(f"import sys, llamita; print(sorted({heavy} & set(sys.modules)))").strip() == "[]"


def test_the_language_model_brings_no_compiler_along() -> None:
    heavy = "{'numba', 'llvmlite', 'gguf', 'jinja2', 'tokenizers', 'huggingface_hub', 'typer'}"
    assert run(f"import sys, llamita; llamita.LanguageModel, llamita.load; print(sorted({heavy} & set(sys.modules)))").strip() == "[]"


def test_the_rooms_are_attributes() -> None:
    code = "import llamita; print(llamita.ops.__name__, llamita.layers.__name__, llamita.quant.__name__, llamita.__version__)"
    assert run(code).split()[:3] == ["llamita.engine.ops", "llamita.layers", "llamita.quant"]
