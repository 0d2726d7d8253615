"""llamita: small quantised LLaMA-family models on a CPU, from Python.

    import llamita

    with llamita.load() as llm:
        for chunk in llm.generate("Once upon a time", max_tokens=64):
            print(chunk.text, end="", flush=True)

Everything is imported when it is first used, so that `import llamita` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import layers as layers
    from . import quant as quant
    from .engine import ops as ops
    from .engine.errors import AxisOutOfBounds as AxisOutOfBounds
    from .engine.errors import ClosedError as ClosedError
    from .engine.errors import ContextMismatch as ContextMismatch
    from .engine.errors import ContextOverflowError as ContextOverflowError
    from .engine.errors import CorruptFileError as CorruptFileError
    from .engine.errors import DownloadError as DownloadError
    from .engine.errors import DTypeMismatch as DTypeMismatch
    from .engine.errors import DuplicateAxis as DuplicateAxis
    from .engine.errors import IndexOutOfRange as IndexOutOfRange
    from .engine.errors import InvalidArgument as InvalidArgument
    from .engine.errors import KernelError as KernelError
    from .engine.errors import LlamitaError as LlamitaError
    from .engine.errors import MissingGradient as MissingGradient
    from .engine.errors import ModelFileError as ModelFileError
    from .engine.errors import ModelNotFoundError as ModelNotFoundError
    from .engine.errors import NotContiguous as NotContiguous
    from .engine.errors import OpError as OpError
    from .engine.errors import RankMismatch as RankMismatch
    from .engine.errors import ShapeMismatch as ShapeMismatch
    from .engine.errors import TemplateError as TemplateError
    from .engine.errors import TokenizerError as TokenizerError
    from .engine.errors import UnsupportedDType as UnsupportedDType
    from .engine.errors import UnsupportedModelError as UnsupportedModelError
    from .engine.generation import Timings as Timings
    from .engine.generation import Usage as Usage
    from .models.language_model import LanguageModel as LanguageModel
    from .models.loading import load as load
    from .models.results import Chunk as Chunk
    from .models.results import Completion as Completion

    __version__: str

_ERRORS = (
    *("LlamitaError", "ModelFileError", "ModelNotFoundError", "CorruptFileError", "UnsupportedModelError", "DownloadError"),
    *("TokenizerError", "TemplateError", "ContextOverflowError", "KernelError", "ClosedError"),
    *("OpError", "UnsupportedDType", "DTypeMismatch", "ShapeMismatch", "RankMismatch", "AxisOutOfBounds", "DuplicateAxis"),
    *("InvalidArgument", "IndexOutOfRange", "ContextMismatch", "NotContiguous", "MissingGradient"),
)
_HOMES = {
    "load": ".models.loading",
    "LanguageModel": ".models.language_model",
    "Chunk": ".models.results",
    "Completion": ".models.results",
    "Usage": ".engine.generation",
    "Timings": ".engine.generation",
    **dict.fromkeys(_ERRORS, ".engine.errors"),
}
_ROOMS = {"ops": ".engine.ops", "layers": ".layers", "quant": ".quant"}

__all__ = [*_HOMES, *_ROOMS, "__version__"]


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("llamita")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0+unknown"


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name], __name__), name)
    elif name in _ROOMS:
        value = import_module(_ROOMS[name], __name__)
    elif name == "__version__":
        value = _version()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
