"""Minutes of mixed use: does a loaded model grow, stall, or burn processor time while nobody asks?

    python benchmarks/soak.py --minutes 10

Random work until the time is up: completions of random prompts and lengths, chats that go on until they are long, answers
that are broken off, rewinds of the cache, resets, logits of whole prompts. Every so often one prompt is answered greedily
again, and its tokens must be those of the first time. Then the model rests. What must hold (exit status 1 otherwise):

    memory    resident bytes at the end at most --growth MiB above those after the first fifth of the time
    stalls    no step of one token longer than --stall seconds; the longest against the median is printed
    threads   as many at the end as after the warm-up
    answers   the same tokens every time
    rest      at most --idle percent of a processor while the loaded model is not used

At the start the whole context is filled once, so that every page of the cache is there. Needs psutil.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import psutil

import llamita
from llamita.engine.errors import LlamitaError
from llamita.engine.runtime.cpus import usable_cpus

PROBE = 32  # tokens of the answer that must always be the same
TALK = ("Tell me about the sea.", "Why?", "Name three birds and where they live.", "Go on, please.", "How do you know?", "And then?")


class Soak:
    """Random work on one model, and what it is watched for."""

    def __init__(self, llm: Any, seed: int):
        self.llm, self.decoder, self.random = llm, llm.decoder, random.Random(seed)
        self.steps: list[float] = []  # seconds of each token after the first
        self.tokens = 0
        self.work: Counter[str] = Counter()
        self.messages: list[dict[str, str]] = []
        self.probe = self.ids(64)
        self.expected = self.answer_probe()
        self.wrong_answers = 0

    def ids(self, n: int) -> list[int]:
        """Random tokens."""
        return [self.random.randrange(self.decoder.n_vocab) for _ in range(n)]

    def length(self, most: int) -> int:
        """A random length, small ones as likely as large ones."""
        return min(most, int(2 ** self.random.uniform(0, most.bit_length())))

    def watch(self, chunks: Iterable[Any], most: int | None = None) -> str:
        """Take chunks, `most` of them or all, and note how long each took; their text."""
        texts, before = [], 0.0
        for n, chunk in enumerate(chunks, 1):
            now = time.perf_counter()
            if before:
                self.steps.append(now - before)
            texts.append(chunk.text)
            self.tokens += 1
            if n == most:
                break
            before = time.perf_counter()
        return "".join(texts)

    def sampling(self) -> dict[str, Any]:
        """Some sampling options."""
        choice = self.random.choice
        return {"temperature": choice((0.0, 0.8, 1.5)), "seed": self.random.randrange(1 << 31), "logprobs": choice((0, 0, 3))}

    def complete(self) -> None:
        """A prompt that may fill the context, and some tokens."""
        prompt = self.ids(self.length(self.decoder.n_ctx - 1))
        self.watch(self.llm.generate(prompt, max_tokens=self.length(128), ignore_eos=True, **self.sampling()))

    def break_off(self) -> None:
        """An answer that nobody reads to its end."""
        chunks = self.llm.generate(self.ids(self.length(256)), max_tokens=200, ignore_eos=True, **self.sampling())
        self.watch(chunks, self.length(32))
        chunks.close()

    def chat(self) -> None:
        """The next turn of a chat, which starts anew now and then."""
        if self.random.random() < 0.15:
            self.messages = []
        self.messages.append({"role": "user", "content": self.random.choice(TALK)})
        text = self.watch(self.llm.chat(self.messages, max_tokens=self.length(96), **self.sampling()))
        self.messages.append({"role": "assistant", "content": text})

    def rewind(self) -> None:
        """Go back in the cache and on with other tokens."""
        cached = len(self.decoder.cached_ids)
        self.decoder.rewind(self.random.randint(0, cached))
        if room := self.decoder.n_ctx - len(self.decoder.cached_ids):
            self.decoder.forward(self.ids(self.length(min(room, 256))))

    def reset(self) -> None:
        """Forget everything."""
        self.decoder.rewind(0)

    def logits(self) -> None:
        """Logits of every token of a prompt."""
        self.llm.logits(self.ids(self.length(128)))

    def answer_probe(self) -> list[int]:
        """The greedy answer to the prompt that is asked again and again."""
        return list(self.llm.complete(self.probe, max_tokens=PROBE, temperature=0, ignore_eos=True).tokens)

    def ask_again(self) -> None:
        """It must be the same."""
        self.wrong_answers += self.answer_probe() != self.expected

    def run(self, seconds: float) -> None:
        """Random work for about as long."""
        kinds: dict[Callable[[], None], int] = {
            self.complete: 6, self.chat: 6, self.break_off: 3, self.rewind: 3, self.reset: 1, self.logits: 1, self.ask_again: 1
        }  # fmt: skip
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            kind = self.random.choices(list(kinds), list(kinds.values()))[0]
            kind()
            self.work[kind.__name__] += 1

    def fill(self) -> None:
        """Touch the whole cache, and let the allocator see the largest arrays, whose memory it keeps."""
        self.decoder.rewind(0)
        self.decoder.forward(self.ids(self.decoder.n_ctx))
        for n in (128, 40, 128, 5, 100):
            self.llm.logits(self.ids(n))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-m", "--model", help="a .gguf file or a library name [default: the library's default model]")
    add("--minutes", type=float, default=10.0, help="of work [default: %(default)s]")
    add("-c", "--ctx-size", type=int, default=2048, help="tokens of the context [default: %(default)s]")
    add("-t", "--threads", type=int, default=usable_cpus(), help="[default: %(default)s]")
    add("--rest", type=float, default=10.0, help="seconds of rest afterwards [default: %(default)s]")
    add("--growth", type=float, default=16.0, help="MiB that memory may grow by [default: %(default)s]")
    add("--stall", type=float, default=1.0, help="seconds that a step may take [default: %(default)s]")
    add("--idle", type=float, default=0.5, help="percent of a processor at rest [default: %(default)s]")
    add("--seed", type=int, default=0, help="of the random work [default: %(default)s]")
    return parser.parse_args()


def soak(options: argparse.Namespace) -> bool:
    """Work, rest, print; whether everything held."""
    process = psutil.Process()
    with llamita.load(options.model, n_ctx=options.ctx_size, n_threads=options.threads) as llm:
        work = Soak(llm, options.seed)
        work.fill()
        work.run(12 * options.minutes)
        resident, threads = [process.memory_info().rss], [process.num_threads()]
        for _ in range(16):
            work.run(3 * options.minutes)
            resident.append(process.memory_info().rss)
        threads.append(process.num_threads())
        time.sleep(0.5)  # threads spin for a moment before they sleep
        before, started = sum(process.cpu_times()[:2]), time.perf_counter()
        time.sleep(options.rest)
        idle = 100 * (sum(process.cpu_times()[:2]) - before) / (time.perf_counter() - started)
    done = ", ".join(f"{name} {n}" for name, n in sorted(work.work.items()))
    print(f"{options.minutes:g} minutes, {options.threads} thread{'s'[: options.threads > 1]}: {work.tokens} tokens generated; {done}\n")
    return verdict(options, work, [n / 2**20 for n in resident], threads, idle)


def verdict(options: argparse.Namespace, work: Soak, resident: list[float], threads: list[int], idle: float) -> bool:
    """Print what was found; whether everything held. resident: MiB, from the warm-up to the end."""
    steps = sorted(1e3 * step for step in work.steps)
    median, longest = statistics.median(steps), steps[-1]
    growth, asked = resident[-1] - resident[0], work.work["ask_again"]
    memory = f"{growth:+.1f} MiB ({resident[0]:.0f} -> {resident[-1]:.0f}, at most {max(resident):.0f})"
    rare = steps[int(0.99 * (len(steps) - 1))]
    stalls = f"steps of {median:.1f} ms, 99 % below {rare:.1f}, longest {longest:.1f} ({longest / median:.0f}x)"
    rows = (
        ("memory", memory, growth <= options.growth),
        ("stalls", stalls, longest <= 1e3 * options.stall),
        ("threads", f"{threads[0]} -> {threads[-1]}", threads[-1] <= threads[0]),
        ("answers", f"{asked - work.wrong_answers} of {asked} the same", not work.wrong_answers),
        ("rest", f"{idle:.2f} % of a processor", idle <= options.idle),
    )
    print("| what | found | verdict |\n| --- | --- | --- |")
    for name, found, held in rows:
        print(f"| {name} | {found} | {'ok' if held else '**failed**'} |")
    print("\nMiB over time: " + " ".join(f"{n:.0f}" for n in resident))
    return all(held for *_, held in rows)


def main() -> None:
    """Run and say so."""
    options = parse()
    if options.minutes <= 0 or options.ctx_size < 256 or options.threads < 1:
        sys.exit("error: expected --minutes > 0, --ctx-size >= 256 and --threads >= 1")
    try:
        sys.exit(0 if soak(options) else 1)
    except LlamitaError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
