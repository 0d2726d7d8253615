"""Which tokens of a prompt made the model say what it says next: gradient times embedding, on quantised weights.

    python examples/saliency.py "The capital of France is"
    python examples/saliency.py "She opened the door and" --word " saw" --model model.gguf

The gradient of one logit goes back through every quantised matrix (decoded as it is needed) to the embedded tokens; its
inner product with a token's embedding says, to first order, how much that token adds to the logit (Simonyan et al. 2014,
Denil et al. 2014). The tape keeps activations only, so memory stays small: about 5 MB a token for the default model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from llamita import ops
from llamita.engine.autodiff import grad, tracked
from llamita.loaders.checkpoint import open_checkpoint
from llamita.loaders.library import DEFAULT_MODEL, resolve
from llamita.models.config import read_config
from llamita.models.llama import Decoder, assemble
from llamita.models.loading import read_tokenizer


def saliency(decoder: Decoder, ids: Sequence[int], target: int | None = None) -> tuple[int, np.ndarray[Any, Any]]:
    """(target, score of every token): gradient x embedding of the target's logit after the last token.

    target: a token; None: the one that the model finds likeliest.
    """
    x = tracked(decoder.embedding.forward(np.asarray([ids])))
    logits = decoder.from_embeddings(x)
    if target is None:
        target = int(np.argmax(logits.numpy()[0, -1]))
    cotangent = np.zeros(logits.shape, logits.dtype)
    cotangent[0, -1, target] = 1.0
    (g,) = grad(logits, [x], cotangent)
    return target, np.asarray(ops.reduce_sum(ops.mul(g, x), -1).numpy()[0])


def show(pieces: Sequence[str], scores: np.ndarray[Any, Any], width: int = 30) -> str:
    """A line a token, with a bar to the right for what adds to the logit and "-" for what takes away."""
    largest = float(np.abs(scores).max()) or 1.0
    lines = []
    for piece, score in zip(pieces, scores, strict=True):
        bar = ("#" if score >= 0 else "-") * round(width * abs(float(score)) / largest)
        lines.append(f"{piece!r:>16} {float(score):+8.3f} {bar}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the scores of a prompt's tokens."""
    parser = argparse.ArgumentParser(description="Gradient x embedding of the next token's logit over a prompt's tokens.")
    parser.add_argument("prompt")
    parser.add_argument("--word", help="explain this token instead of the likeliest one")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a .gguf file, a folder or a library name")
    options = parser.parse_args(arguments)
    with open_checkpoint(resolve(options.model)) as checkpoint:
        tokenizer, problem = read_tokenizer(checkpoint)
        if tokenizer is None:
            raise SystemExit(f"saliency: {problem}")
        ids = tokenizer.encode(options.prompt)
        target = tokenizer.encode(options.word, add_special=False)[0] if options.word else None
        decoder = assemble(checkpoint, read_config(checkpoint), len(ids))
        target, scores = saliency(decoder, ids, target)
        print(f"next token: {tokenizer.piece(target)!r}")
        print(show([tokenizer.piece(i) for i in ids], scores))


if __name__ == "__main__":
    main()
