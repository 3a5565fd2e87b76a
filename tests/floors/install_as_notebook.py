"""Installs this checkout as scripts/notebook.ipynb does, by that cell of it.

Call it with a folder for what the cell writes. Editable, so that the environment serves later commits, too.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def install(folder: str) -> None:
    """Run the cell that is tagged `install`."""
    notebook = json.loads((REPOSITORY / "scripts" / "notebook.ipynb").read_text("utf-8"))
    (cell,) = [one for one in notebook["cells"] if "install" in one["metadata"].get("tags", ())]
    os.chdir(folder)
    # An editable installation is a line in a file of paths, which a process reads only when it starts.
    sys.path.append(str(REPOSITORY))
    exec("".join(cell["source"]), {"V8_FROM": f"--editable={REPOSITORY}"})


if __name__ == "__main__":
    install(sys.argv[1])
