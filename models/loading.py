"""`load`: from a file, a folder or a name to a LanguageModel. The one place that knows all the parts."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..engine.errors import InvalidArgument, LlamitaError
from .language_model import LanguageModel

if TYPE_CHECKING:
    from ..loaders.chat_template import ChatTemplate
    from ..loaders.checkpoint import Checkpoint
    from ..loaders.tokenizer import Tokenizer
    from .session import DecoderSession

T = TypeVar("T")
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
    if on_progress is not None and not callable(on_progress):
        raise InvalidArgument(f"load: on_progress: expected something callable, got {on_progress!r}")
    n_ctx, n_threads = _count("n_ctx", n_ctx), _count("n_threads", n_threads)
    if activations is not None and _count("activations", activations) not in (8, 16, 32):
        raise InvalidArgument(f"load: activations: expected 8, 16 or 32, got {activations!r}")

    from ..loaders.checkpoint import open_checkpoint
    from ..loaders.library import DEFAULT_MODEL, resolve

    checkpoint = open_checkpoint(resolve(DEFAULT_MODEL if model is None else model, on_progress))
    decoder: DecoderSession | None = None
    try:
        metadata: Mapping[str, Any] = checkpoint.metadata
        reading = _InBackground(partial(read_tokenizer, checkpoint))  # while weights are packed without Python
        try:
            if checkpoint.tensor_names:
                from .session import build_decoder

                decoder = build_decoder(checkpoint, n_ctx=n_ctx, n_threads=n_threads, activations=activations, on_progress=on_progress)
        finally:
            tokenizer, problem = reading.result()
        return LanguageModel(
            decoder,
            tokenizer,
            _template(metadata, tokenizer),
            None if decoder is None else decoder.config,
            metadata,
            resources=(checkpoint,) if decoder is None else (decoder, checkpoint),
            tokenizer_problem=problem,
        )
    except BaseException:
        if decoder is not None:
            decoder.close()
        checkpoint.close()
        raise


class _InBackground(Generic[T]):
    """A call that a thread of its own carries out from now on."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="llamita-load", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        """What the call returns, or what it raises."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value


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


def read_tokenizer(checkpoint: Checkpoint) -> tuple[Tokenizer | None, LlamitaError | None]:
    """A checkpoint's tokenizer, or None and what is wrong with it."""
    from ..loaders.tokenizer import tokenizer_from_json, tokenizer_from_metadata

    metadata = checkpoint.metadata
    try:
        if checkpoint.tokenizer_json is None:
            return tokenizer_from_metadata(metadata), None
        keys = {f"{kind}_token_id": metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos")}
        keys |= {f"add_{kind}_token": metadata.get(f"tokenizer.ggml.add_{kind}_token") for kind in ("bos", "eos")}
        ends = metadata.get("tokenizer.eog_token_ids", keys["eos_token_id"])
        return tokenizer_from_json(checkpoint.tokenizer_json, {**keys, "eos_token_id": ends}), None
    except LlamitaError as error:  # ids still work without one
        return None, error


def _template(metadata: Mapping[str, Any], tokenizer: Tokenizer | None) -> ChatTemplate | None:
    source = metadata.get("tokenizer.chat_template")
    if tokenizer is None or not isinstance(source, str):
        return None
    from ..loaders.chat_template import ChatTemplate

    bos, eos = ("" if i is None else tokenizer.piece(i) for i in (tokenizer.bos_id, tokenizer.eos_id))
    return ChatTemplate(source, bos, eos)
