"""The table of the page on security: every line of it names a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs/en/explanation/security.md").read_text("utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", SECTION)


def test_every_line_of_the_table_names_one_test() -> None:
    lines = [line for line in SECTION.splitlines() if line.startswith("|")][2:]
    assert len(lines) >= 18
    assert all(line.count("`tests/") == 1 for line in lines)


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_the_named_test_is_there(file: str, test: str) -> None:
    assert f"def {test}(" in (ROOT / file).read_text("utf-8")
