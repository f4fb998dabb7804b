"""Attention as differentiable functions: each hands its arrays to a kernel's host functions.

The public functions, which check and explain, are in `minitransformer.attention`.
"""

from typing import Any

from minitransformer_kernels import fourier, kernelized, relative, softmax
from minitransformer_kernels.fourier import FourierState
from minitransformer_kernels.recurrent import LinearState
from minitransformer_kernels.relative import RelativeState

from ..device import Array, array_module
from ..function import Context, Function

Gradients = tuple[Array | None, ...]


class SoftmaxAttention(Function):
    """softmax(scale (Q K^T + B)) V, where B, the relative scores, may be None."""

    @staticmethod
    def forward(
        ctx: Context,
        query: Array,
        key: Array,
        value: Array,
        relative_scores: Array | None = None,
        **options: Any,
    ) -> Array:
        """Return the output (N, H, Lq, M)."""
        options["relative_scores"] = relative_scores
        output, log_sum_exp = softmax.forward(query, key, value, **options)
        # The scores are recomputed tile by tile: they are quadratic, and one number a row, its
        # log-sum-exp, turns them back into weights. The output gives delta_i = g_i . o_i. Which
        # weights were dropped follows from the seed among the options.
        ctx.save(query, key, value, output, log_sum_exp, options)
        return output

    @staticmethod
    def backward(ctx: Context, grad_output: Array) -> Gradients:
        """Return dQ, dK, dV and dB."""
        *saved, options = ctx.saved
        gradients = *softmax.backward(grad_output, *saved, **options), None
        return gradients[: len(ctx.needs_input_grad)]


class KernelizedAttention(Function):
    """Attention with states, by a module of host functions; its relatives only name the module.

    `forward` takes the inputs of that module's `forward`, then the arrays of an initial state, or
    None for each. It returns the output and, where the algorithm has any, the final state's arrays.
    """

    kernels: Any
    state: Any  # the NamedTuple that holds the arrays of a state

    @classmethod
    def forward(cls, ctx: Context, *arrays: Array | None, **options: Any) -> Any:
        """Return the output (N, H, Lq, M); where there are states, the last one's arrays too."""
        count = len(cls.state._fields)
        inputs, initial = arrays[:-count], arrays[-count:]
        options["initial_state"] = None if initial[0] is None else cls.state(*initial)
        output, *kept, end = cls.kernels.forward(*inputs, **options)
        # The denominators d_i are kept, and n_i = D_i o_i: both halves of the fraction. No S_i is:
        # there are L of them, each E x M, and a second scan makes them again.
        ctx.save(*inputs, output, *kept, options)
        return output if end is None else (output, *end)

    @classmethod
    def backward(
        cls, ctx: Context, grad_output: Array | None, *grad_state: Array | None
    ) -> Gradients:
        """Return the gradients of the inputs and of the initial state."""
        *saved, options = ctx.saved
        used = any(gradient is not None for gradient in grad_state)
        grad_output, *filled = _filled(ctx, grad_output, *grad_state)
        end = cls.state(*filled) if used else None
        *gradients, start = cls.kernels.backward(grad_output, end, *saved, **options)
        return *gradients, *(start or (None,) * len(cls.state._fields))


class LinearAttention(KernelizedAttention):
    """φ(Q) (φ(K)^T V) / (φ(Q) φ(K)^T 1), by any algorithm."""

    kernels = kernelized
    state = LinearState


class RelativeLinearAttention(KernelizedAttention):
    """The same with Shaw's relative positions: (A + S_rel) V over its row sums."""

    kernels = relative
    state = RelativeState


class FourierLinearAttention(KernelizedAttention):
    """Linear attention whose features turn with their positions, by learned frequencies."""

    kernels = fourier
    state = FourierState


class TokenStep(Function):
    """One token of an attention, by the kernel made for it."""

    sequence: type[KernelizedAttention]
    axes: tuple[int | None, ...]  # of each input of the sequence, where its tokens lie

    @classmethod
    def forward(cls, ctx: Context, *arrays: Array | None, **options: Any) -> Any:
        """Return the output (N, H, M) and the next state's arrays."""
        count = len(cls.axes)
        inputs, initial = arrays[:count], arrays[count:]
        state = None if initial[0] is None else cls.sequence.state(*initial)
        # Inputs only: the output and the denominator of one token are quicker made again than kept.
        ctx.save(inputs, state, options)
        output, after = cls.sequence.kernels.step(*inputs, state, **options)
        return output, *after

    @classmethod
    def backward(
        cls, ctx: Context, grad_output: Array | None, *grad_state: Array | None
    ) -> Gradients:
        """Return the gradients by a sequence of length 1."""
        inputs, state, options = ctx.saved
        grad_output, *filled = _filled(ctx, grad_output, *grad_state)
        xp, kernels = array_module(grad_output), cls.sequence.kernels
        options = {**options, "algorithm": "recurrent", "causal": True, "initial_state": state}
        axes = list(zip(inputs, cls.axes, strict=True))
        rows = [x if axis is None else xp.expand_dims(x, axis) for x, axis in axes]
        output, *kept, _ = kernels.forward(*rows, **options)
        *gradients, start = kernels.backward(
            grad_output[:, :, None], cls.sequence.state(*filled), *rows, output, *kept, **options
        )
        of_token = [
            g if axis is None else g.squeeze(axis)
            for g, axis in zip(gradients, cls.axes, strict=True)
        ]
        return *of_token, *(start if state else (None,) * len(filled))


class LinearAttentionStep(TokenStep):
    """One token of `LinearAttention`."""

    sequence = LinearAttention
    axes = (2, 2, 2)


class RelativeLinearAttentionStep(TokenStep):
    """One token of `RelativeLinearAttention`."""

    sequence = RelativeLinearAttention
    axes = (2, 2, 2, None)


class FourierLinearAttentionStep(TokenStep):
    """One token of `FourierLinearAttention`."""

    sequence = FourierLinearAttention
    axes = (2, 2, 2, 1, 1, None, None, None)


def _filled(ctx: Context, *gradients: Array | None) -> list[Array]:
    """Return zeros for the gradient of an output that nothing used."""
    xp = array_module(next(gradient for gradient in gradients if gradient is not None))
    return [
        xp.zeros(*output) if gradient is None else gradient
        for gradient, output in zip(gradients, ctx.outputs, strict=True)
    ]
