"""Fail where fewer lines or branches of v8 are covered than tests/coverage_floor.json says.

    python tests/parts/coverage_floor.py COVERAGE.JSON

The tests of every change must keep both shares, in percent. Whoever raises them raises the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

FLOOR = Path(__file__).parents[1] / "coverage_floor.json"


def measured_shares(report: Path) -> dict[str, float]:
    """Return the covered shares of lines and branches, in percent, of a JSON report of coverage.py."""
    totals = json.loads(report.read_text("utf-8"))["totals"]
    return {
        "lines": 100 * totals["covered_lines"] / totals["num_statements"],
        "branches": 100 * totals["covered_branches"] / totals["num_branches"],
    }


def errors(shares: Mapping[str, float], floor: Mapping[str, float]) -> list[str]:
    """Say which shares lie below their floor."""
    return [
        f"error: tests must cover {floor[kind]:.2f} % of the {kind} of v8; they cover {share:.2f} %. "
        "Test what you added, or what lost its tests."
        for kind, share in shares.items()
        if share < floor[kind]
    ]


def main(report: Path) -> int:
    """Print the shares; return 1 if one of them lies below its floor."""
    shares = measured_shares(report)
    floor = json.loads(FLOOR.read_text("utf-8"))
    for kind, share in shares.items():
        print(f"coverage: {share:.2f} % of the {kind} of v8, at least {floor[kind]:.2f} %")
    messages = errors(shares, floor)
    print("\n".join(messages))
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
