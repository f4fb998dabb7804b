"""`minitransformer inspect` as a user meets it."""

import re

import pytest

from minitransformer import commands as cli
from minitransformer_kernels.microscope import transpose

FILE = transpose.__file__
PNG = b"\x89PNG\r\n\x1a\n"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["inspect", "--no-compiled", *arguments])
    return code, *capsys.readouterr()


def test_an_example(capsys, tmp_path):
    picture = tmp_path / "padded.png"
    target = f"{FILE}:padded"
    code, out, err = run(capsys, target, "--gpu", "h200", "--picture", str(picture))
    assert (code, err) == (0, "")
    assert "tile[ty, tx] = x[row, column]" in out
    assert "roofline, H200: 67 TFLOP/s in float32, 4.8 TB/s" in out
    assert out.endswith(f"\n{picture}\n")
    assert picture.read_bytes().startswith(PNG)


def test_a_launch(capsys):
    launch = "--grid", "2,2", "--block", "32,32", "--arrays", "float32[64,64]", "float32[64,64]"
    code, out, err = run(capsys, f"{FILE}:naive", *launch)
    assert (code, err) == (0, "")
    assert "writing 'out' moves 8 times the bytes" in out


def test_several_kernels_are_compared(capsys):
    both = f"{FILE}:naive", f"{FILE}:padded"
    code, out, err = run(capsys, *both)
    assert (code, err) == (0, "")
    assert "tile[ty, tx] = x[row, column]" in out
    assert re.search(r"\n +naive +padded +last / first\n", out)
    code, out, _ = run(capsys, both[0], both[0])
    assert re.search(rf"\n +naive +{both[0]} +last / first\n", out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hardmax"], "no target 'hardmax'; expected one of"),
        (["nowhere.py:f"], "no file nowhere.py"),
        ([FILE, "--grid", "1"], "arguments --grid and --block: give both, or neither"),
        ([FILE, "--gpu", "H900"], "no GPU 'H900' is known here"),
        ([FILE, "--picture", "x.png"], "--picture: name one of the kernels naive,"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.startswith("minitransformer inspect: error: ")
    assert err.count("\n") == 1


def test_a_shape_that_makes_no_sense(capsys):
    code, _, err = run(capsys, "a.py:b", "--grid", "2x2", "--block", "32")
    assert code == 2
    assert "argument --grid: expected one to three sizes like 32,8, got '2x2'" in err
