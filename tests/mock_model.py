"""A model and a tokenizer that need no file, for tests of what is built on top of them."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

import numpy as np

N_VOCAB = 260
BOS, EOS, EOT = 256, 257, 258


class MockModel:
    """Logits are a fixed random function of *all* ids so far, so that a wrong cache shows. Counts what it evaluates.

    `choose(ids)` may name the next id (or None); it then gets by far the largest logit.
    """

    def __init__(self, n_ctx: int = 64, choose: Callable[[list[int]], int | None] | None = None, n_vocab: int = N_VOCAB) -> None:
        self.n_ctx, self.n_vocab, self.choose = n_ctx, n_vocab, choose
        self.config = {"n_ctx": n_ctx}
        self.cached_ids: list[int] = []
        self.calls: list[list[int]] = []
        self.closed = 0
        self.before_forward: Callable[[], object] | None = None

    def rewind(self, n: int) -> None:
        assert 0 <= n <= len(self.cached_ids)
        del self.cached_ids[n:]

    def forward(self, ids: Sequence[int], on_progress: Callable[[int, int], object] | None = None) -> np.ndarray:
        assert len(ids) > 0 and len(self.cached_ids) + len(ids) <= self.n_ctx
        if self.before_forward is not None:
            self.before_forward()
        for done, token in enumerate(ids, 1):
            if on_progress is not None:
                on_progress(done, len(ids))
            self.cached_ids.append(int(token))
        self.calls.append(list(ids))
        return self.logits_after(self.cached_ids)

    def forward_all(self, ids: Sequence[int]) -> np.ndarray:
        return np.stack([self.forward([i]) for i in ids])

    def logits_after(self, ids: list[int]) -> np.ndarray:
        rng = np.random.default_rng([len(ids), *ids])
        logits = (rng.standard_normal(self.n_vocab) * 2).astype(np.float32)
        logits[BOS:] = -20.0
        chosen = self.choose(ids) if self.choose is not None else None
        if chosen is not None:
            logits[chosen] = 60.0
        return logits

    def close(self) -> None:
        self.closed += 1


def replies(reply: bytes | Sequence[int], prompt_length: int, end: int = EOS) -> Callable[[list[int]], int | None]:
    """For MockModel: after a prompt of that length say `reply`, then `end`."""
    return lambda ids: (*reply, end)[len(ids) - prompt_length] if 0 <= len(ids) - prompt_length <= len(reply) else None


class ByteTokenizer:
    """One token a byte; <bos>, <eos> and <eot> are special."""

    vocab_size, bos_id, eos_id, add_bos, add_eos = N_VOCAB - 1, BOS, EOS, True, False
    eog_ids = frozenset({EOS, EOT})
    specials = ("<bos>", "<eos>", "<eot>")

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        ids: list[int] = []
        while text:
            special = next((s for s in self.specials if parse_special and text.startswith(s)), None)
            ids += [BOS + self.specials.index(special)] if special else text[0].encode()
            text = text[len(special or text[0]) :]
        if add_special and self.add_bos and ids[:1] != [BOS]:
            ids.insert(0, BOS)
        return [*ids, EOS] if add_special and self.add_eos else ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        stream = self.stream(skip_special)
        return "".join(map(stream.push, ids)) + stream.flush()

    def stream(self, skip_special: bool = True, after: Sequence[int] = ()) -> ByteStream:
        stream = ByteStream(self, skip_special)
        for token in after:
            stream.push(token)
        return stream

    def piece(self, token: int) -> str:
        return self.specials[token - BOS] if token >= BOS else f"<0x{token:02X}>"

    def is_special(self, token: int) -> bool:
        return token >= BOS

    def token_bytes(self, token: int) -> bytes:
        return self.piece(token).encode() if token >= BOS else bytes([token])


class ByteStream:
    def __init__(self, tokenizer: ByteTokenizer, skip_special: bool) -> None:
        self.tokenizer, self.skip_special = tokenizer, skip_special
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        skipped = self.skip_special and self.tokenizer.is_special(token)
        return "" if skipped else self.decoder.decode(self.tokenizer.token_bytes(token))

    def flush(self) -> str:
        return self.decoder.decode(b"", final=True)


class MockTemplate:
    """<eot>-terminated turns. The content is not parsed for special tokens."""

    def render(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True, **options: object) -> str:
        text = "<bos>" + "".join(f"{m['role']}:{m['content']}<eot>" for m in messages)
        return text + (f"assistant{options.get('mark', ':')}" if add_generation_prompt else "")

    def render_ids(
        self, tokenizer: ByteTokenizer, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True, **options: object
    ) -> list[int]:
        ids = [BOS]
        for message in messages:
            ids += [*tokenizer.encode(f"{message['role']}:{message['content']}", add_special=False), EOT]
        return ids + (tokenizer.encode(f"assistant{options.get('mark', ':')}", add_special=False) if add_generation_prompt else [])
