"""Layers and models; the names follow `torch.nn`.

| file           | what it holds                                                          |
|----------------|------------------------------------------------------------------------|
| module.py      | the tree of parameters with names, and containers                      |
| layers.py      | linear maps, embeddings, normalization, dropout, activations           |
| positions.py   | position encodings                                                     |
| variants.py    | how queries attend to keys: the hook for new kinds of attention        |
| attention.py   | heads and projections around a variant                                 |
| transformer.py | layers, stacks and models                                              |
"""

from .attention import MultiHeadAttention
from .layers import ELU, GELU, Dropout, Embedding, LayerNorm, Linear, ReLU, Tanh
from .module import Module, ModuleList, Parameter, Sequential
from .positions import LearnedPositions, SinusoidalPositions
from .transformer import (
    FeedForward,
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
    TransformerLM,
)
from .variants import (
    AttentionVariant,
    CosFormerAttention,
    DPFPAttention,
    FavorAttention,
    FourierLinearAttention,
    LinearAttention,
    RelativeLinearAttention,
    SoftmaxAttention,
    attention_names,
    register_attention,
)

__all__ = [
    "ELU",
    "GELU",
    "AttentionVariant",
    "CosFormerAttention",
    "DPFPAttention",
    "Dropout",
    "Embedding",
    "FavorAttention",
    "FeedForward",
    "FourierLinearAttention",
    "LayerNorm",
    "LearnedPositions",
    "Linear",
    "LinearAttention",
    "Module",
    "ModuleList",
    "MultiHeadAttention",
    "Parameter",
    "ReLU",
    "RelativeLinearAttention",
    "Sequential",
    "SinusoidalPositions",
    "SoftmaxAttention",
    "Tanh",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "TransformerLM",
    "attention_names",
    "register_attention",
]
