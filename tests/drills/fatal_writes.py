"""The command line in a process that kills itself at a chosen write: a file's rename into its place.

    V8_DRILL_AT="checkpoint.npz after 2" python tests/drills/fatal_writes.py run --source demo ...
    V8_DRILL_SEEN=FILE python tests/drills/fatal_writes.py run --source demo ...

With the second form it dies at the first write that FILE does not list, and adds it there: called again
and again, a run is cut off once before and once after each of its writes. Before means in the middle: half
of the temporary file is cut away. Workers run this file too (`spawn` does that), so their writes count.
The whole process group dies, as it does when a machine loses power.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

_replace = os.replace
_counted: Counter[str] = Counter()


def fatal_replace(source: Any, target: Any, **options: Any) -> None:
    """Rename a file, unless this is where to die."""
    name = Path(target).name
    label = re.sub(r"[0-9a-f]{32,}", "DIGEST", name)
    if _is_the_one(f"{label} before"):
        os.truncate(source, Path(source).stat().st_size // 2)
        _die()
    _replace(source, target, **options)
    if _is_the_one(f"{label} after"):
        _die()


def _is_the_one(label: str) -> bool:
    _counted[label] += 1
    chosen = os.environ.get("V8_DRILL_AT")
    if chosen:
        return f"{label} {_counted[label]}" == chosen
    with Path(os.environ["V8_DRILL_SEEN"]).open("a+") as label_file:
        fcntl.flock(label_file, fcntl.LOCK_EX)
        label_file.seek(0)
        is_new = label not in label_file.read().splitlines()
        if is_new:
            label_file.write(f"{label}\n")
    return is_new


def _die() -> None:
    os.killpg(os.getpgid(0), signal.SIGKILL)
    signal.pause()


os.replace = fatal_replace  # type: ignore[assignment]

if __name__ == "__main__":
    from v8.cli.app import main

    main()
