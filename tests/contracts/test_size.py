"""The size of the package is counted right, and too much of it fails the check."""

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


def test_a_package_that_is_too_large_fails(
    size: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room/large.py").write_text("x = 1\n" * (size.MOST_CODE + 1))
    monkeypatch.setattr(sys, "argv", ["size.py", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"got 23,001 and 23,001\. Join what is there before you add\."):
        size.main()
    assert capsys.readouterr().out.splitlines()[1].split() == ["room", "1", "23001", "23001", "0", "0"]


def test_the_package_is_within_its_limits(size: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["size.py", str(REPOSITORY / "v8")])
    size.main()
