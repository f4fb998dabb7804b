"""Part of step 8: which threads of a row run a region, told by where their loop begins and ends.

A row is the innermost axis of a block, along which a loop over the threads goes. Where only the
first of them have something to do, as under the textbook guard `if i < n`, the loop ends where they
do, and no thread is asked. This module finds such loops in a kernel's regions; it writes nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import NamedTuple

import numpy as np
from numba.core import types

from . import ahead
from .compiler import VECTOR_REGISTERS
from .form import AXES, Canonical
from .regions import Node, Regions, all_lanes, is_cheap, needs
from .trees import name, names_in, negated, nodes, stores
from .uniformity import THREADS, Uniformity, is_shape, reads, sum_of

LONG_ROW = VECTOR_REGISTERS[1]  # threads: a shorter row is best as a loop of constant length
FAR_APART = 16  # threads: nearer ones run together, as lanes under a mask


class Few(NamedTuple):
    """A condition that neighbours in a row pass, or the first and one of so many: no others."""

    conditions: list[ast.expr]  # that all of the row must pass besides
    starts: list[ast.expr]  # no thread before the largest passes
    ends: list[ast.expr]  # nor from the smallest on
    steps: list[int]  # each divides the places of the threads that pass
    parts: list[ast.expr]  # all of it

    @property
    def step(self) -> int:
        """From one thread that passes to the next."""
        return lcm(*self.steps)


ALL = Few([], [], [], [], [])  # no condition


@dataclass(frozen=True, eq=False)
class Row:
    """A row of a block's threads."""

    regions: Regions

    @property
    def form(self) -> Canonical:
        """The kernel."""
        return self.regions.form

    @property
    def uniformity(self) -> Uniformity:
        """What all threads have alike."""
        return self.regions.uniformity

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The axes that the threads of a block spread over, outermost first."""
        return tuple(axis for axis in "zyx" if self.size(axis) > 1) or ("x",)

    def size(self, axis: str) -> int:
        """How many threads a block has along an axis."""
        return self.form.block[AXES.index(axis)]

    @property
    def axis(self) -> str:
        """The axis that a row goes along."""
        return self.axes[-1]

    @property
    def thread(self) -> str:
        """The name of a thread's place in its row."""
        return f"thread_{self.axis}"

    @property
    def length(self) -> int:
        """How many threads a row has."""
        return self.size(self.axis)

    @property
    def is_short(self) -> bool:
        """Whether loops over a row of threads are best of constant length."""
        return self.length < LONG_ROW

    # Which threads run a region

    def guarded(
        self, body: list[ast.stmt], mask: str | None, *, whole: bool = True
    ) -> tuple[list[ast.stmt], str | None, Few]:
        """What is left of a region's statements and mask where its loop skips threads instead.

        A loop steps over threads only if it is for the `whole` row.
        """
        left = body, mask, ALL
        tests: list[ast.expr] = [name(mask)] if mask else []
        while True:
            few = self.few(ast.BoolOp(ast.And(), [*tests])) if tests else None
            if few and self._may_skip(few, whole):
                left = body, None, few
            *definitions, last = body
            if not isinstance(last, ast.If) or last.orelse or not self._only_define(definitions):
                return left
            tests.append(last.test)
            body = [*definitions, *last.body]

    def _may_skip(self, few: Few, whole: bool) -> bool:
        """Whether a loop over a row, or over a part of it, may leave out threads."""
        if self.is_short:
            return not (few.starts or few.ends or few.steps)
        return whole or not few.steps

    def _only_define(self, statements: list[ast.stmt]) -> bool:
        """Whether statements do nothing but name values that no other region needs."""
        made = [s for s in statements if isinstance(s, ast.Assign) and is_cheap(s.value)]
        names = [target.id for s in made if isinstance(target := s.targets[0], ast.Name)]
        return len(names) == len(statements) and self.regions.slots.isdisjoint(names)

    def running(self, node: Node) -> int:
        """How many threads of a row, the first ones, run a node at most; 0 if it has none."""
        counts = [0]
        for region in all_lanes([node]):
            if not region.body:
                counts.append(self.length)
            elif self.regions.without_dead_definitions(region.body):
                few = self.guarded(region.body, region.mask)[2]
                counts.append(min([self.length, *map(self.most, few.ends)]))
        return max(counts)

    @cached_property
    def needed(self) -> Mapping[str, int]:
        """How many threads of a row, the first ones, need a slot at most."""
        needed = dict.fromkeys(self.regions.slots - self.regions.shown, 0)
        for region in all_lanes(self.regions.nodes):
            count = self.running(region) or self.length
            read = needs(region).union(*map(reads, region.body))
            needed |= {slot: max(needed[slot], count) for slot in read & needed.keys()}
        return needed

    def most(self, end: ast.expr) -> int:
        """The largest that an end of a loop over the threads can be, as far as the text says."""
        match end:
            case ast.BinOp(left, ast.Sub(), right) if self.uniformity.is_nonnegative(right):
                return self.most(left)
        number = self.known(end)
        return self.length if number is None else number

    def known(self, number: ast.expr) -> int | None:
        """A whole number, if the text says which one."""
        match number:
            case ast.Constant(value=int(value)):
                return value
            case ast.Name(id=known) if isinstance(self.form.source.values.get(known), int):
                return int(self.form.source.values[known])
        return None

    # Which threads pass a condition

    def few(self, test: ast.expr) -> Few | None:
        """The condition of a region as the ends and steps of its loop, if it can be told by them.

        What all threads of a row decide alike is asked before the loop. Ends tell textbook guards
        (`i < n`, where i grows with the thread), starts those of what has a rim (`i > 0`), steps
        what the first lane of each warp does (`threadIdx.x % 32 == 0`): the loop has no mask.
        """
        found = Few([], [], [], [], self.conjuncts(test))
        for part in found.parts:
            if isinstance(part, ast.Constant) or not (is_cheap(part) and self._is_integral(part)):
                return None
            if self._is_fixed(part):
                found.conditions.append(part)
            elif step := self._step_of(part):
                found.steps.append(step)
            elif end := self._end_of(part):
                found.ends.append(end)
            elif start := self._start_of(part):
                found.starts.append(start)
            else:
                return None
        return found if found.parts and not (found.starts and found.steps) else None

    def conjuncts(self, test: ast.expr) -> list[ast.expr]:
        """What has to be true for a condition to be true, in terms of what never changes."""
        match test:
            case ast.BoolOp(op=ast.And(), values=values):
                return [part for value in values for part in self.conjuncts(value)]
            case ast.UnaryOp(op=ast.Not(), operand=ast.BoolOp(op=ast.Or(), values=values)):
                return [part for value in values for part in self.conjuncts(negated(value))]
            case ast.Compare(left, ops, [*rights]) if len(ops) > 1:
                pairs = zip([left, *rights], ops, rights, strict=False)
                each = [ast.Compare(a, [op], [b]) for a, op, b in pairs]
                return self.conjuncts(ast.BoolOp(ast.And(), [*each]))
            case ast.Call(ast.Name("always"), [holds]):
                return self.conjuncts(holds)
            case ast.Name(id=known) if known in self.regions.conditions:
                return self.conjuncts(self.regions.conditions[known])
        return [ahead.expanded(test, self.regions.recomputed)]

    def _end_of(self, test: ast.expr) -> ast.expr | None:
        """How many threads of a row pass a comparison, if they are the first ones."""
        match test:
            case ast.Compare(first, [ast.Eq()], [ast.Constant(value=0)]):
                return self._first_of(first)
        compared = less_and_more(test)
        if not compared:
            return None
        number, end, or_equal = compared
        if not (self.runs_along(number) and self._is_fixed(end)):
            return None
        more_than, less_than = self._beside_thread(number)
        made = [] if isinstance(end, ast.Name) else [end]
        if any(map(self._has_no_sign, [*made, *more_than, *less_than])):
            return None
        end = ast.BinOp(end, ast.Sub(), sum_of(more_than)) if more_than else end
        end = ast.BinOp(end, ast.Add(), sum_of(less_than)) if less_than else end
        return ast.BinOp(end, ast.Add(), ast.Constant(1)) if or_equal else end

    def _start_of(self, test: ast.expr) -> ast.expr | None:
        """How many threads of a row fail a comparison, if they are the first ones.

        Not of `i > n` for any n, as the largest has no n + 1.
        """
        compared = less_and_more(test)
        if compared and not compared[2] and self.known(compared[0]) is None:
            return None
        return self._end_of(opposite(test))

    def _has_no_sign(self, term: ast.expr) -> bool:
        """Whether what a term is taken from may become huge, where it should be below zero."""
        kinds, values = self.form.kinds, self.form.source.values
        of_names = [kinds.get(each) or values.get(each) for each in names_in(term)]
        types_of = [str(getattr(kind, "dtype", kind)) for kind in of_names]
        return not is_shape(term) and any(kind.startswith("uint") for kind in types_of)

    def _step_of(self, test: ast.expr) -> int | None:
        """How many threads of a row lie from one that passes a comparison to the next."""
        match test:
            case ast.Compare(
                ast.BinOp(ast.Name(id=thread), ast.Mod() | ast.BitAnd() as op, number),
                [ast.Eq()],
                [ast.Constant(value=0)],
            ) if thread == self.thread:
                step = (self.known(number) or 0) + isinstance(op, ast.BitAnd)
                is_size = isinstance(op, ast.Mod) or step & (step - 1) == 0
                return step if is_size and step >= FAR_APART else None
        return None

    def _first_of(self, number: ast.expr) -> ast.expr | None:
        """How many threads of a row have the number 0: one, or as many as a warp has."""
        match number:
            case ast.Name(id=thread) if thread == self.thread:
                return ast.Constant(1)
            case ast.BinOp(ast.Name(id=thread), ast.FloorDiv(), size) if thread == self.thread:
                fixed = self._is_fixed(size) and self.uniformity.is_nonnegative(size)
                return size if fixed else None
        return None

    def runs_along(self, index: ast.expr) -> bool:
        """Whether an index grows by one from thread to thread of a row."""
        match ahead.expanded(index, self.regions.recomputed):
            case ast.Name(id=variable):
                return variable == self.thread
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return (self.runs_along(left) and self._is_fixed(right)) or (
                    self._is_fixed(left) and self.runs_along(right)
                )
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return self.runs_along(left) and self._is_fixed(right)
        return False

    def _beside_thread(self, index: ast.expr) -> tuple[list[ast.expr], list[ast.expr]]:
        """What an index that runs along is more than the thread, and what less."""
        match ahead.expanded(index, self.regions.recomputed):
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
                along, rest = (left, right) if self.runs_along(left) else (right, left)
                more, less = self._beside_thread(along)
                return ([*more, rest], less) if isinstance(op, ast.Add) else (more, [*less, rest])
        return [], []

    def _is_integral(self, value: ast.expr) -> bool:
        """Whether an expression is made of whole numbers alone."""
        reals = types.Float | types.Complex
        for node in nodes(value):
            number = node.value if isinstance(node, ast.Constant) else 0
            if isinstance(node, ast.Name):
                number = self.form.source.values.get(node.id, 0)
                if isinstance(self.form.kinds.get(node.id), reals):
                    return False
            if not isinstance(number, int | np.integer | np.bool_):
                return False
        return True

    def _is_fixed(self, value: ast.expr) -> bool:
        """Whether an expression is known before a row runs, and the same for all its threads."""
        others = THREADS - {self.thread}
        return names_in(value).isdisjoint((self.uniformity.varying | self._made_by_lanes) - others)

    @cached_property
    def _made_by_lanes(self) -> set[str]:
        """The names that have a value only where the threads that make it have run."""
        return {made for region in all_lanes(self.regions.nodes) for made in stores(region.body)}


def less_and_more(test: ast.expr) -> tuple[ast.expr, ast.expr, bool] | None:
    """The two sides of a comparison, the lesser first, and whether they may be equal."""
    match test:
        case ast.UnaryOp(ast.Not(), ast.Compare() as compared):
            found = less_and_more(compared)
            return found and (found[1], found[0], not found[2])
        case ast.Compare(less, [ast.Lt() | ast.LtE() as op], [more]):
            return less, more, isinstance(op, ast.LtE)
        case ast.Compare(more, [ast.Gt() | ast.GtE() as op], [less]):
            return less, more, isinstance(op, ast.GtE)
    return None


def opposite(test: ast.expr) -> ast.expr:
    """What is true where a condition is not."""
    match test:
        case ast.UnaryOp(ast.Not(), operand):
            return operand
    return negated(test)
