"""Where positions matter the copy task says so: the claim is computed from the shares."""

from typing import Any

import pytest

from minitransformer.experiments.copy_positions import ATTENTIONS, POSITIONS, cases, report


def rows(alone: float, added: float) -> list[dict[str, Any]]:
    """Return a record: what Shaw's positions alone reach, and with learned ones beside them."""
    reached = {("relative", "none"): alone, ("relative", "learned"): added}
    return [
        {**case, "right": reached.get((case["attention"], case["positions"]), 0.5),
         "longer": None if case["positions"] == "learned" else 0.25, "curve": [2.0, 1.0]}
        for case in cases("default")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("alone", "added", "verdict"),
    [(1.0, 1.0, "*Supported*"), (0.995, 1.0, "*Supported*"), (0.9, 1.0, "*Not supported*"),
     (0.9, 0.8, "*Supported*")],
)  # fmt: skip
def test_the_verdict_follows_the_shares(alone: float, added: float, verdict: str) -> None:
    text = report(rows(alone, added)).text
    assert f"are needed.*\n{verdict}. With distances alone {alone:.1%}" in text
    assert "twice as long, 25.0% are right" in text
    assert f"| relative | learned | {added:.1%} ({added:.1%} to {added:.1%}) | - |" in text


def test_each_attention_learns_with_each_of_the_positions() -> None:
    found = {(case["attention"], case["positions"], case["seed"]) for case in cases("default")}
    assert len(found) == len(ATTENTIONS) * len(POSITIONS) * 2
