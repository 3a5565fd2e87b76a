"""CONTRIBUTING.md names what is there, and its spine can be read in an hour."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
TEXT: Final = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_spine_is_fifteen_files_of_five_thousand_lines_at_most() -> None:
    spine = re.findall(r"^\| `(v8/[^`]+)` \|", TEXT.partition("## Packages")[0], flags=re.MULTILINE)
    assert 10 <= len(set(spine)) == len(spine) <= 15
    assert sum(len((REPOSITORY / path).read_text(encoding="utf-8").splitlines()) for path in spine) <= 5_000


def test_every_file_that_is_named_is_there() -> None:
    named = set(re.findall(r"`((?:v8|tests|scripts|configs)/[\w./]+)`", TEXT))
    named |= {f"tests/contracts/{name}" for name in re.findall(r"`(test_toy_\w+\.py)`", TEXT)}
    assert len(named) > 30
    assert not [path for path in sorted(named) if not (REPOSITORY / path).exists()]
