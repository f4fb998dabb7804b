"""Decoding: a model continues sequences, one token at a time.

Each step hands the model the newest tokens and a state. With linear attention the state is (S, Z),
so that every token costs the same time and memory; with softmax attention it is a cache of all keys
and values, which grows with the sequence. Either way the logits are those of the whole sequence
passed at once.

    >>> from minitransformer import generation, nn
    >>> model = nn.TransformerLM(10, d_model=16, nhead=2, num_layers=1, attention="linear")
    >>> generation.generate(model, [[3, 1, 4], [1, 5, 9]], 7).shape
    (2, 7)

Source: Katharopoulos et al. 2020, section 3.4; S1.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minitransformer_kernels.checks import finite, whole

from . import random
from .device import to_numpy
from .function import no_grad
from .nn import Transformer, TransformerLM

Tokens = NDArray[np.integer[Any]]
Choice = Callable[[NDArray[np.floating[Any]]], Tokens]


def greedy(logits: NDArray[np.floating[Any]]) -> Tokens:
    """Choose the likeliest token of each row of logits (N, V): (N,) integers.

    Raises:
        ValueError: the logits have another shape, or NaN among them.

    >>> greedy(np.array([[0.5, 2.0, 1.0]])).tolist()
    [1]
    """
    likeliest: Tokens = _checked_logits("greedy", logits).argmax(axis=-1)
    return likeliest


class Sampler:
    """Choose tokens at random, with the model's probabilities or a part of them.

    Args:
        temperature: above 0; divides the logits, so that less of it favours likely tokens.
        top_k: consider only so many likeliest tokens; None: all.
        top_p: consider only the likeliest tokens that together first reach this probability, in
            (0, 1]; one always remains.
        seed: makes the choices repeatable; None draws from the engine's generator.

    Raises:
        TypeError: a setting is no number.
        ValueError: a setting is out of its range; or, called, as for `greedy`.

    Source: Fan et al. 2018 (top k); Holtzman et al. 2020, section 3.1 (top p).

    >>> Sampler(top_k=1)(np.array([[0.5, 2.0, 1.0]])).tolist()
    [1]
    """

    def __init__(
        self,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int | None = None,
    ) -> None:
        if not finite("Sampler", "temperature", temperature, "a finite number above 0") > 0:
            raise ValueError(
                f"Sampler: temperature must be a finite number above 0, got {temperature}; "
                "for the likeliest token use generation.greedy"
            )
        if top_k is not None:
            whole("Sampler", "top_k, unless None,", top_k, least=1)
        if seed is not None:
            whole("Sampler", "seed, unless None,", seed, least=0)
        if not 0 < finite("Sampler", "top_p", top_p, "a number in (0, 1]") <= 1:
            raise ValueError(
                f"Sampler: top_p must be in (0, 1], got {top_p}; 1 considers all tokens"
            )
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.generator = random.generator() if seed is None else np.random.default_rng(seed)

    def __call__(self, logits: NDArray[np.floating[Any]]) -> Tokens:
        """Choose one token for each row of logits (N, V); return (N,) integers."""
        wide = _checked_logits("Sampler", logits).astype(np.float64)
        likeliest_first = np.argsort(-wide, axis=-1, kind="stable")
        scores = np.take_along_axis(wide, likeliest_first, -1)
        scores = (scores - scores[:, :1]) / self.temperature
        scores = np.where(self._considered(scores), scores, -np.inf)
        # The largest of scores plus Gumbel noise is a draw from their softmax.
        ranks = (scores + self.generator.gumbel(size=scores.shape)).argmax(axis=-1, keepdims=True)
        return np.take_along_axis(likeliest_first, ranks, -1)[:, 0]

    def _considered(self, scores: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which tokens remain, given scores in falling order."""
        weights = np.exp(scores)
        probabilities = weights / weights.sum(axis=-1, keepdims=True)
        likelier = probabilities.cumsum(axis=-1) - probabilities
        among_top_k = np.arange(scores.shape[-1]) < (self.top_k or np.inf)
        considered: NDArray[np.bool_] = among_top_k & (likelier < self.top_p)
        return considered


def generate(
    model: Transformer | TransformerLM,
    prompt: ArrayLike,
    max_new_tokens: int,
    *,
    source: Any = None,
    source_lengths: Any = None,
    choose: Choice = greedy,
    end_token: int | None = None,
) -> Tokens:
    """Continue each prompt by tokens that the model finds likely.

    Args:
        model: a `TransformerLM`, or a `Transformer`; it decodes in evaluation mode.
        prompt: (N, P) integers, P at least 1: what to continue, or a Transformer's start tokens.
        max_new_tokens: how many tokens to add.
        source: (N, Ls) integers, what a Transformer is to translate; None for a `TransformerLM`.
        source_lengths: (N,) integers; what lies beyond is padding. None: all counts.
        choose: `greedy`, a `Sampler`, or any function from logits (N, V) to tokens (N,).
        end_token: after it a sequence holds only end tokens; when all have met it, decoding ends.

    Returns:
        (N, T) integers, the new tokens; T is `max_new_tokens`, or less where all ended before.

    Raises:
        ValueError: the prompt has not the shape (N, P), the sources are not as many, a number is
            out of its range, the logits have NaN among them, or `choose` gives no N tokens.
        TypeError: something is not made of integers, or `source` is missing or too much.

    >>> from minitransformer import nn
    >>> model = nn.Transformer(10, 10, 16, 2, 1, 1, attention="softmax")
    >>> generate(model, [[0]], 4, source=[[3, 1, 4, 1]], choose=Sampler(0.8, seed=1)).shape
    (1, 4)
    """
    tokens = _checked_prompt(prompt)
    whole("generate", "max_new_tokens", max_new_tokens, least=0)
    if end_token is not None:
        whole("generate", "end_token, unless None,", end_token)
    chosen: list[Tokens] = []
    ended = np.zeros(len(tokens), dtype=bool)
    with no_grad(), _evaluation(model):
        state = _first_state(model, len(tokens), source, source_lengths)
        while len(chosen) < max_new_tokens and not ended.all():
            logits, state = model.step(tokens, state)
            new = _checked_choice(choose(to_numpy(logits.data[:, -1])), len(tokens))
            if end_token is not None:
                new = np.where(ended, end_token, new)
                ended = new == end_token
            chosen.append(new)
            tokens = new[:, None]  # (N, 1)
    return np.array(chosen, dtype=np.int64).reshape(-1, len(tokens)).T


def _first_state(model: Any, count: int, source: Any, source_lengths: Any) -> Any:
    """Return the state of a model before the first of `count` prompts' tokens."""
    if not hasattr(model, "init_state"):
        raise TypeError(
            f"generate: expected a Transformer or a TransformerLM, got {type(model).__name__}"
        )
    if isinstance(model, TransformerLM):
        if source is not None or source_lengths is not None:
            raise TypeError(
                "generate: source is for a Transformer, which has an encoder; give a "
                "TransformerLM everything in its prompt"
            )
        return model.init_state()
    if source is None:
        raise TypeError("generate: a Transformer needs a source (N, Ls) for its encoder, got None")
    if np.shape(source)[:1] != (count,):
        raise ValueError(
            f"generate: source must have the shape (N={count}, Ls), as many as there are prompts, "
            f"got {np.shape(source)}"
        )
    return model.init_state(source, source_lengths)


def _checked_prompt(prompt: ArrayLike) -> Tokens:
    tokens = np.asarray(prompt)
    if tokens.ndim != 2 or not tokens.size:
        raise ValueError(
            f"generate: prompt must have the shape (N, P) with N and P at least 1, got "
            f"{tokens.shape}; start from a start token"
        )
    if tokens.dtype.kind not in "iu":
        raise TypeError(f"generate: prompt must be integers, got {tokens.dtype}")
    return tokens


def _checked_logits(name: str, logits: Any) -> NDArray[np.floating[Any]]:
    if np.ndim(logits) != 2:
        raise ValueError(f"{name}: logits must have the shape (N, V), got {np.shape(logits)}")
    if np.isnan(logits).any():
        raise ValueError(
            f"{name}: {int(np.isnan(logits).sum())} of {logits.size} logits are NaN, so that no "
            "token is likeliest; look for NaN in the model's parameters"
        )
    checked: NDArray[np.floating[Any]] = logits
    return checked


def _checked_choice(choice: Any, count: int) -> Tokens:
    tokens = np.asarray(choice)
    if tokens.shape != (count,) or tokens.dtype.kind not in "iu":
        raise ValueError(
            f"generate: choose must return a token for each of {count} sequences, integers "
            f"({count},), got {tokens.dtype} {tokens.shape}"
        )
    return tokens


@contextmanager
def _evaluation(model: Transformer | TransformerLM) -> Iterator[None]:
    """Switch dropout off for a while."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
