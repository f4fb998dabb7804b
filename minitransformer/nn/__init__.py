"""Layers and models; the names follow `torch.nn`.

| file            | what it holds                                                         |
|-----------------|-----------------------------------------------------------------------|
| module.py       | the tree of parameters with names, and containers                     |
| layers.py       | linear maps, embeddings, normalization, dropout, activations          |
| positions.py    | position encodings and features                                       |
| variant.py      | how queries attend to keys: the hook for new kinds of attention       |
| stateful.py     | the same, decoded from a state of constant size                       |
| variants/       | a file for each kind                                                  |
| feature_maps.py | features of whole rows, for linear attention, as modules              |
| attention.py    | heads and projections around a variant                                |
| graph.py        | graphs, and attention to neighbours in them                           |
| transformer.py  | layers, stacks and models                                             |
| perceiver.py    | few latents that read a large array; cross_attention.py has how       |
| dimensions.py   | a Perceiver's shapes as a table                                       |
"""

from .attention import MultiHeadAttention, recorded_weights
from .feature_maps import DPFP, Favor, FeatureMap
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
from .variant import AttentionVariant, attention_names, register_attention
from .variants.cosformer import CosFormerAttention
from .variants.delta import DeltaAttention
from .variants.dpfp import DPFPAttention
from .variants.favor import FavorAttention
from .variants.fourier import FourierLinearAttention
from .variants.linear import LinearAttention
from .variants.local import LocalAttention
from .variants.relative import RelativeLinearAttention
from .variants.softmax import SoftmaxAttention

__all__ = [
    "DPFP",
    "ELU",
    "GELU",
    "AttentionVariant",
    "CosFormerAttention",
    "DPFPAttention",
    "DeltaAttention",
    "Dropout",
    "Embedding",
    "Favor",
    "FavorAttention",
    "FeatureMap",
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
    "recorded_weights",
    "register_attention",
]
