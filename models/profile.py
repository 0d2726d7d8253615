"""Where the time of a token goes: one decode step, instruction by instruction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .session import DecoderSession

_RUNS = 25  # of which the median counts


@dataclass(frozen=True)
class Share:
    """What the instructions of one kind take in a decode step.

    label: the kind. count: how many there are. seconds: all of them together. n_bytes: of weights that they read.
    """

    label: str
    count: int
    seconds: float
    n_bytes: int


def profile(decoder: DecoderSession, depth: int = 128) -> list[Share]:
    """A decode step after `depth` tokens, grouped by kind, the longest first. A thread's wait for the others is counted."""
    decoder.rewind(0)
    depth = min(depth, decoder.n_ctx - 1)
    if depth:
        decoder.forward([i % decoder.n_vocab for i in range(depth)])
    shares: dict[str, Share] = {}
    for label, seconds, n_bytes in decoder.timed_steps(_RUNS):
        kind = label.removeprefix("matmul blk.").partition(".")[2].removesuffix(".weight") if "blk." in label else label
        old = shares.get(kind, Share(kind, 0, 0.0, 0))
        shares[kind] = Share(kind, old.count + 1, old.seconds + seconds, old.n_bytes + n_bytes)
    decoder.rewind(0)
    return sorted(shares.values(), key=lambda share: -share.seconds)


def profile_table(shares: list[Share]) -> Iterator[str]:
    """A Markdown table: kind, number, microseconds, share of the step, megabytes of weights, and how fast they were read."""
    total = sum(share.seconds for share in shares) or 1.0
    yield "| instruction | count | us | share | MB | GB/s |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for s in [*shares, Share("one token", sum(s.count for s in shares), total, sum(s.n_bytes for s in shares))]:
        rate = f"{s.n_bytes / s.seconds / 1e9:.1f}" if s.n_bytes and s.seconds else ""
        megabytes = f"{s.n_bytes / 1e6:.1f}" if s.n_bytes else ""
        yield f"| {s.label} | {s.count} | {s.seconds * 1e6:.0f} | {s.seconds / total:.1%} | {megabytes} | {rate} |"
