"""What answers may try: each ends within its limit, and changes nothing."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minitransformer.course import judge as judging
from minitransformer.course.answers import File
from minitransformer.course.exercise import find
from minitransformer.course.judge import Limits, judge, verdict
from minitransformer.course.worker import LONGEST

from .attempts import FADING_BACKWARD

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a limit that Linux holds")
NIGHTLY = pytest.mark.nightly
SMALL = Limits(wall=60, cpu=1, memory=1 << 29, file=1 << 20)
SEED = 5

RIGHT = f"""{FADING_BACKWARD.replace("fading_backward", "right")}
import ctypes, os, signal, subprocess, sys, threading, time
import numba

def spin(x):
    while x[0] == 0:
        x[0] = x[0] * 2

"""
HEAD = "def fading_backward(g, q, k, v, gamma):\n    "
FIRST = "case 'one token' (g (1, 3), q (1, 4), k (1, 4), v (1, 3), gamma 0."


def tried(folder, body, limits=SMALL):
    """The verdict on an answer of that body; `right(g, q, k, v, gamma)` is right."""
    file = folder / "mine.py"
    file.write_text(RIGHT + HEAD + body.strip().replace("\n", "\n    ") + "\n")
    return verdict(File(file), find("fading-backward"), SEED, limits)


def test_a_right_answer_passes(tmp_path):
    found = tried(tmp_path, "return right(g, q, k, v, gamma)")
    assert (found.passed, found.points, found.possible) == (True, 5, 5)
    assert (found.message, found.case, found.exercise) == ("4 cases", None, "fading-backward")


def test_a_known_mistake_is_named_however_it_is_written(tmp_path):
    """By what comes out: the hint of the case is another."""
    body = """
states, R = [0], np.zeros((4, 3))
dk, dv = [], []
for i in range(len(q)):
    states.append(states[-1] * gamma + k[i][:, None] * v[i])
for i in range(len(q) - 1, -1, -1):
    R = R + q[i][:, None] * g[i]
    dk, dv = [R @ v[i], *dk], [k[i] @ R, *dv]
return np.array([S @ x for S, x in zip(states[1:], g)]), np.array(dk), np.array(dv)
"""
    found = tried(tmp_path, body)
    assert found.message.endswith("numbers are off). It looks like this mistake: R does not fade")
    assert found.case == "two tokens"


LINE = RIGHT.count("\n") + 2
HOPELESS = {
    "a loop without an end": (
        "while True: pass",
        r"it took more than 1 s of computing: a loop without an end\?",
    ),
    "a loop in compiled code that lets others run": (
        "loop = numba.njit(nogil=True)(spin)\nloop(np.zeros(1))",
        "it took more than 1 s of computing",
    ),
    "a loop in compiled code that lets nobody run": (
        "numba.njit(spin)(np.zeros(1))",
        "it took more than 1 s of computing",
    ),
    "the process is ended": ("os._exit(0)", r"it ended Python \(exit code 0\)$"),
    "the process is killed": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        r"it crashed \(SIGKILL\)$",
    ),
    "memory that is nobody's": ("ctypes.string_at(8)", r"it crashed \(SIGSEGV\)"),
    "too much memory": (
        "return [bytes(1 << 26) for _ in range(1 << 10)]",  # of zeros that nobody writes
        rf"mine.py:{LINE}: MemoryError$",
    ),
    "an array too large": (
        "return np.ones(1 << 34)",
        rf"mine.py:{LINE}: .*MemoryError: Unable to allocate 128. GiB",
    ),
    "a large file": (
        "open('large', 'wb').write(bytes(1 << 24))",
        rf"mine.py:{LINE}: OSError: .*File too large",
    ),
    "sys.exit": ("sys.exit(0)", rf"mine.py:{LINE}: SystemExit: 0$"),
    "input": ("return input('passed?')", rf"mine.py:{LINE}: EOFError: EOF when reading a line$"),
    "an error that cannot be told": (
        "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()",
        rf"mine.py:{LINE}: .*<exception str\(\) failed>$",
    ),
    "an error without an end": (
        "raise ValueError('\\x1b[31m passed\\n' * 10**5)",
        r"ValueError: \?\[31m passed \?\[31m passed",
    ),
    "no numbers": ("return [np.array([print]), q, k]", "something other than numbers is returned$"),
    "text": ("return np.array([['a'] * 4]), q, v", r"dq should hold numbers like float64, got <U1"),
    "an array that refuses": (
        "class Odd:\n    def __array__(self, *rest, **more): 1 / 0\nreturn Odd(), q, v",
        rf"mine.py:{LINE + 1}: ZeroDivisionError: division by zero$",
    ),
    "a result too many": ("return q, q, q, q", "4 results are returned, expected 3: dq, dk, dv"),
    "another shape": ("return q.T, k, v", r"dq should have the shape \(1, 4\), got \(4, 1\)"),
    "nothing": ("g + q @ k.T", "nothing is returned yet: it is your turn$"),
    "whole numbers": ("return [x.astype(int) for x in (q, k, v)]", r"dq\[0, 0\] is \S+, should be"),
}
BY_NIGHT = {
    "a loop in compiled code that lets others run",
    "a loop in compiled code that lets nobody run",
    "an array too large",
    "whole numbers",
    "another shape",  # the rest is what `test_exercises` hears from `check`, in one process
    "nothing",
    "text",
}


@LINUX
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=NIGHTLY if n in BY_NIGHT else ()) for n in HOPELESS]
)
def test_it_fails_and_says_why(tmp_path, name):
    body, message = HOPELESS[name]
    found = tried(tmp_path, body)
    assert (found.passed, found.points, found.case) == (False, 0, "one token")
    assert found.message.startswith(FIRST), found.message
    assert re.search(message, found.message), found.message
    assert found.message.isprintable()
    assert len(found.message) <= LONGEST


@NIGHTLY
def test_waiting_without_an_end(tmp_path):
    found = tried(tmp_path, "time.sleep(1e6)", Limits(wall=10))
    assert found.message.endswith(": it took longer than 10 s: a loop without an end?")
    assert found.seconds < 20


CHEATS = {
    "what is printed": "print('passed')\nsys.stderr.write('passed')\nos.write(1, b'passed')",
    "numpy": "np.testing.assert_allclose = np.allclose = np.abs = lambda *a, **k: True",
    "the exercise": (
        "from minitransformer.course import exercise\n"
        "exercise._difference = lambda *a: ''\n"
        "exercise.Exercise.compare = lambda *a: None"
    ),
    "the judge": (
        "from minitransformer.course import judge\n"
        "judge._difference = lambda *a: ''\njudge._first_problem = lambda *a: (None, '')"
    ),
    "the inputs": "g *= 0\nq *= 0\nopen('given', 'wb').close()",
    "the end": "os._exit = sys.exit = lambda *a: None",
    "results before the others'": (
        'passed = b\'{"case": 0, "problem": "", "arrays": []}\\n\'\n'
        "for name in os.listdir('/proc/self/fd'):\n"
        "    try:\n        os.write(int(name), passed)\n    except OSError:\n        pass"
    ),
}


@LINUX
@pytest.mark.parametrize("name", [*(pytest.param(n, marks=NIGHTLY) for n in CHEATS), "all"])
def test_a_cheat_changes_nothing(tmp_path, name):
    cheats = "\n".join(CHEATS.values()) if name == "all" else CHEATS[name]
    found = tried(tmp_path, f"{cheats}\nreturn [x + 1 for x in right(g, q, k, v, gamma)]")
    off = r"dq\[0, 0\] is \S+, should be \S+ \(4 of 4 numbers are off\). Hint: there is no scan"
    is_forged = name in ("all", "results before the others'")
    assert not found.passed
    assert re.search("it did not say what came out" if is_forged else off, found.message)


@LINUX
def test_what_an_answer_starts_ends_with_it(tmp_path):
    """A thread, a child, one that left its session, one of an unknown parent, another program."""
    pids = tmp_path / "pids"
    body = f"""
threading.Thread(target=time.sleep, args=(600,)).start()
for kind in range(4):
    if not os.fork():
        if kind:
            os.setsid()
            os.chdir("/")
        if kind == 2 and os.fork():
            os._exit(0)
        with open({str(pids)!r}, "a") as file:
            file.write(f"{{os.getpid()}}\\n")
        if kind == 3:
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"])
        time.sleep(600)
while not os.path.exists({str(pids)!r}) or open({str(pids)!r}).read().count("\\n") < 4:
    time.sleep(0.01)
return right(g, q, k, v, gamma)
"""
    found = tried(tmp_path, body, Limits())
    if os.getuid():  # nobody but root may start any
        assert "can't start new thread" in found.message
        return
    assert found.passed, found.message
    assert not any(map(lives, pids.read_text().split()))


def lives(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@LINUX
@NIGHTLY
def test_processes_that_start_processes(tmp_path):
    """Each leaves its session, starts the next and ends, five times."""
    body = """
for _ in range(20 * (os.getuid() == 0)):
    if not os.fork():
        for _ in range(5):
            os.setsid()
            if os.fork():
                os._exit(0)
            time.sleep(0.05)
        time.sleep(600)
return right(g, q, k, v, gamma)
"""
    found = tried(tmp_path, body, Limits())
    assert found.passed, found.message
    assert found.seconds < 20
    assert not judging._kill_marked(judging.MARK.encode() + b"=")


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"passed\n",
        b"[]\n",
        b"[" * 10**5 + b"\n",
        b"\xff\xfe\n",
        b'{"case": 0, "problem": ""}\n',
        b'{"case": 0, "problem": "", "arrays": [["O", [1]]]}\n' + bytes(8),
        b'{"case": 0, "problem": "", "arrays": [["f8,O", [1]]]}\n' + bytes(16),
        b'{"case": 0, "problem": "", "arrays": [["f8", [1000000000000]]]}\n' + bytes(8),
        b'{"case": 0, "problem": "", "arrays": [["f8", [1e9]]]}\n',
        b'{"case": 0, "problem": "", "arrays": [["f8", [-1, -1]]]}\n' + bytes(8),
        b'{"case": 1e999, "problem": "", "arrays": []}\n',
        b'{"case": 0, "problem": "", "arrays": [["no dtype", [1]]]}\n' + bytes(8),
        b'{"case": 0, "problem": "", "arrays": [["f8", [' + b"1," * 99 + b"1]]]}\n" + bytes(8),
    ],
)
def test_forged_results_are_none(forged):
    assert judging._read(forged) == {}
    said = b'{"case": 3, "problem": "off", "arrays": [["<f4", []], ["<i2", [0, 2]]]}\n' + bytes(4)
    ((case, (problem, (number, empty))),) = judging._read(said + forged).items()
    assert (case, problem, number.shape, empty.shape) == (3, "off", (), (0, 2))


def test_a_message_is_one_short_line_of_text():
    found = judging.printable("a\nb\x1b[2J\ud800 n.ipynb, below 'A':13: c" + "d" * 10**7)
    assert found.startswith("a b?[2J? n.ipynb, below 'A', line 13: cddd")
    assert found.isprintable()
    assert len(found) <= LONGEST + 10


@LINUX
@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "none"])
def test_results_that_are_no_file_are_none(tmp_path, kind):
    path = tmp_path / "results"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    assert judging._beginning(path, SMALL) == b""


# Kernels ------------------------------------------------------------------------------------------

IMPORTS = """%pip install minitransformer
from numba import float32
from minitransformer_kernels.cuda import cuda

WIDTH, COLUMNS = 16, 32
"""
FADING = """
@cuda.jit
def fading_kernel(query, key, value, gamma, out):
    S = cuda.local.array(WIDTH, float32)
    m = cuda.blockIdx.x * COLUMNS + cuda.threadIdx.x
    h = cuda.blockIdx.y
    for e in range(WIDTH):
        S[e] = float32(0)
    for i in range(query.shape[1]):
        if m < value.shape[2]:
            n = float32(0)
            for e in range(WIDTH):
                S[e] = gamma * S[e] + key[h, i, e] * value[h, i, m]
                n += S[e] * query[h, i, e]
            out[h, i, m] = n
"""
PLACE = "mine.ipynb, below 'Mine', cell 2"
GUARD = "if m < value.shape[2]:"


def notebook(folder, *sources):
    """A notebook of these cells of code, each below a cell of text."""
    cells = [{"cell_type": "markdown", "metadata": {}, "source": ["# Mine\n", "Text."]}]
    cells += [
        {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}
        for source in sources
        for kind, text in (("markdown", "text"), ("code", source))
    ]
    path = folder / "mine.ipynb"
    path.write_text(json.dumps({"cells": cells, "nbformat": 4}))
    return path


def kernel_verdict(folder, limits, *edits):
    """The verdict on the kernel in a notebook, edited."""
    text = FADING
    for before, after in edits:
        assert text.count(before) == 1
        text = text.replace(before, after)
    return verdict(File(notebook(folder, IMPORTS, text)), find("fading-kernel"), SEED, limits)


def test_a_mistake_in_a_kernel_is_told_with_the_cell_and_its_line(tmp_path):
    found = kernel_verdict(tmp_path, Limits(), (GUARD, "if True:"))
    assert (found.passed, found.case) == (False, "one column")
    place = rf"\): OutOfBounds: {PLACE}, line 13: kernel 'fading_kernel': in block"
    assert re.search(place, found.message), found.message


@LINUX
def test_a_kernel_without_an_end(tmp_path):
    found = kernel_verdict(tmp_path, SMALL, ("n += S[e]", "while gamma < 2: S[e] += 1  #"))
    assert found.message.endswith("it took more than 1 s of computing: a loop without an end?")


@NIGHTLY
def test_a_kernel_cannot_leave_the_checks_out(tmp_path):
    edits = ("@cuda.jit", "@cuda.jit(checked=False)"), (GUARD, "if True:")
    assert f"OutOfBounds: {PLACE}" in kernel_verdict(tmp_path, Limits(), *edits).message


@NIGHTLY
def test_what_no_kernel_can_hold_is_told_with_its_line(tmp_path):
    found = kernel_verdict(tmp_path, Limits(), ("n = float32(0)", "n = {}"))
    assert f"UnsupportedKernel: {PLACE}, line 11: " in found.message


def test_a_function_is_no_kernel(tmp_path):
    found = kernel_verdict(tmp_path, Limits(), ("@cuda.jit", ""))
    assert found.message.endswith(": this is no kernel: it needs @cuda.jit")


# Files --------------------------------------------------------------------------------------------


def test_a_file_is_judged_by_what_it_checks(tmp_path, monkeypatch):
    """Else by what it defines: a later lesson has answers to earlier ones in its text."""
    asked = []
    monkeypatch.setattr(
        judging, "verdict", lambda _, own, *rest: asked.append((own.name, rest[-1]))
    )
    both = "fading_kernel = fading_backward = 1\n"
    path = tmp_path / "renamed.py"
    for text, names in (
        (both, ["fading-backward", "fading-kernel"]),
        (f"{both}check('continue-from', 1)\n", ["continue-from"]),
        ('# %% exercise="fading-backward"\n', ["fading-backward"]),
        ("x = 1\n", []),
    ):
        asked.clear()
        path.write_text(text)
        list(judge(path))
        assert asked == [(name, 7) for name in names]
    asked.clear()
    list(judge(notebook(tmp_path, both, 'check("fading-kernel", fading_kernel)')))
    assert asked == [("fading-kernel", 7)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "pass  # your turn", "nothing is written yet: it is your turn"),
        (HEAD + '"""Docs."""\n    ...', "nothing is written yet: it is your turn"),
        ("check('fading-backward', f)", "there is no fading_backward here: was it renamed?"),
        (HEAD + "return (", "mine.py:2: SyntaxError: '(' was never closed"),
    ],
)
def test_blanks_and_broken_answers_start_no_process(tmp_path, monkeypatch, text, message):
    monkeypatch.setattr(judging, "_run", None)
    path = tmp_path / "mine.py"
    path.write_text(text)
    (found,) = judge(path)
    assert (found.passed, found.case, found.message) == (False, None, message)


def test_a_seed_decides_the_cases(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(HEAD + "return q, k, v")
    messages = [next(judge(path, seed)).message for seed in (1, 1, 2)]
    assert messages[0] == messages[1] != messages[2]


@LINUX
def test_who_stops_reading_does_not_wait(tmp_path):
    """As Ctrl-C does."""
    path = tmp_path / "mine.py"
    slow = "    import time\n    time.sleep(600)\n"
    path.write_text(f"{HEAD.strip()}\n    return q, k, v\ndef fading_kernel():\n{slow}")
    began = time.monotonic()
    verdicts = judge(path)
    next(verdicts)
    verdicts.close()
    assert time.monotonic() < began + 30


@LINUX
def test_a_worker_outlives_its_judge_by_no_more_than_its_time(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"{HEAD.strip()}\n    import time\n    time.sleep(600)\n")
    program = (
        "import sys; from pathlib import Path; from minitransformer.course.judge import *; "
        "list(judge(Path(sys.argv[1]), 1, Limits(wall=4)))"
    )
    own = os.environ | {"TMPDIR": str(tmp_path)}  # where the worker's folder is left
    judges = subprocess.Popen([sys.executable, "-c", program, path], env=own)
    children = Path(f"/proc/{judges.pid}/task")
    began = time.monotonic()
    while not (workers := [w for x in children.glob("*/children") for w in x.read_text().split()]):
        assert time.monotonic() < began + 60
        time.sleep(0.05)
    judges.kill()
    judges.wait()
    while any(is_running(worker) for worker in workers):
        assert time.monotonic() < began + 90
        time.sleep(0.1)


def is_running(number: str) -> bool:
    status = Path(f"/proc/{number}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


def test_without_limits_of_the_system_the_clock_is_left(monkeypatch):
    from minitransformer.course import worker

    monkeypatch.setitem(sys.modules, "resource", None)
    worker._limit(wall=0, memory=0, cpu=0, file=0)
