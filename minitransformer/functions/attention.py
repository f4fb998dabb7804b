"""Attention as differentiable functions: each hands its arrays to a kernel's host functions.

The public functions, which check and explain, are in `minitransformer.attention`.
"""

from typing import Any

from minitransformer_kernels import kernelized, recurrent, softmax
from minitransformer_kernels.recurrent import LinearState

from ..device import Array, array_module
from ..function import Context, Function

Gradients = tuple[Array | None, ...]


class SoftmaxAttention(Function):
    """softmax(scale Q K^T) V."""

    @staticmethod
    def forward(ctx: Context, query: Array, key: Array, value: Array, **options: Any) -> Array:
        """Return the output (N, H, Lq, M)."""
        output, log_sum_exp = softmax.forward(query, key, value, **options)
        # The scores are recomputed tile by tile: they are quadratic, and one number a row, its
        # log-sum-exp, turns them back into weights. The output gives delta_i = g_i . o_i.
        ctx.save(query, key, value, output, log_sum_exp, options)
        return output

    @staticmethod
    def backward(ctx: Context, grad_output: Array) -> Gradients:
        """Return dQ, dK, dV."""
        *saved, options = ctx.saved
        return tuple(softmax.backward(grad_output, *saved, **options))


class LinearAttention(Function):
    """φ(Q) (φ(K)^T V) / (φ(Q) φ(K)^T 1), by any algorithm; causal ones go from state to state."""

    @staticmethod
    def forward(
        ctx: Context,
        query: Array,
        key: Array,
        value: Array,
        S: Array | None,
        Z: Array | None,
        **options: Any,
    ) -> Array | tuple[Array, Array, Array]:
        """Return the output (N, H, Lq, M); where there are states, S and Z after the last key."""
        options["initial_state"] = None if S is None else LinearState(S, Z)
        output, denominator, state = kernelized.forward(query, key, value, **options)
        # n_i = D_i o_i, so output and denominator stand for both halves of the fraction. No S_i is
        # kept: there are L of them, each E x M, and a second scan makes them again.
        ctx.save(query, key, value, output, denominator, options)
        return output if state is None else (output, *state)

    @staticmethod
    def backward(ctx: Context, grad_output: Array | None, *grad_state: Array | None) -> Gradients:
        """Return dQ, dK, dV, dS_0, dZ_0."""
        *saved, options = ctx.saved
        grad_output, *grads = _filled(ctx, grad_output, *grad_state)
        end = LinearState(*grads) if any(g is not None for g in grad_state) else None
        *gradients, start = kernelized.backward(grad_output, end, *saved, **options)
        return *gradients, *(start or (None, None))


class LinearAttentionStep(Function):
    """One token of `RecurrentLinearAttention`, by the kernel made for it."""

    @staticmethod
    def forward(
        ctx: Context,
        query: Array,
        key: Array,
        value: Array,
        S: Array | None,
        Z: Array | None,
        **options: Any,
    ) -> tuple[Array, Array, Array]:
        """Return the output (N, H, M) and the next S (N, H, E, M) and Z (N, H, E)."""
        state = None if S is None else LinearState(S, Z)
        # Inputs only: the output and the denominator of one token are quicker made again than kept.
        ctx.save(query, key, value, state, options)
        output, state = recurrent.step(query, key, value, state, **options)
        return output, *state

    @staticmethod
    def backward(
        ctx: Context, grad_output: Array | None, grad_S: Array | None, grad_Z: Array | None
    ) -> Gradients:
        """Return dQ, dK, dV, dS_0, dZ_0 by a sequence of length 1."""
        *token, state, options = ctx.saved
        grad_output, grad_S, grad_Z = _filled(ctx, grad_output, grad_S, grad_Z)
        query, key, value = (array[:, :, None] for array in token)  # (N, H, 1, E), ...
        options = {**options, "initial_state": state}
        output, denominator, _ = recurrent.forward(query, key, value, **options)
        *gradients, dstate = recurrent.backward(
            grad_output[:, :, None],
            LinearState(grad_S, grad_Z),
            query,
            key,
            value,
            output,
            denominator,
            **options,
        )
        return *(g[:, :, 0] for g in gradients), *(dstate if state else (None, None))


def _filled(ctx: Context, *gradients: Array | None) -> list[Array]:
    """Return zeros for the gradient of an output that nothing used."""
    xp = array_module(next(gradient for gradient in gradients if gradient is not None))
    return [
        xp.zeros(*output) if gradient is None else gradient
        for gradient, output in zip(gradients, ctx.outputs, strict=True)
    ]
