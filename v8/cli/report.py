"""`python -m v8 report RUN`: draw leaderboard and report of a run again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from v8.errors import StorageError, V8Error


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, for example runs/aligned.")],
) -> None:
    """Redraw leaderboard.csv, report.html, its pictures and timing.json from the saved artefacts."""
    from v8.cli.printing import print_leaderboard
    from v8.runs.outputs import PICTURES_FOLDER, REPORT_FILE, draw_pictures, write_outputs

    errors: dict[str, V8Error] = {}

    def tell(error: V8Error) -> None:
        if str(error) not in errors:
            sys.stderr.write(f"error: {error}\n")
        errors[str(error)] = error

    # Nobody is asked for the folder: every file is whole, and a run at work draws its own again.
    print_leaderboard(write_outputs(run, tell, is_anew=True))
    try:
        if not any(isinstance(error, StorageError) for error in errors.values()):
            pictures = draw_pictures(run, tell)
            typer.echo(f"Report: {run / REPORT_FILE}")
            if pictures:
                names = ", ".join(path.name for path in pictures)
                typer.echo(f"Pictures: {names} in {run / PICTURES_FOLDER}")
    except StorageError as error:
        tell(error)
    if errors:
        raise typer.Exit(max(error.exit_code for error in errors.values()))
