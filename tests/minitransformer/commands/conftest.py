"""Commands that run in this process."""

from collections.abc import Callable

import pytest

from minitransformer import commands as cli


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command, which succeeds; returns what it printed."""

    def run(*arguments: str) -> str:
        assert cli.main(arguments) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def complaint(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command, which fails with one line; returns that."""

    def run(code: int, *arguments: str) -> str:
        try:
            found = cli.main(arguments)
        except SystemExit as end:
            found = int(end.code or 0)
        printed = capsys.readouterr().err
        assert (found, printed.count("\n")) == (code, 1), printed
        return printed.rstrip()

    return run
