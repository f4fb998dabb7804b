"""Commands that the course tells a reader to run."""

from pathlib import Path

from minitransformer import course
from minitransformer.course.lesson import folder


def test_quotes_are_those_that_every_shell_takes():
    """For cmd of Windows single quotes are part of a name."""
    sources = Path(course.__file__).parent.rglob("*.py")
    texts = {path: path.read_text(encoding="utf-8") for path in (*sources, *folder().glob("*.md"))}
    assert any('pip install "' in text for text in texts.values())
    assert not [path for path, text in texts.items() if "pip install '" in text]
