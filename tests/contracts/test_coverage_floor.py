"""What the tests must cover: tests/parts/coverage_floor.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from coverage_floor import FLOOR, main, measured_shares


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A report in which 995 of 1,000 lines and 290 of 300 branches are covered."""
    totals = {"covered_lines": 995, "num_statements": 1_000, "covered_branches": 290, "num_branches": 300}
    file = tmp_path / "coverage.json"
    file.write_text(json.dumps({"totals": totals}))
    return file


def test_the_floor_is_a_share_of_lines_and_one_of_branches() -> None:
    floor = json.loads(FLOOR.read_text("utf-8"))
    assert floor.keys() == {"lines", "branches"}
    assert all(50 < share <= 100 for share in floor.values())


def test_what_covers_less_than_the_floor_fails_with_a_sentence(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("coverage_floor.FLOOR", tmp_path / "floor.json")
    assert measured_shares(report) == {"lines": 99.5, "branches": pytest.approx(290 / 3)}
    (tmp_path / "floor.json").write_text('{"lines": 99.5, "branches": 96.0}')
    assert main(report) == 0
    (tmp_path / "floor.json").write_text('{"lines": 99.51, "branches": 96.0}')
    assert main(report) == 1
    assert "must cover 99.51 % of the lines of v8; they cover 99.50 %." in capsys.readouterr().out
