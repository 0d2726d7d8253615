"""Generation: token ids in, token ids out, over any model that evaluates tokens. Knows no tokenizer and no file."""

from .loop import FinishReason, Progress, Timings, TokenGeneration, TokenModel, TokenStep, Usage, generate_tokens
from .sampling import Sampler, SamplingParams
from .stop_strings import StopMatcher

__all__ = [
    "FinishReason",
    "Progress",
    "Sampler",
    "SamplingParams",
    "StopMatcher",
    "Timings",
    "TokenGeneration",
    "TokenModel",
    "TokenStep",
    "Usage",
    "generate_tokens",
]
