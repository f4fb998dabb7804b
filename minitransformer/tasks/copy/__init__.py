"""S1's copy task: read a sequence of random symbols, then write it out again.

The encoder reads `w`; the decoder is given the separator and `w` without its last symbol, and
answers `w`: at each position it is told what came before (teacher forcing) and asked what comes
next. The loss is on the answer. To copy, the model has to find, for its i-th answer, the i-th
symbol of the source among all others: the purest test of attention there is.

Half of the sequences are as long as the task allows, the others of any shorter length, so that the
model can copy what a user types as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

import minitransformer as mt

from ... import functions as F
from ...function import no_grad
from ...settings import ATTENTIONS, HEAD_DIM, Recipe, choice, integer, setting
from ...tensor import Tensor
from .. import Compared, Models, Page, share

SYMBOLS = 10
SEPARATOR = SYMBOLS
_NAMES = (*map(str, range(SYMBOLS)), "|")
_TOKENS = len(_NAMES)
_IGNORED = -100
_FRESH = 256
_SHOWN = 3


class CopyBatch(NamedTuple):
    """Sequences to copy, or a slice of each; what lies beyond a sequence's length is padding."""

    source: np.ndarray  # symbols, (N, L) integers
    lengths: np.ndarray  # of the whole sequences, (N,) integers
    whole: int | None = None  # the symbols to copy in the batch that this is a share of; or None
    first: int = 0  # where in the sequences the slice begins
    before: np.ndarray | int = SEPARATOR  # what stands before it, (N,) symbols or one for all

    @property
    def answers(self) -> int:
        """How many symbols a mean is over: those of the whole batch."""
        return int(self.lengths.sum()) if self.whole is None else self.whole

    @property
    def valid(self) -> np.ndarray:
        """Where symbols are, and not padding: (N, L) booleans."""
        return self.first + np.arange(self.source.shape[1]) < self.lengths[:, None]

    @property
    def decoder_input(self) -> np.ndarray:
        """The separator, or what stands before, then all symbols but the last: (N, L)."""
        shifted = np.roll(self.source, 1, axis=1)
        shifted[:, :1] = np.reshape(self.before, (-1, 1))
        return shifted


@dataclass(frozen=True)
class CopyTask:
    """The task and the size of the transformer that learns it.

    The seed is the training's, so that the sequences of the report are others.

    Source: S1; S1 itself has 4 layers, 8 heads of 64 and lengths 8, 16, 32 and 64.
    """

    length: int = setting(16, integer(1), "symbols in the longest sequence")
    layers: int = setting(2, integer(1), "layers of the encoder, and as many of the decoder")
    heads: int = setting(4, integer(1), "attention heads of each layer")
    head_dim: int = setting(16, HEAD_DIM, "width of a head; the model is HEADS * HEAD_DIM")
    positions: str = setting(
        "learned",
        choice(("learned", "sinusoidal", "none")),
        "what is added to say where a symbol stands; none leaves that to the attention",
    )
    seed: int = 0

    examples: ClassVar[str] = "sequences"
    answer: ClassVar[str] = "token"
    most_examples: ClassVar[float] = math.inf
    compared: ClassVar[Compared] = Compared(
        "attention",
        ATTENTIONS,
        ("linear", "softmax"),
        default="linear",
        help="which attention to train",
    )
    recipe: ClassVar[Recipe] = Recipe(batch_size=32, steps=600, lr=1e-3)
    page: ClassVar[Page] = Page(
        summary="copy a sequence of digits, S1's task",
        description="Train an encoder-decoder transformer to copy sequences of the digits 0 to 9",
        usage="  minitransformer train copy\n"
        "  minitransformer train copy --attention both --out runs/both\n"
        "  minitransformer train copy --resume runs/both\n"
        "  minitransformer train copy --attention relative --positions none    # S0\n"
        "  minitransformer train copy --attention linear delta softmax --steps 1000\n"
        "  minitransformer train copy --layers 4 --heads 8 --head-dim 64 --batch-size 8 \\\n"
        "      --steps 3000    # S1",
        command="copy",
        invitation="To copy a sequence of your own",
    )

    def build(self, attention: str | mt.nn.AttentionVariant) -> mt.nn.Transformer:
        """Return a new transformer, with normalization first.

        Learned positions start at random, far apart, so that attention tells them apart from the
        first step; neighbouring sinusoids are close, and linear attention then takes several times
        as long to learn.
        """
        width = self.heads * self.head_dim
        return mt.nn.Transformer(
            _TOKENS,
            _TOKENS,
            d_model=width,
            nhead=self.heads,
            num_encoder_layers=self.layers,
            num_decoder_layers=self.layers,
            positions=None if self.positions == "none" else self.positions,
            max_length=self.length,
            attention=attention,
            dim_feedforward=4 * width,
            dropout=0.0,
        )

    def draw(self, generator: np.random.Generator, count: int) -> CopyBatch:
        """Return random sequences, about half of them of the full length."""
        source = generator.integers(0, SYMBOLS, (count, self.length))
        shorter = generator.integers(1, self.length, count, endpoint=True)
        lengths = np.where(generator.random(count) < 0.5, self.length, shorter)
        return CopyBatch(source, lengths)

    def loss(self, model: mt.nn.Module, batch: CopyBatch) -> tuple[Tensor, float]:
        """Return the mean cross entropy of the symbols, and the share of them that is right."""
        logits = model(batch.source, batch.decoder_input, batch.lengths, batch.lengths)
        targets = np.where(batch.valid, batch.source, _IGNORED)
        loss = F.cross_entropy(logits.reshape(-1, _TOKENS), targets.reshape(-1), reduction="sum")
        right = logits.numpy().argmax(axis=-1) == targets
        return loss / batch.answers, float(right.sum() / batch.answers)

    def take(self, batch: CopyBatch, part: slice) -> CopyBatch:
        """Return some of the sequences, see `Divisible.take`."""
        return CopyBatch(batch.source[part], batch.lengths[part], batch.answers)

    def cut(self, batch: CopyBatch, rank: int, size: int) -> CopyBatch:
        """Return a slice of all sequences, see `Divisible.cut`."""
        part = share(batch.source.shape[1], rank, size)
        before = batch.source[:, part.start - 1] if part.start else SEPARATOR
        return CopyBatch(batch.source[:, part], batch.lengths, batch.answers, part.start, before)

    @property
    def title(self) -> str:
        """The task and the size of the model."""
        return (
            f"Copying {self.length} symbols, {self.layers} + {self.layers} layers, "
            f"{self.heads} heads of {self.head_dim}"
        )

    @property
    def baseline(self) -> Mapping[str, float]:
        """Nobody's: what cannot copy guesses one symbol of ten."""
        return {}

    def held_out(self, model: mt.nn.Transformer) -> Mapping[str, float]:
        """Return nothing: as each batch is new, training itself measures how good the model is."""
        return {}

    @property
    def sample(self) -> str:
        """A sequence as a user types it."""
        return " ".join("314159"[: self.length])

    def report(self, models: Models, seconds: Mapping[str, float]) -> list[str]:
        """Return how well fresh sequences are copied, and the first of them."""
        batch = fresh_sequences(self.length, self.seed, _FRESH)
        results = {attention: copy_sequences(model, batch) for attention, model in models.items()}
        return [
            f"{_FRESH} fresh sequences of length {self.length}, copied symbol by symbol:",
            "",
            *_table(results, models, seconds),
            *(line for index in range(_SHOWN) for line in ("", *_example(results, index))),
        ]

    def draw_attention(self, path: Path, attention: str, model: mt.nn.Transformer) -> None:
        """Draw the weights of all heads while the model copies a fresh sequence."""
        from .picture import plot_attention

        maps = attention_maps(model, fresh_sequences(self.length, self.seed, 1))
        plot_attention(path, maps, f"Where the heads of {attention} attention look")

    def parse(self, text: str) -> CopyBatch:
        """Return the sequence that a user typed, see `parse_sequence`."""
        return parse_sequence(text, self.length)

    def respond(self, models: Models, question: CopyBatch) -> list[str]:
        """Return the sequence and its copies."""
        results = {
            attention: copy_sequences(model, question) for attention, model in models.items()
        }
        return _example(results, 0)


class CopyResult(NamedTuple):
    """Sequences, and what a model made of them."""

    batch: CopyBatch
    copies: np.ndarray  # (N, L) symbols; what lies beyond a sequence's length means nothing

    @property
    def tokens_right(self) -> float:
        """The share of symbols that are right, from 0 to 1."""
        right = self.copies == self.batch.source
        return float(right[self.batch.valid].mean())

    @property
    def sequences_right(self) -> float:
        """The share of sequences without a wrong symbol, from 0 to 1."""
        right = (self.copies == self.batch.source) | ~self.batch.valid
        return float(right.all(axis=1).mean())

    def pair(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return sequence number `index` and its copy."""
        length = self.batch.lengths[index]
        return self.batch.source[index, :length], self.copies[index, :length]


def fresh_sequences(length: int, seed: int, count: int) -> CopyBatch:
    """Return `count` sequences of one length that training with this seed did not draw from."""
    generator = np.random.default_rng([seed, 1])
    source = generator.integers(0, SYMBOLS, (count, length))
    return CopyBatch(source, np.full(count, length))


def parse_sequence(text: str, longest: int) -> CopyBatch:
    """Return the sequence that a user typed, of at most `longest` symbols.

    Raises:
        ValueError: There is something else than digits, or too many or none of them.

    >>> parse_sequence("3 1 4", longest=16).source
    array([[3, 1, 4]])
    """
    digits = text.replace(",", " ").split()
    symbols = [int(digit) for digit in "".join(digits) if digit in "0123456789"]
    if len(symbols) != len("".join(digits)) or not 1 <= len(symbols) <= longest:
        raise ValueError(
            f"expected 1 to {longest} digits from 0 to 9, for which it was trained, got {text!r}"
        )
    return CopyBatch(np.array([symbols]), np.array([len(symbols)]))


def spell(symbols: np.ndarray) -> tuple[str, ...]:
    """Return how symbols (L,) are written; the separator is a bar.

    >>> "".join(spell(np.array([3, 1, SEPARATOR])))
    '31|'
    """
    return tuple(_NAMES[symbol] for symbol in symbols)


def copy_sequences(model: mt.nn.Transformer, batch: CopyBatch) -> CopyResult:
    """Let a model copy, symbol by symbol, each time given what it wrote itself and no help."""
    count, length = batch.source.shape
    start = np.full((count, 1), SEPARATOR)
    copies = mt.generation.generate(
        model, start, length, source=batch.source, source_lengths=batch.lengths
    )
    return CopyResult(batch, copies)


class AttentionMap(NamedTuple):
    """The weights of one attention layer on one sequence, ready to be drawn."""

    title: str  # what the layer is, such as "decoder 1, cross"
    weights: np.ndarray  # (H, Lq, Lk), mostly shares: rows that sum to 1
    queries: tuple[str, ...]  # the labels of the rows
    keys: tuple[str, ...]  # the labels of the columns


def attention_maps(model: mt.nn.Module, batch: CopyBatch) -> list[AttentionMap]:
    """Return where the heads of every layer look while a model copies the first sequence."""
    with mt.nn.recorded_weights(model) as weights, no_grad():
        model(batch.source[:1], batch.decoder_input[:1])
    return [_attention_map(path, layer[0], batch) for path, layer in weights.items()]


def _attention_map(path: str, weights: np.ndarray, batch: CopyBatch) -> AttentionMap:
    """Label the weights (H, L, L) of a layer such as "decoder.layers.0.cross_attention".

    Across, a query is labelled with the symbol that it is to write: that is where it should look.
    """
    stack, _, index, kind = path.removesuffix("_attention").split(".")
    inner = (stack, kind) == ("decoder", "self")
    tokens = spell((batch.decoder_input if inner else batch.source)[0])
    return AttentionMap(f"{stack} {int(index) + 1}, {kind}", weights, tokens, tokens)


def _table(
    results: Mapping[str, CopyResult], models: Models, seconds: Mapping[str, float]
) -> list[str]:
    """Return the accuracies, a line for each attention."""
    return [
        "  attention    tokens right   sequences right   parameters   trained in",
        *(
            f"  {attention:9}   {result.tokens_right:13.2%}   {result.sequences_right:15.2%}"
            f"   {models[attention].num_parameters():10,}   {seconds[attention]:8.1f} s"
            for attention, result in results.items()
        ),
    ]


def _example(results: Mapping[str, CopyResult], index: int) -> list[str]:
    """Return a sequence and its copies; below a copy, a caret points at each wrong symbol."""
    source, lines = "", []
    for attention, result in results.items():
        wanted, found = result.pair(index)
        source = _line("source", spell(wanted))
        lines.append(_line(attention, spell(found)))
        if (wanted != found).any():
            lines.append(_line("  wrong", np.where(wanted != found, "^", " ")).rstrip())
    return [source, *lines]


def _line(label: str, symbols: Iterable[str]) -> str:
    return f"  {label:9} {' '.join(symbols)}"
