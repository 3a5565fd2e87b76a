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


def test_every_line_is_of_one_kind(size: Any, tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text(
        '"""Two\nlines."""\n\nimport os\nfrom sys import (\n    path,\n)\n# why\nX = """a\n\nb"""\n"""X."""\n'
    )
    counted = size.measure(file)
    # Documentation: lines 1, 2 and 12; imports: 4 to 7; X: two lines of code and a blank one; a comment: 8.
    assert counted == {"files": 1, "lines": 12, "code": 6, "imports": 4, "documentation": 3}


def test_a_large_package_is_counted_and_fails_nothing(
    size: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "market").mkdir()
    (tmp_path / "market/large.py").write_text("x = 1\n" * 40_000)
    monkeypatch.setattr(sys, "argv", ["size.py", str(tmp_path)])
    size.main()
    assert capsys.readouterr().out.splitlines()[1].split() == ["market", "1", "40000", "40000", "0", "0"]
