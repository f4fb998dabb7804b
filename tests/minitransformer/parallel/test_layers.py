"""Models on slices, on ranks that the test starts, equal one process; what cannot be is refused."""

import json

import pytest

from minitransformer import nn, parallel
from minitransformer.errors import UserError
from minitransformer.settings import ATTENTIONS
from minitransformer.tasks import make_task, task_class, task_names, task_options

from .starting import needs_mpi, ranks

MODELS = "tests.minitransformer.parallel.models"
pytestmark = needs_mpi


def check(data: int, sequence: int, *names: str) -> None:
    run = ranks(data * sequence, MODELS, str(data), str(sequence), *names)
    assert run.returncode == 0, run.stdout + run.stderr
    for name, found in json.loads(run.stdout).items():
        assert found["off"] < 1e-12, (name, found)
        assert found["restored"], name


def test_models_on_slices_equal_one_process() -> None:
    check(1, 3, "dropping:linear", "perceiver:linear")


@pytest.mark.nightly
@pytest.mark.parametrize("grid", [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 2)])
def test_all_models_on_all_grids_equal_one_process(grid: tuple[int, int]) -> None:
    copies = [f"{task}:{name}" for task in ("copy", "short") for name in ATTENTIONS]
    check(
        *grid,
        *copies,
        "dropping:linear",
        "dropping:softmax",
        "perceiver:softmax",
        "perceiver:relative",
    )


def test_every_task_runs_on_slices_or_says_why_not() -> None:
    world = parallel.World()
    refused = []
    for name in task_names():
        options = {x: option.default for x, option in task_options(task_class(name)).items()}
        task = make_task(name, {**options, "seed": 0})
        try:
            with parallel.along_sequence(task.build(task.compared.default), world):
                pass
        except UserError as error:
            refused.append(name)
            assert "--parallel data" in str(error)
    assert refused == ["graph"]


@pytest.mark.parametrize(
    ("attention", "dropout", "said"),
    [
        ("softmax", 0.5, "dropout=0.5"),
        (nn.LocalAttention(num_global=2), 0.0, "seen from everywhere"),
        (nn.AttentionVariant(), 0.0, "AttentionVariant has no form on slices"),
    ],
)
def test_what_slices_cannot_do_is_refused(attention: object, dropout: float, said: str) -> None:
    model = nn.MultiHeadAttention(4, 2, attention=attention, dropout=dropout)
    with pytest.raises(UserError, match=said), parallel.along_sequence(model, parallel.World()):
        pass
    assert "forward" not in vars(model.attention)
