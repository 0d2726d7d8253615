"""`load`: from a file, a folder or a name to a LanguageModel. The one place that knows all the parts."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..engine.errors import InvalidArgument, LlamitaError
from .language_model import LanguageModel

if TYPE_CHECKING:
    from ..loaders.chat_template import ChatTemplate
    from ..loaders.tokenizer import Tokenizer

LoadProgress = Callable[[str, int, int], None]


def load(
    model: str | os.PathLike[str] | None = None,
    n_ctx: int | None = None,
    n_threads: int | None = None,
    activations: int | None = None,
    on_progress: LoadProgress | None = None,
) -> LanguageModel:
    """Opens a model; fetches it first if it is a name whose file is not in the cache yet.

    Args:
        model: a .gguf file (any shard of a split), a folder with safetensors, a library name or hf:owner/repo;
            without it the default model of the library.
        n_ctx: tokens that the context holds; default: the model's own, bounded by memory.
        n_threads: threads that compute; default: the cores that this process may use.
        activations: width in bits, 8, 16 or 32, that activations are rounded to before they meet quantised weights.
        on_progress: called with (stage, done, total) while something is fetched, compiled or packed.

    A file without a usable tokenizer loads, and calls that need text raise. A file that holds a vocabulary and no
    tensors loads, and calls that need weights raise.

    Raises:
        InvalidArgument: an argument is not acceptable.
        ModelNotFoundError, DownloadError: there is no such model, or it could not be fetched.
        CorruptFileError, UnsupportedModelError: the file is damaged, or of a kind that is not supported.
    """
    if model is not None and not isinstance(model, (str, os.PathLike)):
        raise InvalidArgument(f"load: model: expected a path or a name, got {model!r}")
    n_ctx, n_threads = _count("n_ctx", n_ctx), _count("n_threads", n_threads)
    if activations is not None and activations not in (8, 16, 32):
        raise InvalidArgument(f"load: activations: expected 8, 16 or 32, got {activations!r}")

    from ..loaders.checkpoint import open_checkpoint
    from ..loaders.library import DEFAULT_MODEL, resolve

    checkpoint = open_checkpoint(resolve(DEFAULT_MODEL if model is None else model, on_progress))
    try:
        metadata: Mapping[str, Any] = checkpoint.metadata
        reasons: dict[str, Exception] = {}
        tokenizer = _tokenizer(metadata, reasons)
        template = _template(metadata, tokenizer, reasons)
        if not checkpoint.tensor_names:
            return LanguageModel(None, tokenizer, template, None, metadata, resources=(checkpoint,), reasons=reasons)

        from .llama import build_decoder

        decoder = build_decoder(checkpoint, n_ctx=n_ctx, n_threads=n_threads, activations=activations, on_progress=on_progress)
        return LanguageModel(decoder, tokenizer, template, decoder.config, metadata, resources=(decoder, checkpoint), reasons=reasons)
    except BaseException:
        checkpoint.close()
        raise


def _count(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise InvalidArgument(f"load: {name}: expected an integer >= 1, got {value!r}")
    return number


def _tokenizer(metadata: Mapping[str, Any], reasons: dict[str, Exception]) -> Tokenizer | None:
    from ..loaders.tokenizer import tokenizer_from_metadata

    try:
        return tokenizer_from_metadata(metadata)
    except LlamitaError as error:  # ids still work without one
        reasons["tokenizer"] = error
        return None


def _template(metadata: Mapping[str, Any], tokenizer: Tokenizer | None, reasons: dict[str, Exception]) -> ChatTemplate | None:
    source = metadata.get("tokenizer.chat_template")
    if tokenizer is None or not isinstance(source, str):
        return None
    from ..loaders.chat_template import ChatTemplate

    bos, eos = ("" if i is None else tokenizer.piece(i) for i in (tokenizer.bos_id, tokenizer.eos_id))
    try:
        return ChatTemplate(source, bos, eos)
    except LlamitaError as error:  # text can still be continued without one
        reasons["template"] = error
        return None
