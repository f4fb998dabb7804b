"""What a lesson imports: six tokens, quotations, guesses, clocks, figures."""

import re
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from minitransformer.course import (
    guess,
    peak_bytes,
    quantity,
    quote,
    quote_loop,
    reveal,
    seconds,
    show,
    six_tokens,
    slope,
    watch,
)
from minitransformer.course.measuring import Lines, TooManyLines
from minitransformer_kernels import recurrent
from minitransformer_kernels.cuda import cuda


@cuda.jit
def halved(x, out):
    """A kernel to quote."""
    i = cuda.grid(1)
    if i < x.size:
        y = x[i]
        for _ in range(3):
            y = y / 2  # (1)
            y = y + 0
        if y > 1:
            out[i] = y  # (2)
        else:
            y = 0  # (3): nothing
            out[i] = y


@cuda.jit
def halved_beyond(
    x,
    out,
):
    out[0] = x[0] / 2  # (1)


def test_lines_of_python_are_counted_and_those_of_numpy_are_not():
    def forever():
        while True:
            pass

    def counted(function):
        with Lines() as lines:
            function()
        return lines.count

    x, before = np.ones((50, 2, 2)), sys.gettrace()
    assert counted(lambda: [y @ y for y in x]) > 50
    assert counted(lambda: np.linalg.cond(np.tril(np.stack([x, x])))) < 5
    with pytest.raises(TooManyLines), Lines(most=100):
        forever()
    assert sys.gettrace() is before


def test_a_long_signature_is_cut_where_lines_are():
    text = quote(halved_beyond, "(1)")
    assert text.splitlines()[:2] == ["@cuda.jit", "def halved_beyond(...):"]
    assert "    x,\n    out," in quote(halved_beyond)


def test_quotations_keep_what_encloses_a_citation():
    assert quote(halved, "(1)").splitlines() == [
        "@cuda.jit", "def halved(x, out):", "    ...", "    if i < x.size:", "        ...",
        "        for _ in range(3):", "            y = y / 2  # (1)", "            ...",
    ]  # fmt: skip
    assert "else:\n            y = 0  # (3): nothing\n            ..." in quote(halved, "(3)")
    assert "y = x[i]" in quote(halved, also=["= x["])
    whole = quote(halved)
    assert '"""A kernel' not in whole and whole.endswith("            out[i] = y")
    assert '"""A kernel to quote."""' in quote(halved, docstring=True)
    assert whole._repr_markdown_().startswith("```python\n@cuda.jit")


def test_citations_that_are_gone_are_errors():
    with pytest.raises(LookupError, match=r"no line of halved cites \(9\)"):
        quote(halved, "(9)")
    with pytest.raises(LookupError, match="no line of halved has 'syncthreads'"):
        quote(halved, also=["syncthreads"])


def test_the_compiled_loop_carries_the_citations():
    halved[2, 32](np.ones(40), np.zeros(40))
    loop = quote_loop(halved, "(1)", "(2)")
    assert "for thread_x in range(" in loop
    assert "y = y / 2  # (1)" in loop and "] = y  # (2)" in loop and "# (3)" not in loop


def test_the_real_kernels_are_quoted():
    x = np.ones((1, 1, 6, 4), np.float32)
    with watch() as launched:
        recurrent.forward(x, x, x)
    (launch,) = launched
    assert launch.constants["head_dim"] == 8
    assert launch.threads[0] > 1 and launch.blocks == (1, 1, 1)
    for text in (quote(launch.kernel, "(1)", "(3)"), quote_loop(launch.kernel, "(1)", "(3)")):
        assert re.search(r"s \+= k_tile.*# \(1\)", text)
        assert "type: ignore" not in text


def test_the_six_tokens_are_always_the_same():
    query, key, value = six_tokens()
    assert query.shape == key.shape == (6, 4) and value.shape == (6, 3)
    np.testing.assert_array_equal(query, six_tokens().query)
    assert (query == query.round(1)).all()
    query[:] = 0
    assert six_tokens().query.any()


def test_guesses_are_answered(capsys):
    guess("factor", 4)
    reveal("factor", 8)
    guess("other", ...)
    reveal("other", 0.123456)
    assert capsys.readouterr().out == (
        "factor: you say 4\n"
        "factor: you said 4; it is 8\n"
        "other: no guess yet. Put one in place of the dots, words in quotes, and run this again.\n"
        "other: you made no guess; it is 0.1235\n"
    )


def test_functions_are_timed_in_turns():
    calls = []
    slow, fast = seconds(lambda: (calls.append(1), time.sleep(0.004)), lambda: calls.append(2))
    assert calls[:6] == [1, 2, 1, 2, 1, 2]
    assert slow.lower <= slow.median <= slow.upper
    assert slow.median > fast.median
    assert str(slow).startswith(quantity(slow.median, "s"))


def test_measures():
    assert slope([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert peak_bytes(lambda: np.zeros(10**6)) == pytest.approx(8e6, rel=0.01)
    quantities = [quantity(x, "B") for x in (1.5e9, 2e4, 7.0, 0.05, 2e-5)]
    assert quantities == ["1.5 GB", "20 kB", "7 B", "50 mB", "20 µB"]


def test_figures_become_files_of_a_script(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("LESSON_OUT", str(tmp_path))
    show(Figure(), "empty", alt="nothing")
    assert (tmp_path / "empty.png").exists()
    show("text")
    assert capsys.readouterr().out == f"[figure: {tmp_path / 'empty.png'}]\ntext\n"
    with pytest.raises(ValueError, match="a figure needs name= and alt="):
        show(Figure(), "empty")


def test_figures_are_shown_in_a_notebook_with_their_alt_text(monkeypatch):
    shown = []
    display = SimpleNamespace(display=shown.append)
    notebook = SimpleNamespace(get_ipython=lambda: object(), display=display)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    show(Figure(figsize=(5, 2)), "empty", alt="nothing")
    data, metadata = shown[0]._repr_png_()
    assert data.startswith(b"\x89PNG")
    assert metadata == {"width": 480, "alt": "nothing", "name": "empty"}
    assert repr(shown[0]) == "[figure: empty: nothing]"
