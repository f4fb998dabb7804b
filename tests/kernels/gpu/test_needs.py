"""The table of what every kernel needs on GPUs: it is complete, fresh, and within the rules."""

import ast
import sys
from collections import Counter
from pathlib import Path
from runpy import run_path
from typing import Any

import numba
import pytest

from minitransformer_kernels.gpu import cubins, needs, sass, specialisations
from minitransformer_kernels.gpu.sass import Instruction, Loop, loops
from minitransformer_kernels.gpu.specialisations import Specialisation, noted

from ...conftest import PROFILE
from ..operations import OPERATIONS, ragged

ROOT = Path(__file__).parents[3]
HEAD, ROWS = needs.read(ROOT / needs.TABLE)
SAMPLE = 4  # kernels that are compiled again by default: some seconds each


# The kernels --------------------------------------------------------------------------------------


WINGS = "cpu", "gpu", "microscope"  # where examples and machinery are


def kernels():
    """Where the rooms have functions under `@cuda.jit` that are no device functions."""
    folder = ROOT / "kernels"
    for path in folder.rglob("*.py"):
        if path.relative_to(folder).parts[0] in WINGS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.decorator_list:
                decorator = ast.unparse(node.decorator_list[0])
                if decorator.startswith("cuda.jit") and "device=True" not in decorator:
                    yield str(path), node.name, node.decorator_list[0].lineno


def place(kernel):
    """Where a kernel is written: as `kernels` tells it."""
    code = kernel.function.__code__
    return code.co_filename, kernel.__name__, code.co_firstlineno


def test_hosts_launch_every_kernel_of_the_package():
    launched = {place(made.kernel) for made, _ in needs.wanted().values()}
    assert launched == {*kernels()}, "add a host to the room's example.py, or take one away"


def signature(made):
    """A kernel and the types of its arguments, whichever the type of its numbers is."""
    text = str(made.types).replace("float64", "float32")
    return made.kernel.function.__code__, text


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_operations_launch_with_the_types_of_the_hosts(operation):
    known = {signature(made) for made, _ in needs.wanted().values()}
    for variant in operation.domain.variants:
        for causal in operation.domain.causal:
            with noted() as found:
                operation.apply(ragged(operation, variant, causal).problem())
            assert found
            for made in found:
                assert signature(made) in known, made.name


def test_head_dims_and_numbers_make_different_kernels():
    kernels = [made for made, _ in needs.wanted().values()]
    softmax = [made for made in kernels if made.name == "softmax.forward"]
    assert {made.constants["head_dim"] for made in softmax} == {"16", "32", "64", "128"}
    assert {needs.numbers(made.types) for made in softmax} == {"float32", "float64"}
    assert {needs.numbers(made.types) for made in kernels} > {"float32+float64"}


# Fingerprints -------------------------------------------------------------------------------------

TEXT = '''
from numba import float32
from minitransformer_kernels.cuda import cuda

TILE = 32

def factory(width, real):
    @cuda.jit(device=True)
    def twice(x):
        return x + x

    @cuda.jit(fastmath=True)
    def kernel(x):
        """Doubles x."""
        i = cuda.threadIdx.x
        if i < width * TILE:
            x[i] = twice(x[i]) + real(1)

    return kernel

KERNEL = factory(8, float32)
'''


@pytest.fixture
def fingerprint(tmp_path):
    """What gives the fingerprint of TEXT with pieces replaced, for an array of float32."""
    count = 0

    def of(*pieces, types=(numba.float32[::1],), threads=32):
        nonlocal count
        count += 1
        text = TEXT
        for old, new in zip(pieces[::2], pieces[1::2], strict=True):
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / f"made_{count}.py"
        path.write_text(text)
        return Specialisation(run_path(path)["KERNEL"], types, threads).fingerprint

    return of


def test_words_and_places_leave_a_fingerprint_as_it_is(fingerprint):
    unchanged = [
        fingerprint("Doubles x.", "Doubles x and\n        adds one."),
        fingerprint('        """Doubles x."""\n', ""),
        fingerprint("return x + x", "return x + x  # or 2 * x"),
        fingerprint("TILE = 32", "\n\nUNUSED = 5\nTILE = 32"),
        fingerprint("real(1)", "real(\n1\n)"),
    ]
    assert unchanged == [fingerprint()] * len(unchanged)


def test_what_may_change_the_machine_code_changes_a_fingerprint(fingerprint):
    changed = [
        fingerprint(),
        fingerprint("return x + x", "return x * x"),
        fingerprint("real(1)", "real(2)"),
        fingerprint("TILE = 32", "TILE = 64"),
        fingerprint("factory(8, float32)", "factory(4, float32)"),
        fingerprint("factory(8, float32)", "factory(8.0, float32)"),
        fingerprint("import float32", "import float64 as float32"),
        fingerprint("fastmath=True", "fastmath=False"),
        fingerprint("device=True", "device=True, fastmath=True"),
        fingerprint(types=(numba.float64[::1],)),
        fingerprint(threads=64),
    ]
    assert len(set(changed)) == len(changed)


def test_a_constant_that_no_rule_covers_is_refused(fingerprint):
    with pytest.raises(TypeError, match=r"no rule says what of \{1\}, a set, decides the code"):
        fingerprint("TILE = 32", "TILE = {1}")


def test_numbers_from_numpy_have_a_fingerprint(fingerprint):
    numpy = "import numpy as np\nTILE = np.int64(32)"
    assert fingerprint("TILE = 32", numpy) != fingerprint()
    assert fingerprint("TILE = 32", numpy) == fingerprint("TILE = 32", numpy)


# The table ----------------------------------------------------------------------------------------


def test_the_table_has_all_kernels_as_they_are():
    rows = {(row.fingerprint, row.label, row.threads) for row in ROWS}
    expected = {
        (fingerprint, needs.label(made, head_dims, architecture), made.threads)
        for fingerprint, (made, head_dims) in needs.wanted().items()
        for architecture in needs.architectures(made)
    }
    stale = sorted({label[0] for _, label, _ in rows ^ expected})
    assert not stale, f"the table is not of today's {', '.join(stale)}; run {needs.COMMAND}"
    assert HEAD.endswith(f"pipeline {specialisations.pipeline()}"), f"run {needs.COMMAND}"


def test_no_kernel_breaks_a_rule():
    assert not list(needs.report([], ROWS))


def test_exceptions_are_needed():
    broken = {(row.kernel, row.numbers, column) for row in ROWS for column in row.wrong()}
    assert broken == needs.KNOWN.keys()


def test_no_two_lines_are_called_the_same():
    assert not [label for label, count in Counter(row.label for row in ROWS).items() if count > 1]


def row(**changes):
    """A line that is within the rules, but for some changes."""
    whole = needs.Row(
        "module.kernel", "16 32", "float32", "sm_90", 256, 64, 8192, 0, 0, 0, 0, 0, 4, 50,
        "registers", "0123456789ab", "width=1",
    )  # fmt: skip
    return whole._replace(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spills": 4}, "4 bytes of registers are spilled"),
        ({"innermost": 2}, "2 accesses to local memory in an innermost loop"),
        ({"float64": 1}, "1 float64 instructions"),
        ({"shared": 49_153}, "49153 bytes of shared memory, of 49152"),
        ({"blocks": 0, "registers": 255}, "256 threads of 255 registers do not fit"),
    ],
)
def test_rules(changes, message):
    (column, *_) = changes
    assert row().wrong() == {}
    assert row(**changes).wrong() == {column: message}
    (line,) = needs.report([], [row(**changes)])
    assert line == f"wrong: module.kernel, head dim 16 32, float32, sm_90: {message}"


def test_float64_is_allowed_where_arguments_are_float64():
    assert row(numbers="float64", float64=100).wrong() == {}
    assert row(numbers="float32+float64", float64=100).wrong() == {}


def test_what_is_worse_is_said_with_both_numbers():
    before = row(registers=64, blocks=4, local=0)
    assert before.worse(before) == []
    assert row(registers=48, blocks=5, local=0).worse(before) == []
    after = row(registers=72, blocks=3, local=16)
    assert after.worse(before) == ["registers 64 -> 72", "local 0 -> 16", "blocks 4 -> 3"]
    (line,) = needs.report([before], [after])
    assert line.startswith(f"worse: {after.kernel}, head dim {after.head_dims}, float32, ")
    assert line.endswith(": registers 64 -> 72, local 0 -> 16, blocks 4 -> 3")


def test_a_table_is_read_as_it_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(needs, "head", lambda: HEAD)
    needs.write(tmp_path / "new" / "table.tsv", reversed(ROWS))
    assert needs.read(tmp_path / "new" / "table.tsv") == (HEAD, ROWS)
    assert needs.read(tmp_path / "none.tsv") == ("", [])


@pytest.fixture
def table(tmp_path):
    """Where a table will be."""
    return tmp_path / "table.tsv"


def registers(table):
    """What a table says of each fingerprint's registers."""
    return {row.fingerprint: row.registers for row in needs.read(table)[1]}


@pytest.fixture
def renew(table, monkeypatch, capsys):
    """What runs the command on a table of kernels "a" to "c", and gives what it prints.

    What "compiles" them is told their registers; each is at one head dim on one architecture.
    """
    monkeypatch.setattr(sys, "argv", ["gate", str(table)])
    monkeypatch.setattr(needs, "available", lambda: True)

    def run(needed, head="# compilers 1", stop_at=None):
        def compile_all(fingerprints):
            for fingerprint in fingerprints:
                if fingerprint == stop_at:
                    raise KeyboardInterrupt
                kernel, _, _ = fingerprint.partition("-")
                count = needed[fingerprint]
                yield [row(kernel=kernel, fingerprint=fingerprint, registers=count)]

        monkeypatch.setattr(needs, "head", lambda: head)
        monkeypatch.setattr(needs, "wanted", lambda: dict.fromkeys(needed, (None, "16 32")))
        monkeypatch.setattr(needs, "compile_all", compile_all)
        needs.main()
        return capsys.readouterr().out

    return run


def test_the_command_compiles_what_changed_alone(renew, table):
    assert renew({"a": 10, "b": 20}).startswith("2 of 2 kernels to compile")
    assert "0 of 2" in renew({"a": 99, "b": 99})
    printed = renew({"a": 99, "b-changed": 24, "c": 30})
    assert "2 of 3" in printed
    assert "worse: b, head dim 16 32, float32, sm_90: registers 20 -> 24\n" in printed
    assert registers(table) == {"a": 10, "b-changed": 24, "c": 30}


def test_other_compilers_compile_everything_again(renew, table):
    renew({"a": 10, "b": 20})
    assert "2 of 2" in renew({"a": 11, "b": 19}, head="# compilers 2")
    assert registers(table) == {"a": 11, "b": 19}


def test_an_interrupted_command_keeps_what_it_has(renew, table):
    with pytest.raises(KeyboardInterrupt):
        renew({"a": 10, "b": 20, "c": 30}, stop_at="b")
    assert registers(table) == {"a": 10}
    assert "2 of 3" in renew({"a": 99, "b": 20, "c": 30})


def test_the_command_says_what_is_not_installed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gate"])
    monkeypatch.setattr(needs, "available", lambda: False)
    with pytest.raises(SystemExit):
        needs.main()
    assert "pip install 'minitransformer[gate]'" in capsys.readouterr().err


# Loops of machine code ----------------------------------------------------------------------------


def program(*follows):
    """A program, given as what may follow each instruction."""
    return [Instruction("NOP", each) for each in follows]


def test_loops_in_loops():
    code = program((1,), (2,), (3,), (2, 4), (5,), (4, 6), (1, 7), (7, 8), ())
    assert list(loops(code)) == [
        Loop({1, 2, 3, 4, 5, 6}, innermost=False),
        Loop({2, 3}, innermost=True),
        Loop({4, 5}, innermost=True),
        Loop({7}, innermost=True),
    ]


def test_a_loop_that_is_entered_in_its_middle():
    assert list(loops(program((2,), (2,), (3,), (1, 4), ()))) == [Loop({1, 2, 3}, innermost=True)]


def test_a_jump_back_from_code_put_aside_is_no_loop():
    assert list(loops(program((1, 3), (2,), (), (1,)))) == []


def test_what_may_follow_an_instruction():
    jump = {"other-attributes": {"control-flow": "True"}}
    found: list[dict[str, Any]] = [
        {"opcode": "LDL.128", "operands": "R4,[R1+0x10]"},
        {"opcode": "BRA", "operands": "0x40", "predicate": "@P0", **jump},
        {"opcode": "BRA.U", "operands": "!UP0,0x0", **jump},
        {"opcode": "BSSY.RECONVERGENT", "operands": "B0,0x50", **jump},
        {"opcode": "BRA", "operands": "0x10", **jump},
        {"opcode": "EXIT", "predicate": "@P1", **jump},
        {"opcode": "RET.ABS.NODEC", "operands": "R20,0x0", **jump},
        {"opcode": "BAR.SYNC", "operands": "0x0", "other-attributes": {"barrier": "True"}},
        {"opcode": "EXIT", **jump},
    ]
    follows = (1,), (2, 4), (0, 3), (4, 5), (1,), (6,), (), (8,), ()  # of each of them
    code = list(sass.decoded(found))
    assert [instruction.next for instruction in code] == [*follows]
    assert code[0].name == "LDL"


# With the compilers -------------------------------------------------------------------------------

needs_gate = pytest.mark.skipif(
    not needs.available(), reason=f"compiling needs the extra gate: {needs.INSTALL}"
)


@needs_gate
def test_kernels_need_no_more_than_the_table_says():
    here, there = needs.head(), HEAD
    if here != there:
        pytest.skip(f"the table was made with other compilers: {there}, here {here}")
    fingerprints = sorted(needs.wanted())
    if PROFILE != "nightly":
        fingerprints = fingerprints[:: len(fingerprints) // SAMPLE]
    rows = [row for found in needs.compile_all(fingerprints) for row in found]
    assert not list(needs.report(ROWS, rows)), f"if it has to be, run {needs.COMMAND}"
    assert {row.label for row in rows} <= {row.label for row in ROWS}


@needs_gate
def test_types_found_once_are_those_found_for_each_architecture():
    made = next(made for made, _ in needs.wanted().values() if made.name == "recurrent.plain.step")
    (fingerprint,) = [key for key, (each, _) in needs.wanted().items() if each == made]
    for row, architecture in zip(needs.compiled(fingerprint), cubins.ARCHITECTURES, strict=True):
        alone = cubins.needs(made.kernel, made.types, architecture)
        assert {name: getattr(row, name) for name in alone._fields} == alone._asdict()
