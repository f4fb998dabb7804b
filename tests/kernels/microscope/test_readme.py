"""What the microscope's page says of its three kernels is what the microscope sees."""

from pathlib import Path

import pytest

from minitransformer_kernels import microscope
from minitransformer_kernels.microscope import transpose

PAGE = Path(__file__).parents[3] / "kernels" / "microscope" / "README.md"


@pytest.fixture(scope="module")
def reports() -> dict[str, microscope.Report]:
    """The three kernels' reports."""
    return microscope.watch(transpose.example, compiled=False)


def per_request(report: microscope.Report, text: str, space: str) -> tuple[float, float]:
    """What a request of a line takes of memory, sectors or wavefronts, and the fewest."""
    (line,) = (line for line in report.lines if text in line.text)
    traffic = line.memory(space)
    return traffic.transactions / traffic.requests, traffic.fewest / traffic.requests


def test_sectors_of_the_page(reports: dict[str, microscope.Report]) -> None:
    for text in "value = x[row, column]", "out[column, row] = value":
        moved, fewest = per_request(reports["naive"], text, "global")
        assert f"| `{text}` | {moved:.0f} / {fewest:.0f} |" in PAGE.read_text()
