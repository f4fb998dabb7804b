"""Yours: a gate that nobody knows before, judged by what must hold of any, and by itself.

The answer's process says what the gate is: its numbers, and its slopes. What follows from them, the
judge works out: that is the truth for a backward and for a kernel, whatever was invented.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from minitransformer_kernels.arrays import ceil_div
from minitransformer_kernels.cuda import Kernel

from ..exercise import Array, Case, Exercise, NotYet, Random, Wrong, launched, left_alone
from ..lesson import is_untouched

WIDTH, COLUMNS = 16, 32  # of the kernel's state, and of a block
NUDGE = 1e-4
SAME = 1e-6  # off by that, relative to 1, is rounding
ROUNDING = 32 * float(np.finfo(np.float64).eps)  # what a gate may be off by, of 1, in a few steps
NARROW = 4 * float(np.finfo(np.float32).eps)  # what a kernel's arithmetic may move its inputs by
LARGE = 100.0  # numbers of keys that tell of extremes

Way = Callable[..., tuple[Array, ...]]


def _tokens(random: Random, length: int, width: int = 4, columns: int = 3) -> dict[str, Any]:
    return {
        "key": random.standard_normal((length, width)),
        "value": random.standard_normal((length, columns)),
        "w": random.standard_normal(width),
    }


def _gate_cases(random: Random) -> Iterator[Case]:
    yield Case("six tokens", _tokens(random, 6) | {"at": 0}, "a number for each token")
    yield Case("one token", _tokens(random, 1) | {"at": 0}, "there is nothing beside it")
    middle = _tokens(random, int(random.integers(5, 9)), 16, 5) | {"at": int(random.integers(3, 9))}
    yield Case("from the middle of a text", middle, "`at` tokens came before these")
    loud = _tokens(random, 8) | {"at": 4}
    signs = random.choice([-1, 1], 8)[:, None]
    yield Case("loud tokens", loud | {"key": 1e4 * signs * abs(loud["key"]), "value":
               1e4 * loud["value"]}, "what does `np.exp` make of a large number?")  # fmt: skip
    quiet = _tokens(random, 5) | {"at": 0}
    quiet |= {"key": 0 * quiet["key"], "value": 0 * quiet["value"], "w": 0 * quiet["w"]}
    yield Case("tokens that are zero", quiet, "0 / 0 is no number")
    yield Case(
        "far from the first", _tokens(random, 6) | {"at": 5000}, "what grows with the place?"
    )
    several = _tokens(random, 1100) | {"at": 0}
    several["w"] *= 3
    sizes = 4 ** random.uniform(-1, 1, (2, 1100, 1))
    yield Case("a long text", several | {"key": sizes[0] * several["key"], "value":
               sizes[1] * several["value"]}, "what differs among its tokens?")  # fmt: skip


def _odd(gates: Any) -> str:
    """What is wrong with a gate's result as such, before any number is looked at; else nothing."""
    if not isinstance(gates, np.ndarray):
        return (f"the gate returns no array but {type(gates).__name__}: backward and pictures need "
                "an array, a number for each token")  # fmt: skip
    if gates.dtype == np.float64:
        return ""
    return f"the gates are {gates.dtype}, and should be float64, as its inputs are: " + {
        "b": "for booleans return 1.0 and 0.0, as by .astype(float)",
        "i": "return 1.0 and 0.0, not 1 and 0, as by .astype(float)",
        "f": "in less, what backward and check make of a small nudge is lost (is there "
             "astype(np.float32), or np.empty(..., np.float32)?)",
        "c": "are there complex numbers on the way?",
    }.get(gates.dtype.kind.replace("u", "i"), "nothing else can be counted with")  # fmt: skip


def _gates(answer: Any, key: Array, value: Array, w: Array, at: int) -> tuple[Array, Array]:
    """The gates of a text, and those of its tokens one by one."""
    with np.errstate(all="ignore"):
        gates = left_alone(answer, key, value, w, at)
        if gates is None:
            raise NotYet("nothing is returned yet: it is your turn")
        if told := _odd(gates):
            raise NotYet(told)
        if gates.shape != (len(key),):
            return gates, np.full(len(key), np.nan)
        alone = [answer(key[i : i + 1], value[i : i + 1], w, at + i) for i in range(len(key))]
    return gates, np.array(alone).reshape(-1)


class _Gate(Exercise):
    """Any gate will do of which what must hold does."""

    def problem(self, case: Case, got: Iterable[Any]) -> str:
        return self._found(case, *got)[0]

    def advice(self, case: Case, got: Iterable[Any]) -> str:
        return self._found(case, *got)[1]

    @staticmethod
    def _found(case: Case, gates: Array, alone: Array) -> tuple[str, str]:
        """What is broken, and what that means."""
        length, at = len(case.inputs["key"]), int(case.inputs["at"])
        if gates.shape != (length,):
            return (f"expected {length} gates, an array of the shape ({length},), got the shape "
                    f"{gates.shape}", "Each token has one number")  # fmt: skip
        if not np.isfinite(gates).all():
            i = int(np.argmin(np.isfinite(gates)))
            return (f"the gate of token {i} is {gates[i]}", "Is there an infinity over an "
                    "infinity, or 0 over 0, or a root, a power or a logarithm of what may be below "
                    "0? 1 / (1 + exp(-x)) has none of them")  # fmt: skip
        for beyond, told in (
            (gates > 1, "above 1, a state grows with each token, and overflows"),
            (gates < 0, "below 0, a state changes its sign with each token"),
        ):
            if beyond.any():
                i = int(np.argmax(beyond))
                return f"the gate of token {i} is {gates[i]:.6g}", f"Gates are from 0 to 1: {told}"
        off = abs(gates - alone) > SAME
        if off.any():
            i = int(np.argmax(off))
            return (
                f"the gate of token {i} is {gates[i]:.6g} here, and {alone[i]:.6g} where it comes "
                f"alone, with at={at + i}",
                "A gate may know its own token and its place, `at + i`: no others, before or after",
            )
        if case.name == "a long text" and np.ptp(gates) < SAME:
            return (f"each of {length:,} tokens has the gate {gates[0]:.6g}", "That is lesson 7's "
                    "memory: let the gate depend on the key, the value or the place")  # fmt: skip
        return "", ""


def _walk(
    q: Array, k: Array, v: Array, g: Array, S: Array, *, fades_all: bool = False,
    late: bool = False,
) -> tuple[Array, Array]:  # fmt: skip
    """Outputs and the last state of one head, or of heads: token by token."""
    out = np.empty_like(v)
    for i in range(k.shape[-2]):
        fade, new = g[..., i, None, None], k[..., i, :, None] * v[..., i, None, :]
        before, S = S, fade * (S + new) if fades_all else fade * S + new
        out[..., i, :] = np.einsum("...em,...e->...m", before if late else S, q[..., i, :])
    return out, S


def _backward_cases(random: Random) -> Iterator[Case]:
    for name, length, starts, ends, hint in (
        ("one token", 1, False, False, "there is no scan yet: look at the formulas themselves"),
        ("two tokens", 2, False, False, "how much of R_2 does R_1 get, and which gate is it?"),
        ("the last state is used", 3, False, True, "R begins with dS"),
        ("from a state", int(random.integers(5, 8)), True, True, "S begins with the state given"),
        ("loud keys", 8, True, True, "some gates are at an end, 0 or 1: what is their slope?"),
    ):
        loud = 4 if name == "loud keys" else 1
        yield Case(
            name,
            {
                "do": random.standard_normal((length, 3)),
                "dS": ends * random.standard_normal((4, 3)),
                "q": random.standard_normal((length, 4)),
                "k": loud * random.standard_normal((length, 4)),
                "v": random.standard_normal((length, 3)),
                "w": random.standard_normal(4),
                "at": 5 if starts else 0,
                "S": starts * random.standard_normal((4, 3)),
            },
            hint,
        )  # fmt: skip


GRADIENTS = "dq", "dk", "dv", "dw", "dS_0"
BY_GATE = "dk", "dv", "dw"  # of these a part comes through the gate


def _differentiated(
    answer: Any, do: Array, dS: Array, q: Array, k: Array, v: Array, w: Array, at: int, S: Array
) -> tuple[Any, ...]:
    """Five gradients; the gates; their slopes by k, v and w; and how far off these may be."""
    gate = getattr(answer, "__globals__", {}).get("gate")
    if gate is None:
        raise NotYet("it does not call `gate`, so nobody knows what it is the backward of")
    gates = gate(k, v, w, at)
    if told := _odd(gates):
        raise NotYet(f"exercise 1: {told}")
    result = left_alone(answer, do, dS, q, k, v, w, at, S)
    if result is None:
        raise NotYet("nothing is returned yet: it is your turn")
    if not isinstance(result, tuple | list) or len(result) != len(GRADIENTS):
        raise NotYet(f"expected {len(GRADIENTS)} gradients: {', '.join(GRADIENTS)}")
    slopes, doubts = zip(*(_slopes(lambda: gate(k, v, w, at), x) for x in (k, v, w)), strict=True)
    return *result, gates, *slopes, *doubts


def _slopes(gates: Callable[[], Array], array: Array) -> tuple[Array, Array]:
    """The slopes of L gates by each number of an array, and how far off they may be.

    Each number is nudged, and twice as far. Of both slopes is made a better one; by as much as the
    two differ, it may be off: where a gate is steep, or has a kink. Where the two sides of a nudge
    differ by more than a bend makes, a kink is very near: by that, too. And by rounding.
    """
    here = gates()
    slopes = np.empty((len(here), *array.shape))
    doubts = np.empty_like(slopes)
    for index in np.ndindex(array.shape):
        kept, made, bends = array[index], [], []
        for nudge in (NUDGE, 2 * NUDGE):
            array[index] = kept + nudge
            ahead = gates()
            array[index] = kept - nudge
            behind = gates()
            made.append((ahead - behind) / (2 * nudge))
            bends.append((ahead - here + behind - here) / nudge**2)
        array[index] = kept
        near, far = made
        slopes[:, *index] = (4 * near - far) / 3
        doubts[:, *index] = abs(near - far) + NUDGE * abs(bends[0] - bends[1]) + ROUNDING / NUDGE
    return slopes, doubts


def _scans(
    do: Array, dS: Array, q: Array, k: Array, v: Array, g: Array, S: Array, *,
    forgets: bool = False, keeps: bool = False, own: bool = False, unread: bool = False,
    late: bool = False, after: bool = False, begins: bool = False, gated: bool = False,
    ungated: bool = False, other: bool = False,
) -> tuple[Array, ...]:  # fmt: skip
    """The gradients of q, k, v, the first state and the gates. Each option is a mistake.

    Args:
        do: Of the outputs.
        dS: Of the last state.
        q: Queries.
        k: Keys.
        v: Values.
        g: Gates.
        S: The first state.
        forgets: dS is not used.
        keeps: R does not fade.
        own: R fades by the gate of its own token, in place of the next one's.
        unread: dk and dv are made before R has its token.
        late: dq is made before S has its token.
        after: dg is made of S_i.
        begins: S begins at zero.
        gated: dg is made before R has its token.
        ungated: dS_0 lacks the first gate.
        other: S does not fade.
    """
    states = [0 * S if begins else S]
    for i in range(len(k)):
        states.append((1 if other else g[i]) * states[i] + np.outer(k[i], v[i]))
    dq = np.array([states[i + (not late)] @ x for i, x in enumerate(do)])
    dk, dv, dg = np.empty_like(k), np.empty_like(v), np.empty_like(g)
    R, fade = 0 * dS if forgets else dS, np.float64(1)
    for i in reversed(range(len(k))):
        R = (1 if keeps else g[i] if own else fade) * R
        earlier, R = R, R + np.outer(q[i], do[i])
        dk[i], dv[i] = (earlier if unread else R) @ v[i], k[i] @ (earlier if unread else R)
        dg[i] = ((earlier if gated else R) * states[i + after]).sum()
        fade = g[i]
    return dq, dk, dv, R if ungated else (1 if keeps else fade) * R, dg


SCANS = {
    "dS, the gradient of the last state, is not used": "forgets",
    "R does not fade": "keeps",
    "R fades by its own token's gate, not by the next one's": "own",
    "dk and dv are made before R has its token": "unread",
    "dq is made before S has its token": "late",
    "dg is made of S_i, not of the state before": "after",
    "S begins at zero, not with the state given": "begins",
    "dg is made before R has its token": "gated",
    "dS_0 is R_1: it lacks the first gate": "ungated",
    "S does not fade": "other",
}
NO_GATE = "nothing comes through the gate"
SIGN = "what comes through the gate has the wrong sign"
LACKING = {f"{name} lacks what comes through the gate": name for name in BY_GATE}


class _Backward(Exercise):
    """The truth is made of the gates that the answer's process tells, and of their slopes."""

    def problem(self, case: Case, got: Iterable[Any]) -> str:
        return next(iter(self._off(case, list(got)).values()), "")

    def advice(self, case: Case, got: Iterable[Any]) -> str:
        got = list(got)
        off = self._off(case, got)
        for name, x, like in zip(GRADIENTS, got, "qkvwS", strict=False):
            if name in off and x.shape != case.inputs[like].shape:
                return (f"{name} has a number for each of `{like}`: zeros, if nothing comes "
                        f"there, as np.zeros_like({like})")  # fmt: skip
        ways: dict[str, dict[str, Any]] = {name: {flag: True} for name, flag in SCANS.items()}
        ways |= {NO_GATE: {"through": 0}, SIGN: {"through": -1}}
        ways |= {name: {"without": lacking} for name, lacking in LACKING.items()}
        names = [name for name, way in ways.items() if not self._off(case, got, **way)]
        if names:
            return f"It looks like this mistake: {', or '.join(names)}"
        if set(off) <= set(BY_GATE):
            told = "" if case.name != "loud keys" else f" ({case.hint})"
            return ("The scans are right, as dq and dS_0 are: look at what comes through the gate, "
                    f"its slopes by k, v and w, times dg{told}")  # fmt: skip
        return f"Hint: {case.hint}"

    def _off(
        self, case: Case, got: list[Any], through: float = 1, without: str = "", **mistakes: bool
    ) -> dict[str, str]:
        """What is off, of each gradient that is: of the truth, or of what a mistake makes."""
        do, dS, q, k, v, w, _, S = case.inputs.values()
        g, *rest = got[len(GRADIENTS) :]
        dq, dk, dv, dS_0, dg = _scans(do, dS, q, k, v, g, S, **mistakes)
        made = {"dq": dq, "dk": dk, "dv": dv, "dw": np.zeros_like(w), "dS_0": dS_0}
        flow = max(float(abs(x).max()) for x in (*made.values(), dg))
        allowed = {name: np.full(x.shape, ROUNDING * flow) for name, x in made.items()}
        for name, slope, doubt in zip(BY_GATE, rest[:3], rest[3:], strict=True):
            made[name] = made[name] + through * (name != without) * np.tensordot(dg, slope, 1)
            allowed[name] += np.tensordot(abs(dg), doubt, 1)
        pairs = zip(made.items(), got, strict=False)
        told = {n: self._told(n, _near(x, y, allowed[n]), y) for (n, y), x in pairs}
        return {name: words for name, words in told.items() if words}


def _near(got: Array, truth: Array, allowed: Array) -> Array:
    """What is got; the truth in its place where nobody can tell the two apart."""
    if got.shape != truth.shape or got.dtype.kind not in "fiub":
        return got
    return np.where(abs(got - truth) <= allowed, truth, got)


def _kernel_cases(random: Random) -> Iterator[Case]:
    for name, heads, length, columns, at, scale, hint in (
        ("one token", 1, 1, 5, 0, 1, "by hand: S fades, the token comes in, the output is read"),
        ("one column", 1, 4, 1, 0, 1, "only thread 0 has a column: what do the other 31 do?"),
        ("two heads", 2, 5, 32, 3, 1, "is the head in every index?"),
        ("50 columns", 2, int(random.integers(9, 20)), 50, 7, 1,
         "there are two blocks: which one is this?"),
        ("loud keys", 1, 6, 3, 0, LARGE, "what does `math.exp` make of a large number?"),
    ):  # fmt: skip
        widths = WIDTH, WIDTH, columns
        arrays = (random.standard_normal((heads, length, width), np.float32) for width in widths)
        inputs = dict(zip(("query", "key", "value"), arrays, strict=True))
        inputs["key"] *= np.float32(scale)
        yield Case(name, inputs | {
            "w": random.standard_normal(WIDTH, np.float32), "at": at,
            "state": scale * random.standard_normal((heads, WIDTH, columns), np.float32),
        }, hint)  # fmt: skip


def _launch(
    answer: Any, query: Array, key: Array, value: Array, w: Array, at: int, state: Array
) -> tuple[Array, ...]:
    """The gates, also from 0, and how rounding moves them; what the kernel writes, and leaves."""
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise NotYet("`yours` is the gate and its kernel: yours = gate, gated_kernel")
    gate, kernel = answer
    if not isinstance(kernel, Kernel):
        raise NotYet("gated_kernel is no kernel: it needs @cuda.jit")
    if is_untouched(inspect.getsource(kernel.function)):
        raise NotYet("gated_kernel: nothing is written yet: it is your turn")
    heads, length, columns = value.shape
    grid, left = (ceil_div(columns, COLUMNS), heads), state.copy()
    rest = query, key, value, w, at
    out = launched(kernel, grid, COLUMNS, *rest, left, out=value.shape)
    if heads > 1:  # it takes long
        launched(kernel, grid, COLUMNS, *rest, state.copy(), out=value.shape, share=length + WIDTH)
    with np.errstate(all="ignore"):
        exact = zip(key.astype(np.float64), value.astype(np.float64), strict=True)
        gates = [gate(k, v, w.astype(np.float64), at) for k, v in exact]
        if told := _odd(gates[0]):
            raise NotYet(f"exercise 1: {told}")
        first = [gate(k, v, w.astype(np.float64), 0) for k, v in zip(key, value, strict=True)]
        moved = [_moved(gate, k, v, w, at) for k, v in zip(key, value, strict=True)]
    return np.array(gates), np.array(first), np.array(moved), out, left


def _moved(gate: Any, key: Array, value: Array, w: Array, at: int) -> Array:
    """How far the gates of a head move when their inputs do, by what float32 rounds."""
    random, arrays = np.random.default_rng(0), [np.float64(x) for x in (key, value, w)]
    exact, far = gate(*arrays, at), np.zeros(len(key))
    for _ in range(8):
        signs = (random.choice([-1, 1], x.shape) for x in arrays)
        nudged = (x * (1 + NARROW * sign) for x, sign in zip(arrays, signs, strict=True))
        far = np.maximum(far, abs(gate(*nudged, at) - exact))
    return far


KERNELS: dict[str, dict[str, Any]] = {
    "the state given is not read: S begins at zero": {"begins": True},
    "the last state is not written": {"unwritten": True},
    "the state does not fade": {"faded": False},
    "the new token fades, too": {"fades_all": True},
    "`out` is made before the state has its token": {"late": True},
    "a token fades by the gate of the one before it": {"shifted": True},
    "all heads fade as head 0 does": {"alike": True},
    "places are counted from 0, not from `at`": {"placed": True},
}


class _Kernel(Exercise):
    """The truth is a walk with the gates that the answer's process tells."""

    def problem(self, case: Case, got: Iterable[Any]) -> str:
        return self._off(case, list(got))

    def advice(self, case: Case, got: Iterable[Any]) -> str:
        got = list(got)
        names = [name for name, way in KERNELS.items() if not self._off(case, got, **way)]
        if names:
            return f"It looks like this mistake: {', or '.join(names)}"
        told = self._fading(case, *got) or f"Hint: {case.hint}"
        far = float(np.nanmax(got[2], initial=0))
        return told if far < self.tolerance else (
            f"{told}. (Or is it rounding? Inputs that differ by {NARROW:.0e}, as float32 may, move "
            f"this gate by {far:.1g} here)")  # fmt: skip

    def _fading(
        self, case: Case, gates: Array, _: Array, moved: Array, out: Array, left: Array
    ) -> str:
        """What the first token that is off must have faded by, if all columns agree about that."""
        names = "query", "key", "value", "state"
        query, key, value, state = (case.inputs[name][:1].astype(np.float64) for name in names)
        for i in range(value.shape[1]):
            token = slice(i, i + 1)
            q, k, v, g = query[:, token], key[:, token], value[:, token], gates[:1, token]
            wanted, state_after = _walk(q, k, v, g, state)
            if self._told("out", out[:1, token], wanted):
                unfaded = _walk(q, 0 * k, v, g**0, state)[0]
                faded = ((out[0, i] - wanted[0, 0]) / unfaded[0, 0]) + g[0, 0]
                agree = np.ptp(faded) < 1e-3 * max(1, abs(faded[0]))
                if agree and (len(faded) > 1 or -1e-3 < faded[0] < 1 + 1e-3):
                    return (f"Token {i} fades by {faded[0]:.4g} in the kernel, and by "
                            f"{g[0, 0]:.4g} in `gate`: is it the same formula, begun anew for "
                            "each token?")  # fmt: skip
                return ""
            state = state_after
        return ""

    def _off(
        self, case: Case, got: list[Any], begins: bool = False, unwritten: bool = False,
        faded: bool = True, shifted: bool = False, alike: bool = False, placed: bool = False,
        **walk: bool,
    ) -> str:  # fmt: skip
        """What is off, from the truth or from what a mistake makes."""
        query, key, value, _, _, state = (np.float64(x) for x in case.inputs.values())
        gates, first, moved, *written = got
        g = first if placed else gates
        g = np.broadcast_to(g[:1], g.shape) if alike else g if faded else np.ones_like(g)
        g = np.hstack([np.ones((len(g), 1)), g[:, :-1]]) if shifted else g
        before = 0 * state if begins else state
        out, last = _walk(query, key, value, g, before, **walk)
        allowed = _doubts(query, key, value, g, before, moved)
        made = out, state if unwritten else last
        four = zip(self.outputs[3:], written, made, allowed, strict=True)
        return next(filter(None, (self._told(n, _near(x, y, z), y) for n, x, y, z in four)), "")


def _doubts(q: Array, k: Array, v: Array, g: Array, S: Array, moved: Array) -> tuple[Array, Array]:
    """How far outputs and the last state may be off, where gates may be by what moved them."""
    out, off = np.empty_like(v), 0 * S
    for i in range(k.shape[-2]):
        fade, by = g[:, i, None, None], moved[:, i, None, None]
        off, S = (fade + by) * off + by * abs(S), fade * S + k[:, i, :, None] * v[:, i, None, :]
        out[:, i] = np.einsum("hem,he->hm", off, abs(q[:, i]))
    return out, off


_GATE = "1 / (1 + np.exp(-4 - x))"
_LINES = (
    "            x = float32(4)\n"
    "            for e in range(WIDTH):\n"
    "                x += float32(0.25) * w[e] * key[h, i, e]  # 1 / sqrt(E)\n"
)
_COMES = "        R = R + np.outer(q[i], do[i])\n"
_GIVES = "        dk[i], dv[i] = R @ v[i], k[i] @ R\n"
_READ = "                n += S[e] * query[h, i, e]  # (3)\n"
_WRITE = "                S[e] = g * S[e] + key[h, i, e] * value[h, i, m]  # (2)\n"

EXERCISES = (
    _Gate(
        "gate", "gate", 3, _gate_cases, lambda *_: (), ("the gates", "the gates one by one"),
        run=_gates,
        wrong=(
            Wrong("a gate above 1", {_GATE: "1 + np.exp(x)"}, "six tokens"),
            Wrong("a gate below 0", {_GATE: "np.tanh(x)"}, "six tokens"),
            Wrong("one number for the whole text", {_GATE: "float(np.exp(-abs(x).max()))"},
                  "six tokens"),
            Wrong("a column, not a row of numbers", {_GATE: "1 / (1 + np.exp(-4 - x[:, None]))"},
                  "six tokens"),
            Wrong("a number for each row of the state", {_GATE: "1 / (1 + np.exp(-4 - key * w))"},
                  "six tokens"),
            Wrong("the largest of all tokens is 1: it looks ahead", {
                  _GATE: "np.exp(x - x.max())"}, "six tokens"),
            Wrong("softmax over the tokens", {_GATE: "np.exp(x) / np.exp(x).sum()"}, "six tokens"),
            Wrong("tokens before it are asked, too", {
                  _GATE: "1 / (1 + np.exp(-4 - np.cumsum(x)))"}, "six tokens"),
            Wrong("the next token decides", {
                  _GATE: "1 / (1 + np.exp(-4 - np.append(x[1:], 0)))"}, "six tokens"),
            Wrong("the mean of the text is taken away", {
                  _GATE: "1 / (1 + np.exp(x.mean() - 4 - x))"}, "six tokens"),
            Wrong("it is drawn", {_GATE: "np.random.default_rng().random(len(key))"},
                  "six tokens"),
            Wrong("it writes to the key", {"    x = key @ w": "    key *= 2\n    x = key @ w"},
                  "six tokens"),
            Wrong("the place is that in the array: `at` is forgotten",
                  {_GATE: "np.arange(1, len(key) + 1) / (len(key) + 2.0)"}, "six tokens"),
            Wrong("the place without `at`",
                  {_GATE: "1 - 0.5 ** (np.arange(len(key)) + 1.0)"}, "six tokens"),
            Wrong("a constant", {_GATE: "np.full(len(key), 0.9)"}, "a long text"),
            Wrong("a list", {_GATE: "[0.9 for _ in key]"}, "six tokens"),
            Wrong("narrow numbers", {_GATE: "np.float32(1) / (1 + np.exp(-4 - x)).astype('f4')"},
                  "six tokens"),
            Wrong("yes or no", {_GATE: "x > 0"}, "six tokens"),
            Wrong("a root of what is below 0", {_GATE: "np.sqrt(np.minimum(x, 1) / 2)"},
                  "six tokens"),
            Wrong("infinity over infinity", {_GATE: "np.exp(4 + x) / (1 + np.exp(4 + x))"},
                  "loud tokens"),
            Wrong("above 1 for loud tokens only", {_GATE: "1 / (1 + np.exp(-4 - x)) "
                  "* (1 + (abs(x) > 100))"}, "loud tokens"),
            Wrong("divided by a length that may be zero", {
                  _GATE: "(x / np.sqrt((key**2).sum(axis=1) * (w @ w))) ** 2"},
                  "tokens that are zero"),
        ),
    ),
    _Backward(
        "gated-backward", "gated_backward", 5, _backward_cases, lambda *_: (),
        (*GRADIENTS, "the gates", *(f"{x} by {y}" for x in ("slopes", "doubts") for y in "kvw")),
        1e-6,
        _differentiated,
        wrong=(
            Wrong("the gate is worked out by another formula, not called",
                  {"gate(k, v, w, at), [S], dS": "1 / (1 + np.exp(-4 - k @ w / 2)), [S], dS"},
                  "one token"),
            Wrong("dq is made before S has its token",
                  {"states[i + 1] @ do[i]": "states[i] @ do[i]"}, "one token"),
            Wrong("dk and dv are made before R has its token", {
                  _COMES + _GIVES: _GIVES + _COMES},
                  "one token"),
            Wrong("nothing comes through the gate", {
                  "dk + np.outer(dx, w), dv, dx @ k, R": "dk, dv, 0 * w, R"}, "two tokens"),
            Wrong("dw lacks what comes through the gate", {"dx @ k, R": "0 * w, R"},
                  "two tokens"),
            Wrong("dk lacks what comes through the gate", {"dk + np.outer(dx, w)": "dk"},
                  "two tokens"),
            Wrong("what comes through the gate has the wrong sign",
                  {"dx = dg": "dx = -dg"}, "two tokens"),
            Wrong("the slope of the gate is g, not g (1 - g)", {"g * (1 - g)": "g"},
                  "two tokens"),
            Wrong("the root of E is forgotten", {"(1 - g) / math.sqrt(len(w))": "(1 - g)"},
                  "two tokens"),
            Wrong("R does not fade", {"R = g[i] * R": "pass"}, "one token"),
            Wrong("S does not fade", {"g[i] * states[i]": "states[i]"}, "two tokens"),
            Wrong("R fades by its own token's gate, not by the next one's", {
                  _COMES: "        R = (1 if i == len(k) - 1 else g[i] / g[i + 1]) * R\n" + _COMES},
                  "two tokens"),
            Wrong("dg is made of S_i, not of the state before",
                  {"(R * states[i]).sum()": "(R * states[i + 1]).sum()"}, "one token"),
            Wrong("dg is made before R has its token", {
                  _COMES:
                  "        dg[i] = (R * states[i]).sum()\n" + _COMES,
                  "        dg[i] = (R * states[i]).sum()\n        R = g": "        R = g"},
                  "two tokens"),
            Wrong("dS_0 is R_1: it lacks the first gate", {
                  "        R = g[i] * R\n": "        R = g[i] * R if i else R\n"}, "one token"),
            Wrong("dS, the gradient of the last state, is not used",
                  {"at), [S], dS": "at), [S], 0 * dS"}, "the last state is used"),
            Wrong("S begins at zero, not with the state given",
                  {"at), [S], dS": "at), [0 * S], dS"}, "from a state"),
        ),
    ),
    _Kernel(
        "gated-kernel", "yours", 5, _kernel_cases, lambda *_: (),
        ("the gates", "the gates from 0", "how rounding moves them", "out", "state"), 1e-4, _launch,
        wrong=(
            Wrong("no guard", {"if m < value.shape[2]:": "if True:"}, "one token"),
            Wrong("the state given is not read: S begins at zero",
                  {"S[e] = state[h, e, m]": "S[e] = float32(0)"}, "one token"),
            Wrong("the last state is not written", {"state[h, e, m] = S[e]": "pass"}, "one token"),
            Wrong("the state does not fade", {"S[e] = g * S[e]": "S[e] = S[e]"}, "one token"),
            Wrong("the new token fades, too", {
                  "g * S[e] + key[h, i, e] * value[h, i, m]":
                  "g * (S[e] + key[h, i, e] * value[h, i, m])"}, "one token"),
            Wrong("`out` is made before the state has its token",
                  {_WRITE + _READ: _READ + _WRITE}, "one token"),
            Wrong("another formula than that of `gate`",
                  {"x = float32(4)": "x = float32(3)"}, "one token"),
            Wrong("the root of E is forgotten",
                  {"float32(0.25) * w[e]": "w[e]"}, "one token"),
            Wrong("x is not begun anew with each token", {
                  _LINES: _LINES.split("\n", 1)[1],
                  "        for i in range(value.shape[1]):\n":
                  "        x = float32(4)\n        for i in range(value.shape[1]):\n"},
                  "one column"),
            Wrong("a token fades by the gate of the one before it", {
                  "        for i in range(value.shape[1]):\n":
                  "        f = float32(1)\n        for i in range(value.shape[1]):\n",
                  "S[e] = g * S[e]": "S[e] = f * S[e]",
                  "out[h, i, m] = n": "out[h, i, m] = n\n            f = g"},
                  "one token"),
            Wrong("all heads fade as head 0 does", {"w[e] * key[h, i, e]": "w[e] * key[0, i, e]"},
                  "two heads"),
            Wrong("the head is forgotten", {"h = cuda.blockIdx.y": "h = 0"}, "two heads"),
            Wrong("one thread for all columns", {
                  "    if m < value.shape[2]:\n":
                  "    for m in range(value.shape[2] if m == 0 else 0):\n"}, "two heads"),
            Wrong("the block's number is forgotten",
                  {"cuda.blockIdx.x * COLUMNS + cuda": "cuda"}, "50 columns"),
        ),
    ),
)  # fmt: skip
