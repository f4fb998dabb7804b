"""What numbers depend on is said, and nothing that names a machine or its user."""

import getpass
import platform
from pathlib import Path

import pytest

from minitransformer.machine import machine, processor


def test_the_processor_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processor()
    monkeypatch.setattr(Path, "read_text", lambda path: "nothing\n")
    assert processor()


def test_a_name_without_a_number_gets_family_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC{}\n\nmodel name\t: AMD EPYC{}\n"
    for number, expected in ("", "AMD EPYC (family 26, model 2)"), (" 7763", "AMD EPYC 7763"):
        monkeypatch.setattr(Path, "read_text", lambda path, n=number: told.format(n, n))
        assert processor() == expected


def test_a_name_is_taken_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path: "a: b: c\nmodel name: Unknown: V\n")
    assert processor() == "Unknown: V"


def test_the_description_has_versions_and_no_names() -> None:
    described = machine(["numpy"])
    assert list(described) == ["processor", "cores", "threads", "system", "python", "numpy"]
    text = str(described)
    for secret in (platform.node(), getpass.getuser(), str(Path.home())):
        assert len(secret) < 5 or secret not in text
