"""Layers: what a decoder is assembled from, each with `forward` and `forward_diff`."""

from .attention import Attention as Attention
from .base import Layer as Layer
from .linear import Embedding as Embedding
from .linear import Linear as Linear
from .mlp import GatedMlp as GatedMlp
from .norm import LayerNorm as LayerNorm
from .norm import RmsNorm as RmsNorm
from .rotary import Rotary as Rotary
