"""Tokens per second, measured as llama-bench measures them. Knows decoders and token ids; tokenising and sampling do not count."""

from __future__ import annotations

import platform
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine.errors import ClosedError, InvalidArgument, TokenizerError
from ..engine.generation import TokenModel

if TYPE_CHECKING:
    from .language_model import LanguageModel
    from .loading import LoadProgress
    from .session import DecoderSession

_ROOF_SECONDS = 0.2  # before a test's repetitions, and again after them
_ROOF_BYTES = 1 << 30  # a larger buffer is in no cache either
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?:([+*])(\d+))?)?")
_MAX_COUNTS = 1000  # values that one option may stand for


@dataclass(frozen=True)
class BenchTest:
    """`n_prompt` tokens evaluated at once, then `n_gen` one by one, after `n_depth` tokens that are in the cache already."""

    n_prompt: int
    n_gen: int
    n_depth: int = 0

    @property
    def label(self) -> str:
        """llama-bench's name of the test: "pp512", "tg128", "pp512+tg128", "tg128 @ d1024"."""
        parts = [f"{kind}{n}" for kind, n in (("pp", self.n_prompt), ("tg", self.n_gen)) if n]
        return "+".join(parts) + (f" @ d{self.n_depth}" if self.n_depth else "")

    @property
    def is_decode(self) -> bool:
        """Whether every token is evaluated alone."""
        return self.n_gen > 0 and not self.n_prompt

    @property
    def n_tokens(self) -> int:
        """How many tokens the context must hold."""
        return self.n_prompt + self.n_gen + self.n_depth


@dataclass(frozen=True)
class Roofline:
    """What the speed of memory allows: bytes that a token reads (packed weights, cache), bytes that the threads read a second."""

    bytes_per_token: int
    bytes_per_second: float

    @property
    def tokens_per_second(self) -> float:
        """Decode that does nothing but read."""
        return self.bytes_per_second / self.bytes_per_token


@dataclass(frozen=True)
class BenchResult:
    """One test's samples, with what was measured where."""

    test: BenchTest
    n_threads: int
    samples_ns: list[int]
    test_time: str
    activations: int
    """Bits of the activations that meet quantised weights."""
    model: dict[str, Any] = field(default_factory=dict)
    """model_filename, model_type, model_size (bytes), model_n_params."""
    cache_type: str = "f16"
    roofline: Roofline | None = None

    @property
    def samples_ts(self) -> list[float]:
        """Tokens per second of each repetition."""
        n = self.test.n_prompt + self.test.n_gen
        return [n * 1e9 / ns for ns in self.samples_ns]

    @property
    def avg_ts(self) -> float:
        """Mean of `samples_ts`."""
        return statistics.fmean(self.samples_ts)

    @property
    def stddev_ts(self) -> float:
        """Sample standard deviation (n - 1) of `samples_ts`; 0 for a single one."""
        return statistics.stdev(self.samples_ts) if len(self.samples_ts) > 1 else 0.0

    @property
    def roofline_share(self) -> float | None:
        """The part of the roofline that `avg_ts` reaches."""
        return self.avg_ts / self.roofline.tokens_per_second if self.roofline else None


def parse_counts(option: str, text: str, minimum: int = 0) -> list[int]:
    """Numbers of a llama-bench option: "512", "1,2,4", "1-4", "64-256+64", "64-512*2", and lists of these.

    Raises InvalidArgument that names the option and quotes what is not understood.
    """
    values: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise InvalidArgument(f"{option} {text}: {part!r}: expected a number or a range (first-last+step, first-last*factor)")
        first, last = int(match[1]), int(match[2] or match[1])
        step = int(match[4] or 1)
        if step < (2 if match[3] == "*" else 1) or first > last or (match[3] == "*" and first < 1):
            raise InvalidArgument(f"{option} {text}: {part!r}: the range never ends: expected first <= last and a step that grows")
        while first <= last and len(values) <= _MAX_COUNTS:
            values.append(first)
            first = first * step if match[3] == "*" else first + step
    if min(values) < minimum:
        raise InvalidArgument(f"{option} {text}: expected numbers >= {minimum}, got {min(values)}")
    if len(values) > _MAX_COUNTS:
        raise InvalidArgument(f"{option} {text}: expected at most {_MAX_COUNTS} values")
    return values


def plan_tests(n_prompt: str, n_gen: str, pairs: Sequence[str] = (), n_depth: str = "0") -> list[BenchTest]:
    """All tests that llama-bench's options -p, -n, -pg and -d ask for, in its order; 0 tokens ask for none.

    Raises InvalidArgument when a text is not understood or nothing is left to measure.
    """
    couples = []
    for pair in pairs:
        counts = parse_counts("-pg", pair)
        if len(counts) != 2:
            raise InvalidArgument(f"-pg {pair}: expected two numbers, PROMPT,GENERATED")
        couples.append((counts[0], counts[1]))
    prompts, gens = parse_counts("-p", n_prompt), parse_counts("-n", n_gen)
    tests = []
    for depth in parse_counts("-d", n_depth):
        tests += [BenchTest(n, 0, depth) for n in prompts if n]
        tests += [BenchTest(0, n, depth) for n in gens if n]
        tests += [BenchTest(pp, tg, depth) for pp, tg in couples if pp or tg]
    if not tests:
        raise InvalidArgument(f"-p {n_prompt} -n {n_gen}: nothing to measure: expected one that is not 0")
    return tests


def measure(decoder: TokenModel, test: BenchTest, repetitions: int, bos: int | None = None, warmup: bool = True) -> list[int]:
    """Nanoseconds of each repetition of a test, after one run that does not count.

    Ids are random but the same at each call; a sequence starts with `bos` if the model has one.
    """
    random = np.random.default_rng(0)

    def ids(n: int) -> list[int]:
        return [int(i) for i in random.integers(0, decoder.n_vocab, n)]

    def run(prompt: list[int], generated: list[int]) -> None:
        if prompt:
            decoder.forward(prompt)
        for token in generated:
            decoder.forward([token])

    depth, prompt, generated = ids(test.n_depth), ids(test.n_prompt), ids(test.n_gen)
    first = depth or prompt or generated
    if bos is not None and first:
        first[0] = bos
    decoder.rewind(0)
    if depth:
        decoder.forward(depth)
    if warmup:
        run(prompt, generated[:1])
    samples = []
    for _ in range(repetitions):
        decoder.rewind(len(depth))
        started = time.perf_counter_ns()
        run(prompt, generated)
        samples.append(max(1, time.perf_counter_ns() - started))
    return samples


def bench(
    model: str | None,
    tests: Sequence[BenchTest],
    n_threads: Sequence[int] | None = None,
    repetitions: int = 5,
    activations: int | None = None,
    warmup: bool = True,
    on_progress: LoadProgress | None = None,
    roofline: bool = True,
) -> Iterator[BenchResult]:
    """Load the model once for each number of threads and run every test; one result a test, as soon as it is there.

    Without `n_threads` the default, all cores that this process may use, is measured. `roofline`: whether decode is compared
    with the speed of memory, which takes half a second a test.

    Raises what `load` raises.
    """
    from ..engine.runtime.cpus import usable_cpus
    from .loading import load
    from .session import DEFAULT_ACTIVATIONS, DecoderSession

    n_ctx = max((test.n_tokens for test in tests), default=1)
    described: dict[str, Any] = {}
    for threads in n_threads or [usable_cpus()]:
        with load(model, n_ctx=n_ctx, n_threads=threads, activations=activations, on_progress=on_progress) as llm:
            described = described or describe_model(model)
            bos = _first_id(llm)
            session = llm.decoder if isinstance(llm.decoder, DecoderSession) else None
            for test in tests:
                when = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
                roof = _Roof(session, test, on_progress) if roofline and session and test.is_decode else None
                samples = measure(llm.decoder, test, repetitions, bos, warmup)
                cache_type = session.cache_type if session else "f16"
                bits = activations or DEFAULT_ACTIVATIONS
                yield BenchResult(test, threads, samples, when, bits, described, cache_type, roof.line() if roof else None)


class _Roof:
    """The roofline of one test, looked at before and after its repetitions: the better look counts."""

    def __init__(self, session: DecoderSession, test: BenchTest, on_progress: LoadProgress | None):
        from ..engine.runtime.bandwidth import BandwidthReader

        if session.team is None:
            raise ClosedError("bench: the model was closed: load it again")
        self._bytes = session.bytes_read(test.n_depth + test.n_gen // 2)
        self._reader = BandwidthReader(session.team, min(self._bytes, _ROOF_BYTES), on_progress)
        self._before = self._reader.best(_ROOF_SECONDS)

    def line(self) -> Roofline:
        """The roofline, and the last look."""
        return Roofline(self._bytes, max(self._before, self._reader.best(_ROOF_SECONDS)))


def profile_lines(
    model: str | None, n_depth: int, n_threads: Sequence[int] | None, activations: int | None, on_progress: LoadProgress | None
) -> Iterator[str]:
    """The table of where a token's time goes, after `n_depth` tokens (128 if it is 0), for each number of threads."""
    from .loading import load
    from .profile import profile, profile_table
    from .session import DecoderSession

    choices: Sequence[int | None] = n_threads or [None]
    for threads in choices:
        with load(model, n_threads=threads, activations=activations, on_progress=on_progress) as llm:
            if isinstance(llm.decoder, DecoderSession):
                yield from profile_table(profile(llm.decoder, n_depth or 128))


def _first_id(llm: LanguageModel) -> int | None:
    """The id that the model's texts start with, if it wants one."""
    try:
        return llm.tokenizer.bos_id if llm.tokenizer.add_bos else None
    except TokenizerError:
        return None


def describe_model(model: str | None) -> dict[str, Any]:
    """The model's fields of a result: name of the file, kind, bytes and number of weights."""
    from ..loaders.checkpoint import open_checkpoint
    from ..loaders.library import DEFAULT_MODEL, resolve

    with open_checkpoint(resolve(DEFAULT_MODEL if model is None else model)) as checkpoint:
        return {
            "model_filename": str(checkpoint.path),
            "model_type": f"{checkpoint.architecture} {short_count(checkpoint.n_params)} {checkpoint.file_type}",
            "model_size": checkpoint.size_bytes,
            "model_n_params": checkpoint.n_params,
        }


def short_count(n: int) -> str:
    """135000000 -> "135M", 1235814432 -> "1.2B"."""
    for unit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n >= unit:
            return f"{n / unit:.1f}{letter}" if n < 10 * unit and unit == 10**9 else f"{n / unit:.0f}{letter}"
    return str(n)


def cpu_name() -> str:
    """The processor's name as its maker calls it, or what the platform knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
