"""Tables on a terminal of 80 columns: what commands printed where COLUMNS said nothing else."""

from __future__ import annotations

RULE = "─"


def require_narrow(printed: str, *cells: str) -> None:
    """Refuse a table that is wider than 80 columns, or none at all; `cells` must stand in it unbroken.

    A table is a rule with the lines of its header above, and its rows below, up to an empty line.
    """
    lines = printed.splitlines()
    rules = [place for place, line in enumerate(lines) if line.strip() and not line.strip(RULE + " ")]
    assert rules, "no table"
    for rule in rules:
        end = lines.index("", rule)
        table = lines[rule - 1 : end]
        assert max(map(len, table)) <= 80, table
    for cell in cells:
        assert any(cell in line for line in lines), cell
