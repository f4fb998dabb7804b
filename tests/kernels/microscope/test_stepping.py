"""A launch, recorded step by step: what is noted, and how it is shown."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import float32

from minitransformer import commands as cli
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.microscope import inspect_ptx, stepping, transpose, units
from minitransformer_kernels.microscope.stepping import recording as recorded
from tests import browser

pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the extra gate")

N, LANES = 5, 32


@cuda.jit
def columns(x, y, out, n):
    tile = cuda.shared.array(32, float32)
    i = cuda.grid(1)
    total = float32(0)
    for k in range(n):
        total += x[k, i] * y[k]
    tile[i] = total
    cuda.syncthreads()
    if i < 8:
        out[i] = tile[4 * i]


X = np.arange(N * LANES, dtype=np.float32).reshape(N, LANES)
Y = np.arange(1, N + 1, dtype=np.float32)


@pytest.fixture(scope="module")
def made() -> stepping.Recording:
    out = np.zeros(8, np.float32)
    found = stepping.record(columns[1, LANES], X, Y, out, np.int64(N))
    assert not out.any()  # what it was
    return found


def position(made: stepping.Recording, text: str) -> int:
    return next(at for at, step in enumerate(made.steps) if text in made.rows[step.row].text)


def named(made: stepping.Recording, name: str) -> list[int]:
    found = [slot for slot, text in made.names.items() if text.split(" = ")[0] == name]
    assert found, (name, made.names)
    return found


def test_every_step_is_there(made) -> None:
    counted = inspect_ptx(columns[1, LANES], X, Y, np.zeros(8, np.float32), N, hints=False)
    assert len(made.steps) == counted.issued
    assert made.title == "columns, block (0, 0, 0), sm_80"
    assert made.source[0] == "@cuda.jit"
    assert {made.rows[step.row].line for step in made.steps} <= {
        0, *range(made.first, made.first + len(made.source)),
    }  # fmt: skip


def test_registers_have_the_names_of_the_source(made) -> None:
    at = position(made, "st.shared.f32")
    held = made.held(at, 0)
    expected = tuple(recorded.number_text(total) for total in X.T @ Y)
    (stored,) = set(made.rows[made.steps[at].row].read) & {*named(made, "total")}
    assert held[stored] == expected
    lanes = tuple(map(str, range(LANES)))
    assert held[named(made, "i")[0]] == lanes
    assert "blockDim.x * blockIdx.x + threadIdx.x" in made.names[named(made, "i")[0]]
    places = {held[slot] for slot in named(made, "x") if slot in held}
    assert ("x+0",) in places
    assert {"x", "y", "out", "n"} <= {*made.names.values()}
    assert [array.name for array in made.shared] == ["tile"]


def kernel_of(staged: bool):
    @cuda.jit
    def made(x):
        if staged:
            first = cuda.shared.array(64, float32)
            first[cuda.threadIdx.x] = x[0]
        second = cuda.shared.array(32, float32)
        second[cuda.threadIdx.x] = x[1]
        cuda.syncthreads()
        x[0] = second[1]

    return made


@pytest.mark.parametrize(("staged", "names"), [(True, ["first", "second"]), (False, ["second"])])
def test_shared_arrays_have_names_where_a_branch_is_ruled_out(staged: bool, names) -> None:
    found = stepping.record(kernel_of(staged)[1, 32], np.zeros(2, np.float32))
    assert [array.name for array in found.shared] == names


def test_forward_and_back(made) -> None:
    at = position(made, "st.shared.f32")
    (tile,) = made.shared
    assert made.memory(at - 1) == {}
    assert made.memory(at) == {
        tile.begin + i: recorded.number_text(total) for i, total in enumerate(X.T @ Y)
    }
    load = position(made, "ld.shared.f32")
    (slot,) = made.rows[made.steps[load].row].written
    assert slot not in made.held(load - 1, 0)
    assert made.held(load, 0)[slot][:3] == tuple(made.memory(at)[tile.begin + 4 * i]
                                                 for i in range(3))  # fmt: skip


def test_who_makes_an_instruction_and_which_words_it_wants(made) -> None:
    step = made.steps[position(made, "ld.shared.f32")]
    assert step.made == 0xFF
    (tile,) = made.shared
    assert step.words == tuple(tile.begin + 4 * i if i < 8 else -1 for i in range(LANES))
    assert step.width == 1


def test_blocks_before_it_have_run() -> None:
    @cuda.jit
    def once(x):
        if cuda.threadIdx.x == 0:
            x[0] += 1

    found = stepping.record(once[3, 2], np.zeros(1, np.float32), block=2)
    store = position(found, "st.global.f32")
    (slot,) = set(found.rows[found.steps[store].row].read) & {*found.held(store, 0)} & {
        slot for slot in range(len(found.registers)) if found.registers[slot].startswith("%f")
    }  # fmt: skip
    assert found.held(store, 0)[slot][0] == "3"
    assert found.title.startswith("once, block (2, 0, 0)")


# Shown --------------------------------------------------------------------------------------------


def test_a_page_holds_all_that_it_shows(made) -> None:
    html = stepping.page(made)
    assert not re.search(r"https?:|src=|<link", html)
    data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.S)[1])
    assert len(data["steps"]) == len(made.steps)
    assert data["source"] == made.source


@pytest.mark.skipif(browser.missing() is not None, reason=f"needs {browser.missing()}")
def test_a_page_in_a_browser(made, tmp_path: Path) -> None:
    path = tmp_path / "columns.html"
    path.write_text(stepping.page(made), encoding="utf-8")
    load = position(made, "ld.shared.f32")
    with browser._browser() as chromium:
        for width, scheme in browser.VIEWS:
            context = chromium.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
            )
            page, wrong = context.new_page(), []
            page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
            page.on("console", lambda said, wrong=wrong: wrong.append(said.text))
            page.goto(path.as_uri())
            assert page.inner_text("#where").startswith(f"Step 1 of {len(made.steps)}: warp 0")
            page.keyboard.press("ArrowRight")
            assert page.inner_text("#where").startswith("Step 2 ")
            page.click("#back")
            assert page.inner_text("#where").startswith("Step 1 ")
            page.evaluate(f"jump({load}, 1)")
            assert "8 of 32 lanes make it" in page.inner_text("#where")
            assert page.locator("#lanes .made").count() == 8
            assert page.inner_text("#source .now").endswith("out[i] = tile[4 * i]")
            assert "the 8 words that this access wants" in page.inner_text("#conflict")
            assert "total" in page.inner_text("#registers")
            found, _ = page.evaluate(browser.LOOK)
            assert wrong + found == []
            context.close()


def test_the_screen(made) -> None:
    pytest.importorskip("textual", reason="needs the extra step")
    from minitransformer_kernels.microscope.stepping.screen import Screen

    async def walk() -> None:
        app = Screen(made)
        async with app.run_test(size=(140, 45)) as pilot:
            await pilot.press("right", "right", "left")
            assert app.position == 1
            await pilot.press("end")
            assert app.position == len(made.steps) - 1
            await pilot.press("home", "l")
            lines = [made.rows[step.row].line for step in made.steps]
            assert app.position == next(i for i, line in enumerate(lines) if line != lines[0])
            await pilot.press("k", "down", "down", "up", "w")
            assert (lines[app.position], app.lane, app.only) == (lines[0], 1, 0)
            app.position = position(made, "ld.shared.f32") - 1
            await pilot.press("right")
            await pilot.pause()
            shown = re.sub(r"&#160;", " ", app.export_screenshot())
            for text in (
                "8 of 32 lanes make it",
                "ld.shared.f32",
                "tile[4 * i]",
                "tile+0, tile+16",
            ):
                assert text in shown

    asyncio.run(walk())


def test_the_command_writes_a_page(capsys, tmp_path: Path) -> None:
    path = tmp_path / "tiled.html"
    target = f"{transpose.__file__}:tiled"
    assert cli.main(["step", target, "--number", "3", "--html", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert "tiled, block (1, 1, 0), sm_80" in path.read_text(encoding="utf-8")


FILE = transpose.__file__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([FILE], "argument TARGET: name one of the kernels naive, tiled, padded"),
        ([units.__file__], "has no function example() that launches its kernels; write one"),
        ([f"{FILE}:other"], "kernel 'other' was not launched; launched were: naive"),
        ([f"{FILE}:tiled", "--number", "4"], "launched with 4 blocks; there is no block 4"),
        ([f"{FILE}:tiled", "--architecture", "x"], "architecture must be one of 7.5, 8.0,"),
        (["nowhere.py:f"], "no file nowhere.py"),
        ([f"{FILE}:tiled", "--html", "x.png"], "argument --html: expected"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys) -> None:
    try:
        code = cli.main(["step", *arguments])
    except SystemExit as end:
        code = end.code
    err = capsys.readouterr().err
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


def test_what_is_too_long_is_refused(monkeypatch, capsys) -> None:
    monkeypatch.setattr(recorded, "LIMIT", 100)
    assert cli.main(["step", f"{FILE}:tiled", "--html", "x.html"]) == 2
    err = capsys.readouterr().err
    assert "makes more than 100 steps" in err
    assert "take smaller arrays or fewer threads" in err


def test_what_is_not_installed_is_said(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    name = "minitransformer_kernels.microscope.stepping.screen"
    monkeypatch.delitem(sys.modules, name, raising=False)
    for module in ("textual.app", "textual.binding", "textual.containers", "textual.widgets"):
        monkeypatch.setitem(sys.modules, module, None)
    assert cli.main(["step", f"{FILE}:tiled"]) == 1
    assert "pip install 'minitransformer[step]'" in capsys.readouterr().err
    monkeypatch.setattr("minitransformer_kernels.gpu.cubins.available", lambda: False)
    assert cli.main(["step", f"{FILE}:tiled"]) == 2
    assert "pip install 'minitransformer[gate]'" in capsys.readouterr().err
