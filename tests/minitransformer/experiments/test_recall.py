"""The scoreboard compares memories of one size, and says what each keeps."""

import pytest

from minitransformer.experiments.recall import BUDGETS, PAIRS, cases, kept, report, widest
from minitransformer.nn.variant import attention_names
from minitransformer_kernels.cuda import Launch


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch):
    """Numbers are only counted: a launch would compile a kernel for each width."""
    monkeypatch.setattr(Launch, "__call__", lambda *arguments: None)


def test_what_is_kept_is_counted():
    assert kept("softmax", 16) == 2 * PAIRS * 16
    assert kept("linear", 16) == 16 * 16 + 16
    assert kept("delta", 16) == 16 * 16


@pytest.mark.parametrize("name", attention_names())
def test_every_attention_has_a_place_with_each_budget(name):
    for budget in BUDGETS:
        width = widest(name, budget)
        assert width is not None
        assert kept(name, width) <= budget


def test_every_case_is_run_with_each_seed():
    found = cases("default")
    assert len(found) == len(attention_names()) * len(BUDGETS) * 3


def test_the_best_stands_first():
    rows = [
        {"attention": name, "budget": 320, "seed": 0, "seconds": 1, "width": 8, "kept": 100,
         "recalled": share}
        for name, share in (("linear", 0.25), ("softmax", 1.0))
    ]  # fmt: skip
    text = report(rows).text
    assert text.index("| softmax | 100% (100 numbers, E = 8)") < text.index("| linear | 25%")
    assert "`softmax` recalls most, 100%, and `linear`\nleast, 25%" in text
