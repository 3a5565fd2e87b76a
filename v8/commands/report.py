"""`python -m v8 report RUN`: draw leaderboard and report of a run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, for example runs/aligned.")],
) -> None:
    """Redraw leaderboard.csv, report.html, its pictures and timing.json from the saved artefacts."""
    from v8.artifacts.run_folder import read_run
    from v8.commands.printing import print_leaderboard
    from v8.engine.outputs import REPORT_FILE, write_outputs
    from v8.engine.pictures import PICTURES_FOLDER, draw_pictures
    from v8.lock import FolderLock

    read_run(run)
    with FolderLock(run):
        rows = write_outputs(run)
        pictures = draw_pictures(run)
    print_leaderboard(rows)
    typer.echo(f"Report: {run / REPORT_FILE}")
    if pictures:
        typer.echo(f"Pictures: {', '.join(path.name for path in pictures)} in {run / PICTURES_FOLDER}")
