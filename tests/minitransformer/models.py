"""What the tests of layers and models share."""

from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

import numpy as np

from minitransformer import Tensor, gradcheck, nn
from minitransformer import functions as F
from minitransformer.nn import Module
from minitransformer_kernels import reference
from minitransformer_kernels.visible import Visible
from tests.cases import Array

AnyModule = TypeVar("AnyModule", bound=Module)


def normal(*shape: int) -> Array:
    """Normal numbers, the same for the same shape."""
    return np.random.default_rng([0, *shape]).standard_normal(shape)


def some_tokens(*shape: int) -> Array:
    """Tokens from 0 to 8, the same for the same shape."""
    return np.random.default_rng([0, *shape]).integers(0, 9, shape)


def float64(module: AnyModule) -> AnyModule:
    """The module with every parameter in float64, away from the values that it starts with.

    Zero biases and unit scales would hide a gradient that forgets them.
    """
    rng = np.random.default_rng(0)
    for parameter in module.parameters():
        parameter.data = parameter.data + 0.3 * rng.standard_normal(parameter.shape)
    return module


def check_gradients(module: Module, call: Callable[..., Any], *inputs: Any) -> None:
    """Checks the gradients of `call(module, *inputs)` by inputs and by every parameter."""
    names = [name for name, _ in module.named_parameters()]

    def function(*arguments: Any) -> Any:
        for name, tensor in zip(names, arguments, strict=False):
            *parents, last = name.split(".")
            setattr(reduce(getattr, parents, module), last, tensor)
        return call(module, *arguments[len(names) :])

    parameters = [Tensor(p.data.copy()) for p in module.parameters()]
    # Layer norm and softmax bend sharply: with a larger step the differences would be inexact.
    assert gradcheck(function, [*parameters, *inputs], step=1e-6, elementwise=False, directions=4)


def token_by_token(step: Callable[..., Any], *inputs: Tensor, **options: Any) -> Tensor:
    """What a step gives for each token of a sequence, as one sequence."""
    state, outputs = None, []
    for i in range(inputs[0].shape[2]):
        output, state = step(*(x[:, :, i] for x in inputs), state, **options)
        outputs.append(output)
    return F.stack(outputs, dim=2)


def mapped(x: Array, layer: nn.Linear) -> Array:
    """x W^T + b."""
    y = x @ layer.weight.numpy().T
    return np.asarray(y if layer.bias is None else y + layer.bias.numpy())


def normed(x: Array, layer: nn.LayerNorm) -> Array:
    """Mean 0 and variance 1, then scaled and shifted."""
    centred = x - x.mean(-1, keepdims=True)
    unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + layer.eps)
    return np.asarray(unit * layer.weight.numpy() + layer.bias.numpy())


def attended(layer: Any, query: Array, key: Array, value: Array, **visible: Any) -> Array:
    """What the heads of multi-head attention give, side by side, from the definition."""
    projections = layer.query_projection, layer.key_projection, layer.value_projection
    heads = (
        np.stack(np.split(mapped(x, projection), layer.num_heads, axis=-1), axis=1)
        for x, projection in zip((query, key, value), projections, strict=True)
    )
    is_linear = isinstance(layer.attention, nn.LinearAttention)
    attend: Any = reference.linear_attention if is_linear else reference.softmax_attention
    return np.concatenate(attend(*heads, Visible(**visible)).swapaxes(0, 1), axis=-1)


def small_options(**changed: Any) -> Any:
    """Options of a small layer without a kink or chance in it."""
    return {"dim_feedforward": 12, "activation": "gelu", "dropout": 0.0, **changed}


# Head dims that other tests have kernels compiled for: every pair takes seconds.
HEAD_DIMS: Any = {"head_dim": 6, "value_head_dim": 5}


def language_model(**changed: Any) -> nn.TransformerLM:
    """A small decoder-only model of 11 tokens."""
    sizes = {"d_model": 12, "nhead": 2, "num_layers": 2, **HEAD_DIMS}
    options = {**sizes, **small_options(), **changed}
    return nn.TransformerLM(11, **options)


def translator(**changed: Any) -> nn.Transformer:
    """A small encoder-decoder model from 11 to 9 tokens."""
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    options = {"d_model": 12, "nhead": 2, **layers, **HEAD_DIMS, **small_options(), **changed}
    return nn.Transformer(11, 9, **options)
