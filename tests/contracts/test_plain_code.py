"""What makes code hard to read is counted right, and is below its limits in package, scripts and tests."""

from __future__ import annotations

import re
from pathlib import Path

import plain
import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.nightly
@pytest.mark.parametrize("folder", ["v8", "scripts", "docs/bridges", "tests"])
def test_the_code_is_below_its_limits(folder: str) -> None:
    figures = plain.measure(REPOSITORY / folder)
    worst = {kind: figures.places[kind][:5] for kind in figures.above_limits(plain.limits_of(Path(folder)))}
    assert not worst, f"harder to read than allowed; python scripts/plain.py {folder} --worst 30 lists all"


def test_no_sentence_cites_a_guarantee_by_its_number() -> None:
    """Nothing in the repository defines one."""
    files = [
        file for folder in ("v8", "scripts", "docs", "tests") for file in (REPOSITORY / folder).rglob("*.py")
    ]
    assert len(files) > 400
    assert [file for file in files if re.search(r"\bG[12]?\d\b", file.read_text("utf-8"))] == []
