"""The distribution holds every module, and never installs a top-level `kernels`."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {
    "minitransformer": ROOT / "minitransformer",
    "minitransformer_kernels": ROOT / "kernels",
    "minitransformer_lessons": ROOT / "tutorials",
}
MODULES = {
    Path(package, source.relative_to(folder)).as_posix()
    for package, folder in FOLDERS.items()
    for source in folder.rglob("*.py")
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The unpacked wheel, built from a copy so that no build leaves a trace in the checkout."""
    work = tmp_path_factory.mktemp("wheel")
    outputs = shutil.ignore_patterns(".*", "build", "runs", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, work / "source", ignore=outputs)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", work, work / "source"], check=True)
    (built,) = work.glob("*.whl")
    zipfile.ZipFile(built).extractall(work / "installed")
    return work / "installed"


def python(code, *path):
    """Runs code in a fresh interpreter that looks in `path` first."""
    code = f"import sys; sys.path[:0] = {[str(folder) for folder in path]}\n{code}"
    return subprocess.run([sys.executable, "-Ic", code], capture_output=True, text=True)


def test_wheel_holds_every_module(wheel):
    assert {path.relative_to(wheel).as_posix() for path in wheel.rglob("*.py")} == MODULES
    assert len(list(wheel.glob("*/py.typed"))) == 2
    assert (wheel / "minitransformer/course/publish/static/course.css").exists()
    assert (wheel / "minitransformer_lessons/glossary.md").exists()
    assert (wheel / "minitransformer_kernels/microscope/stepping/page.html").exists()


def test_wheel_installs_only_its_packages(wheel):
    top_level = {path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")}
    assert top_level == set(FOLDERS)


def test_every_module_of_the_wheel_imports(wheel):
    """But for lessons, which are programs, and what needs the extras docs and gate-mlir."""
    names = [path.removesuffix(".py").removesuffix("/__init__") for path in MODULES]
    others = re.compile(r"__main__|^minitransformer_lessons/|/publish/|/compilers/planner$")
    code = "\n".join(
        f"import {name.replace('/', '.')}" for name in names if not others.search(name)
    )
    ran = python(code + "\nprint(minitransformer.__file__)", wheel)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(wheel))


def test_a_neighbour_keeps_the_name_kernels(wheel, tmp_path):
    (tmp_path / "kernels.py").write_text("owner = 'neighbour'")
    ran = python("import kernels, minitransformer_kernels; print(kernels.owner)", wheel, tmp_path)
    assert ran.stdout == "neighbour\n", ran.stderr


def test_the_folder_refuses_the_name_kernels():
    ran = python("import kernels", ROOT)
    assert re.search(r"ImportError: .*minitransformer_kernels", ran.stderr)


def test_friendly_spelling(wheel):
    ran = python("from minitransformer import kernels; print(kernels.__name__)", wheel)
    assert ran.stdout == "minitransformer_kernels\n", ran.stderr


def test_readme_opens_with_two_commands_of_one_line_each():
    blocks = re.findall(r"^```\w*\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert [block.count("\n") for block in blocks[:2]] == [1, 1]
    assert "minitransformer train copy" in blocks[0]
    assert "pytest" in blocks[1]
