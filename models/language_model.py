"""LanguageModel: text in, text out, over a decoder, a tokenizer and a chat template that somebody else has made."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from ..engine.errors import ClosedError, InvalidArgument, TemplateError, TokenizerError, UnsupportedModelError
from ..engine.generation import Progress, SamplingParams, StopMatcher, TokenGeneration, TokenModel, generate_tokens
from ..engine.generation.loop import check_context, checked_ids, evaluate
from .chat import Message, checked_messages, fit
from .results import Chunk, Completion
from .turns import Turns

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..loaders.chat_template import ChatTemplate
    from ..loaders.tokenizer import Tokenizer

logger = logging.getLogger("llamita")
logger.addHandler(logging.NullHandler())  # a library prints nothing unless it is asked to

_CONTEXT_IDS = 8  # of the prompt that the detokeniser sees first: more than one character's bytes can spread over


class Closable(Protocol):
    """Something to close with the model."""

    def close(self) -> object:
        """Gives back what it holds."""


class GenerationOptions(TypedDict, total=False):
    """Keyword arguments of `generate`, `chat` and `complete`; `SamplingParams` explains all but the last two.

    stop            a string or several that end the generation; they are looked for in the text and not part of it
    on_progress     called with (done, total) prompt tokens during a long prompt; an exception from it cancels
    """

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    seed: int | None
    logprobs: int
    ignore_eos: bool
    stop: str | Sequence[str]
    on_progress: Progress | None


class LanguageModel:
    """A model with its tokenizer and chat template. Use `load` to get one, and `close` or a `with` block to give it back.

    Calls from several threads take turns: a generation keeps the model until it ends, is closed, or rests for a second.
    What was evaluated stays in the cache, and the next call evaluates only what differs.
    """

    def __init__(
        self,
        decoder: TokenModel | None,
        tokenizer: Tokenizer | None = None,
        template: ChatTemplate | None = None,
        config: Any = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        resources: Sequence[Closable] = (),
        tokenizer_problem: Exception | None = None,
    ) -> None:
        """Args:
        decoder: evaluates tokens; None for a file that holds a vocabulary only.
        tokenizer, template: None where the file has none that can be used.
        config, metadata: what the properties of that name return.
        resources: closed with the model, in this order.
        tokenizer_problem: why there is no tokenizer, for the error that says so.
        """
        self._decoder, self._tokenizer, self._template = decoder, tokenizer, template
        self._metadata: Mapping[str, Any] = {} if metadata is None else metadata
        self.config: Any = config
        """A frozen dataclass: the architecture's sizes and numbers. None for a vocabulary-only file."""
        self._resources, self._tokenizer_problem = tuple(resources), tokenizer_problem
        self._turns = Turns()
        self._closed = False

    # ---- text -> text

    def generate(self, prompt: str | Sequence[int], *, parse_special: bool = True, **options: Unpack[GenerationOptions]) -> Iterator[Chunk]:
        """Continues `prompt`, a text or token ids; an iterator of `Chunk`s, one a token. Closing it stops the work.

        A text is tokenised with the model's own special tokens around it (exactly one BOS); with `parse_special` those
        that are spelled out in it count too. The empty text stands for BOS alone. See `GenerationOptions` for the rest.

        Everything is checked here and now; the first `next` evaluates the prompt.

        Raises:
            InvalidArgument, IndexOutOfRange: an option or a token id is not acceptable.
            ContextOverflowError: the prompt is longer than the context.
            TokenizerError, UnsupportedModelError: the file has no tokenizer, or no weights.
            ClosedError: the model was closed.
        """
        self._check_open()
        ids = self._prompt_ids(prompt, parse_special) if isinstance(prompt, str) else prompt
        return self._start("generate", ids, 0, True, options)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[Chunk]:
        """The assistant's answer to `messages`, `[{"role": "user", "content": "..."}, ...]`, as `generate` gives it.

        When the chat outgrows the context, its oldest turns (a user's message and what follows it) are left out, system
        messages at the beginning and the last turn never; at most a quarter of the context is kept free for the answer.
        `dropped_turns` of the chunks and a warning of the logger "llamita" say how many were left out.

        Args:
            template_kwargs: further variables for the chat template, and `parse_content`: special tokens that are
                spelled out in a message are plain text unless it is True.

        Raises:
            InvalidArgument: a message is malformed; the error names its index.
            TemplateError: the file has no chat template, or the template rejects the messages.
            ContextOverflowError: system messages and the last turn alone are longer than the context.
            and what `generate` raises.
        """
        self._check_open()
        decoder = self._need_decoder("chat")
        reserve = max(1, decoder.n_ctx // 4)
        max_tokens = options.get("max_tokens")
        if isinstance(max_tokens, int) and max_tokens >= 0:
            reserve = min(reserve, max_tokens)
        checked = checked_messages(messages)
        ids, dropped = fit(checked, lambda kept: self._render(kept, template_kwargs), decoder.n_ctx, reserve)
        if dropped:
            logger.warning("chat: %d of the oldest turns left out to fit the context of %d tokens", dropped, decoder.n_ctx)
        return self._start("chat", ids, dropped, False, options)

    def complete(self, prompt: str | Sequence[int], *, parse_special: bool = True, **options: Unpack[GenerationOptions]) -> Completion:
        """`generate` run to its end: the whole text with tokens, finish reason, usage, timings and seed."""
        return Completion.from_chunks(self.generate(prompt, parse_special=parse_special, **options))

    def apply_chat_template(self, messages: Sequence[Message], **template_kwargs: Any) -> list[int]:
        """The ids that `chat` evaluates for `messages`, before anything is left out."""
        self._check_open()
        return self._render(checked_messages(messages), template_kwargs)

    # ---- tokens and logits

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text; with `parse_special` special tokens that are spelled out in it become their ids."""
        self._check_open()
        if not isinstance(text, str):
            raise InvalidArgument(f"tokenize: text: expected a string, got {type(text).__name__}")
        return self._need_tokenizer("tokenize").encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of token ids; special tokens are left out unless asked for."""
        self._check_open()
        tokenizer = self._need_tokenizer("detokenize")
        try:
            if len(ids) == 0:
                return ""
        except TypeError:  # the check below names it
            pass
        return tokenizer.decode(checked_ids(ids, tokenizer.vocab_size, "detokenize: ids"), skip_special)

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits [len(ids), vocabulary] after each of the ids, float32, evaluated from an empty cache."""
        self._check_open()
        decoder = self._need_decoder("logits")
        checked = checked_ids(ids, decoder.n_vocab, "logits: ids")
        check_context(len(checked), decoder.n_ctx, "logits: ids")
        with self._turn():
            decoder.rewind(0)
            return decoder.forward_all(checked)

    # ---- what it is made of

    @property
    def n_ctx(self) -> int:
        """How many tokens the context holds, prompt and answer together."""
        return self._need_decoder("n_ctx").n_ctx

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The file's own keys and values."""
        self._check_open()
        return self._metadata

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises TokenizerError if the file has none that can be used."""
        self._check_open()
        return self._need_tokenizer("tokenizer")

    @property
    def chat_template(self) -> ChatTemplate | None:
        """None if the file has none that can be used."""
        self._check_open()
        return self._template

    @property
    def decoder(self) -> TokenModel:
        """What evaluates tokens. Not protected against other threads. Raises UnsupportedModelError without weights."""
        self._check_open()
        return self._need_decoder("decoder")

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Gives memory and file back, after the step that may be running in another thread. May be called twice."""
        if self._closed:
            return
        self._closed = True  # first, so that a generation in another thread ends with its next step
        try:
            self._turns.enter(self, patient=False)
        except BaseException:
            self._closed = False
            raise
        self._decoder = self._tokenizer = self._template = None
        self._metadata = {}
        self._turns.exit()
        self._turns.leave(self)
        for resource in self._resources:
            resource.close()

    def __enter__(self) -> LanguageModel:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---- inside

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("model: expected an open model, got one that was closed: load it again")

    def _need_decoder(self, what: str) -> TokenModel:
        self._check_open()
        if self._decoder is None:
            raise UnsupportedModelError(f"{what}: expected a model with weights, got a file that holds only a vocabulary")
        return self._decoder

    def _need_tokenizer(self, what: str) -> Tokenizer:
        if self._tokenizer is None:
            reason = self._tokenizer_problem or "the file has none"
            raise TokenizerError(f"{what}: expected a model with a tokenizer, got none ({reason}): use token ids")
        return self._tokenizer

    def _prompt_ids(self, text: str, parse_special: bool) -> list[int]:
        tokenizer = self._need_tokenizer("generate")
        ids = tokenizer.encode(text, add_special=True, parse_special=parse_special)
        if tokenizer.add_eos and ids[-1:] == [tokenizer.eos_id]:
            ids.pop()  # a prompt is there to be continued
        return ids if ids or tokenizer.bos_id is None else [tokenizer.bos_id]

    def _render(self, messages: list[dict[str, str]], template_kwargs: Mapping[str, Any] | None) -> list[int]:
        tokenizer = self._need_tokenizer("chat")
        if self._template is None:
            raise TemplateError("chat: expected a model with a chat template, got one without: use generate")
        return self._template.render_ids(tokenizer, messages, **(template_kwargs or {}))

    def _start(
        self, what: str, ids: Sequence[int], dropped: int, continues: bool, options: GenerationOptions
    ) -> Generator[Chunk, None, None]:
        decoder = self._need_decoder(what)
        params, stops, on_progress = _split(what, options)
        matcher = StopMatcher(stops)
        tokenizer = self._need_tokenizer(f"{what}: stop") if matcher.stops else self._tokenizer
        run = generate_tokens(
            decoder,
            ids,
            params,
            eog_ids=frozenset() if tokenizer is None else tokenizer.eog_ids,
            n_tokens=None if tokenizer is None else tokenizer.vocab_size,
            on_progress=on_progress,
        )
        before = run.prompt[-_CONTEXT_IDS:] if continues else []
        text = None if tokenizer is None else _ShownText(tokenizer, matcher, before)
        return self._chunks(decoder, run, text, dropped)

    def _chunks(self, decoder: TokenModel, run: TokenGeneration, text: _ShownText | None, dropped: int) -> Generator[Chunk, None, None]:
        try:
            while True:
                disturbed = self._turns.enter(run)
                try:
                    self._check_open()
                    if disturbed and run.tokens:  # somebody else's tokens are in the cache
                        evaluate(decoder, run.evaluated_ids)
                    step = next(run)
                finally:
                    self._turns.exit()
                reason, token = step.finish_reason, step.token
                ended = reason == "stop" or token is None  # an end token is neither shown nor counted
                piece = "" if text is None or token is None or ended else text.push(token)
                if text is not None and reason is not None:
                    piece += text.flush()
                stop = None if text is None else text.stop
                if reason is None and stop is None:
                    yield Chunk(piece, token, step.logprob, step.top_logprobs, dropped_turns=dropped)
                    continue
                self._turns.leave(run)  # before the last chunk, which a reader may keep without asking for another
                yield Chunk(
                    piece,
                    None if ended else token,
                    None if ended else step.logprob,
                    None if ended else step.top_logprobs,
                    finish_reason="stop" if stop is not None or reason is None else reason,
                    stop=stop,
                    usage=run.usage,
                    timings=run.timings,
                    seed=run.seed,
                    dropped_turns=dropped,
                )
                return
        finally:
            run.close()
            self._turns.leave(run)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        caller = object()
        self._turns.enter(caller)
        try:
            self._check_open()
            yield
        finally:
            self._turns.exit()
            self._turns.leave(caller)


class _ShownText:
    """Tokens -> text that may be shown: whole characters, and nothing of a stop string. `before` are ids already shown."""

    def __init__(self, tokenizer: Tokenizer, matcher: StopMatcher, before: Sequence[int]) -> None:
        self._stream = tokenizer.stream(after=[i for i in before if i < tokenizer.vocab_size])
        self._matcher = matcher

    @property
    def stop(self) -> str | None:
        return self._matcher.matched

    def push(self, token: int) -> str:
        return self._matcher.push(self._stream.push(token))

    def flush(self) -> str:
        return self._matcher.push(self._stream.flush()) + self._matcher.flush()


_OPTION_NAMES = tuple(GenerationOptions.__annotations__)


def _split(what: str, options: GenerationOptions) -> tuple[SamplingParams, str | Sequence[str], Progress | None]:
    rest: dict[str, Any] = dict(options)
    stops, on_progress = rest.pop("stop", ()), rest.pop("on_progress", None)
    for name in rest:
        if name not in _OPTION_NAMES:
            close = difflib.get_close_matches(name, _OPTION_NAMES, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"expected {', '.join(_OPTION_NAMES)}"
            raise TypeError(f"{what}() has no option {name!r}: {hint}")
    if on_progress is not None and not callable(on_progress):
        raise InvalidArgument(f"{what}: on_progress: expected something callable, got {on_progress!r}")
    return SamplingParams(**rest), () if stops is None else stops, on_progress
