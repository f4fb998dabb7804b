"""From a kernel to a gradient: an echo is computed, checked, looked at, differentiated, learned.

The page first_kernel.md walks through it.
"""

import numpy as np

from minitransformer import Function, Tensor, gradcheck, optim
from minitransformer_kernels import microscope
from minitransformer_kernels.cpu import OutOfBounds
from minitransformer_kernels.cuda import cuda

THREADS = 64


# 1. A kernel: what one thread does.
@cuda.jit
def echo(x, weight, out):
    """out_i = sum over k of weight_k x_(i - k): what sounds now, and what is left of before."""
    i = cuda.grid(1)
    if i < x.size:
        total = weight[0] * x[i]
        for k in range(1, min(weight.size, i + 1)):
            total += weight[k] * x[i - k]
        out[i] = total


def blocks(count):
    """How many blocks it takes, the last of them perhaps not full."""
    return (count + THREADS - 1) // THREADS


x = np.random.default_rng(0).standard_normal(1000)
weight = np.array([1.0, 0.0, 0.5, 0.0, -0.25])
out = np.empty_like(x)
echo[blocks(x.size), THREADS](x, weight, out)
print("as NumPy computes it:", np.allclose(out, np.convolve(x, weight)[: x.size]))


# 2. A mistake, and what its first launch says.
@cuda.jit
def careless(x, weight, out):
    """The same, it seems."""
    i = cuda.grid(1)
    if i < x.size:
        total = weight[0] * x[i]
        for k in range(1, weight.size):  # as if there were samples before the first
            total += weight[k] * x[i - k]
        out[i] = total


try:
    careless[blocks(x.size), THREADS](x, weight, np.empty_like(x))
except OutOfBounds as mistake:
    print(f"{type(mistake).__name__}: {mistake}")

# 3. What each line asks of a GPU.
report = microscope.inspect(echo[2, THREADS], x[:128], weight, out[:128], compiled=False)
print(report)


# 4. Its gradient: two more kernels, and a Function around all three.
@cuda.jit
def gradient_of_x(grad, weight, out):
    """out_j = sum over k of weight_k grad_(j + k): each sample hears from those after it."""
    j = cuda.grid(1)
    if j < grad.size:
        total = weight[0] * grad[j]
        for k in range(1, min(weight.size, grad.size - j)):
            total += weight[k] * grad[j + k]
        out[j] = total


@cuda.jit
def gradient_of_weight(grad, x, out):
    """out_k = sum over i of grad_i x_(i - k): a thread owns a weight."""
    k = cuda.grid(1)
    if k < out.size:
        out[k] = 0
        for i in range(k, x.size):
            out[k] += grad[i] * x[i - k]


class Echo(Function):
    """An echo that the tape can walk back."""

    @staticmethod
    def forward(ctx, x, weight):
        """Return what is heard of x (L,), by weights (K,)."""
        ctx.save(x, weight)
        out = np.empty_like(x)
        echo[blocks(x.size), THREADS](x, weight, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x and of the weights."""
        x, weight = ctx.saved
        dx, dweight = np.empty_like(x), np.empty_like(weight)
        gradient_of_x[blocks(x.size), THREADS](grad, weight, dx)
        gradient_of_weight[blocks(weight.size), THREADS](grad, x, dweight)
        return dx, dweight


print("gradients are right:", gradcheck(Echo.apply, [Tensor(x[:20]), Tensor(weight)]))

# 5. Learn the echo of a room from what was played and what was heard.
played, heard = Tensor(x), Tensor(out)
guess = Tensor(np.zeros(5), requires_grad=True)
adam = optim.Adam([guess], lr=0.05)
for step in range(201):
    difference = Echo.apply(played, guess) - heard
    loss = (difference * difference).mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
    if step % 50 == 0:
        weights = " ".join(f"{w:6.3f}" for w in guess.data)
        print(f"step {step:3}  loss {loss.item():.6f}  weights {weights}")
