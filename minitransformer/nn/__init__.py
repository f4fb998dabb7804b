"""Layers and models; the names follow `torch.nn`.

| file           | what it holds                                                          |
|----------------|------------------------------------------------------------------------|
| module.py      | the tree of parameters with names, and containers                      |
| layers.py      | linear maps, embeddings, normalization, dropout, activations           |
| positions.py   | position encodings and features                                        |
| variants.py    | how queries attend to keys: the hook for new kinds of attention        |
| attention.py   | heads and projections around a variant                                 |
| graph.py       | graphs, and attention to neighbours in them                            |
| transformer.py | layers, stacks and models                                              |
| perceiver.py   | few latents that read a large array; cross_attention.py has how        |
| dimensions.py  | a Perceiver's shapes as a table                                        |
"""

from .attention import MultiHeadAttention
from .graph import Graph, GraphAttention
from .layers import ELU, GELU, Dropout, Embedding, LayerNorm, Linear, ReLU, Tanh
from .module import Module, ModuleList, Parameter, Sequential
from .perceiver import Perceiver
from .positions import (
    FourierPositions,
    LearnedPositions,
    SinusoidalPositions,
    fourier_features,
    grid_positions,
)
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
    DeltaAttention,
    DPFPAttention,
    FavorAttention,
    FourierLinearAttention,
    LinearAttention,
    LocalAttention,
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
    "DeltaAttention",
    "Dropout",
    "Embedding",
    "FavorAttention",
    "FeedForward",
    "FourierLinearAttention",
    "FourierPositions",
    "Graph",
    "GraphAttention",
    "LayerNorm",
    "LearnedPositions",
    "Linear",
    "LinearAttention",
    "LocalAttention",
    "Module",
    "ModuleList",
    "MultiHeadAttention",
    "Parameter",
    "Perceiver",
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
    "fourier_features",
    "grid_positions",
    "register_attention",
]
