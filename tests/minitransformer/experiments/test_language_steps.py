"""Steps that are compared read as many characters, and the claim says from where on it holds."""

from typing import Any

import pytest

from minitransformer.experiments.language_steps import cases, report


@pytest.mark.parametrize("scale", ["smoke", "default", "full"])
def test_every_step_reads_about_as_much(scale: str) -> None:
    read = {case["batch"] * case["context"] for case in cases(scale)}
    assert max(read) < 2 * min(read)


def rows(softmax: list[float]) -> list[dict[str, Any]]:
    """Return a record in which linear attention takes a second, and softmax as given."""
    contexts = sorted({case["context"] for case in cases("default")})
    taken = dict(zip(contexts, softmax, strict=True))
    return [
        {**case, "step": taken[case["context"]] if case["attention"] == "softmax" else 1.0,
         "ends": [1, 1], "character": 0.5}
        for case in cases("default")
    ]  # fmt: skip


def test_the_claim_says_from_where_on_it_holds() -> None:
    assert "supported from 512 characters on" in report(rows([0.5, 2.0, 4.0])).text
    assert "not supported here" in report(rows([0.5, 0.7, 0.9])).text
    assert "4.00 times that of linear attention at 2,048" in report(rows([0.5, 2.0, 4.0])).text
