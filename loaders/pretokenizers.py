"""How each byte-level BPE family cuts text into words before merging.

A GGUF file names its family in `tokenizer.ggml.pre`; the patterns themselves come from the `tokenizer.json` of the
models that introduced them. Every pattern of a family is applied in turn to the pieces that the one before it left,
and both the matches and the gaps between them become pieces.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("llamita")

_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE_CONTRACTIONS = rf"(?i:{_CONTRACTIONS})"
_TRAILING_SPACE = r"\s+(?!\S)|\s+"

_GPT2 = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_TRAILING_SPACE}"


def _tiktoken(digits: str, *, letters: str = r"\p{L}", contractions: str = _ANY_CASE_CONTRACTIONS + "|") -> str:
    """The cl100k pattern: one leading non-letter sticks to a word, line breaks are grouped."""
    return (
        rf"{contractions}[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}"
        rf"| ?[^\s{letters}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_TRAILING_SPACE}"
    )


def _o200k(digits: str, contractions: str) -> str:
    """The o200k pattern: a run of capitals followed by a run of small letters is one word."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}{upper}*{lower}+{contractions}|{lead}{upper}+{lower}*{contractions}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_TRAILING_SPACE}"
    )


_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK3_WORDS = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|\s*[\r\n]+|{_TRAILING_SPACE}"
)


@dataclass(frozen=True)
class PreTokenizer:
    """The word rule of one family.

    patterns: regular expressions in Oniguruma syntax, applied in turn.
    ignore_merges: a word that is itself in the vocabulary becomes that token without any merging.
    add_bos: whether the family starts a text with BOS when the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False

    def build(self) -> Any:
        """The rule as a pre-tokenizer of the `tokenizers` library, with the byte alphabet applied last."""
        from tokenizers import Regex, pre_tokenizers

        steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(steps)


_LLAMA3 = _tiktoken(r"\p{N}{1,3}")
_QWEN2 = PreTokenizer((_tiktoken(r"\p{N}"),))
_PLAIN_GPT2 = PreTokenizer((_GPT2,))
_SINGLE_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA_BPE = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_CL100K = PreTokenizer((_LLAMA3,))
_GPT4O = PreTokenizer((_o200k(r"\p{N}{1,3}", f"{_ANY_CASE_CONTRACTIONS}?"),))
_DEEPSEEK3 = PreTokenizer((r"\p{N}{1,3}", r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+", _DEEPSEEK3_WORDS))

DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": DEFAULT,
    **dict.fromkeys(
        ("gpt-2", "mpt", "olmo", "phi-2", "jais", "trillion", "granite-docling", "gigachat", "a.x-4.0", "mellum", "exaone4"), _PLAIN_GPT2
    ),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"), _SINGLE_DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _LLAMA_BPE),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _CL100K),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open", "kormo", "grok-2"), _QWEN2),
    "qwen35": PreTokenizer((_tiktoken(r"\p{N}", letters=r"\p{L}\p{M}"),)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _tiktoken(r"\p{N}+")), ignore_merges=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _GPT4O),
    "tekken": PreTokenizer((_o200k(r"\p{N}", ""),), ignore_merges=True, add_bos=True),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK3),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[\x{0800}-\x{9FA5}\x{AC00}-\x{D7FF}]+", r"\p{N}")),
}


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """The rule called `name`, or the default one with a loud warning when the name is missing or unknown."""
    rule = PRE_TOKENIZERS.get(name or "")
    if rule is not None:
        return rule
    what = "does not name its pre-tokenizer" if name is None else f"names a pre-tokenizer that is not known, {name!r}"
    log.warning(
        "tokenizer.ggml.pre: the file %s: text is cut by the 'default' rule, so token ids may differ from those the "
        "model was trained on and the output may be worse; convert the model again with a current converter.",
        what,
    )
    return DEFAULT
