#!/usr/bin/env python
"""Check whether the number format that `--precision auto` takes is the fastest of the three on this machine.

    python scripts/bench_precision.py [--profile aligned --profile frontier] [--json PATH]

For each profile: the format that `auto` chooses, measured with an empty cache, and the speeds of all three
formats on the whole network in one process, in turns (`v8.model.training.probe.format_speeds`). The last
column is the chosen format's speed divided by the best one's; it must be at least 0.9 (issue 12).
"""

# ruff: noqa: E402 - the package is next to this folder
from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from v8.base.hardware import describe_machine, may_have_gpu
from v8.profile.profile import load_profile
from v8.runs.machine.choices import FORMATS, choose_precision
from v8.runs.machine.processes import MeasurementRequest, run_processes

LEAST = 0.9
SECONDS = 1.0


def main() -> None:
    """Measure, print a table, and exit with 1 when a choice is slower than it may be."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["V8_HOME"] = folder
        rows = {name: _measured(name) for name in arguments.profile or ("aligned", "frontier")}
    print(describe_machine())
    print("profile     auto takes       " + "".join(f"{name:>16}" for name in FORMATS) + "  auto / best")
    for name, row in rows.items():
        speeds = "".join(f"{row['windows_per_s'].get(form, float('nan')):16,.0f}" for form in FORMATS)
        print(f"{name:11} {row['chosen']:16} {speeds}  {row['share_of_best']:11.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))
    sys.exit(any(row["share_of_best"] < LEAST for row in rows.values()))


def _measured(name: str) -> dict[str, Any]:
    """Return what `auto` takes for a profile, windows/s by format, and its share of the best speed."""
    profile = load_profile(name).with_budget(precision="auto")
    chosen = choose_precision(profile, may_have_gpu=may_have_gpu(), on_message=print)
    options = {"formats": FORMATS, "seconds": SECONDS, "num_models": 1, "is_short": False}
    request = MeasurementRequest(profile=profile, measurements=[{"measure": "formats", **options}])
    (result,) = run_processes([request])
    if not result.measured:
        sys.exit(f"error: {name} could not be measured: {result.refusal or result.errors}")
    speeds = result.measured[0]
    share = speeds[chosen] / max(speeds.values())
    return {"chosen": chosen, "windows_per_s": speeds, "share_of_best": share}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--profile", action="append", help="a profile; repeat for more")
    parser.add_argument("--json", type=Path, help="write the figures there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
