"""The size of the package is counted right."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def size() -> Any:
    spec = importlib.util.spec_from_file_location("size_of_v8", REPOSITORY / "scripts/size.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_texts_that_stand_alone_are_no_statements(size: Any) -> None:
    text = '"""Two\nlines."""\n\nimport os\n\n\ndef work():\n    """Text."""\n    if os:\n        x = 1\n'
    # import, def, if, assignment
    assert size.num_statements(text) == 4


def test_a_large_package_is_counted_and_fails_nothing(
    size: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "market").mkdir()
    (tmp_path / "market/large.py").write_text("x = 1\n" * 40_000)
    monkeypatch.setattr(sys, "argv", ["size.py", str(tmp_path)])
    size.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["market", "1", "40,000"]
    assert lines[-1].split() == ["market/large.py:", "40,000", "lines"]
