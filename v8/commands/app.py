"""The command line `python -m v8`: its commands, and how errors become exit codes.

    0  all good
    1  an error of v8 that none of the others describes
    2  usage: a flag, a profile, a universe
    3  data: candles, features, or a run folder that cannot be trusted
    4  some series failed; the others are finished and saved
    5  publishing and pulling: what did not reach the Hub, or was not handed out by it
    6  a place that cannot be written: a full disk, a read-only folder
    130  interrupted; the state is saved and the call that continues is printed

A run whose every series failed for its candles or features exits 3: then the source is at fault, not
a series. Heavy imports happen inside commands, so that `--help` and usage errors answer at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from v8.commands.compare import compare_profiles
from v8.commands.data import data
from v8.commands.doctor import doctor
from v8.commands.features import features
from v8.commands.predict import predict
from v8.commands.publish import publish
from v8.commands.pull import pull
from v8.commands.report import report
from v8.commands.run import run
from v8.engine.interruption import EXIT_INTERRUPTED, leave, watch_interrupts
from v8.errors import StorageError, V8Error
from v8.market.sources.waiting import told_of_waiting


class _Commands(TyperGroup):
    """Prints an error of ours as one line and exits with its code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with told_of_waiting(lambda text: typer.echo(text, err=True)):
                return super().invoke(ctx)
        except V8Error as error:
            sys.stderr.write(f"error: {error}\n")
            raise typer.Exit(error.exit_code) from error
        except OSError as error:  # of a place that nothing of ours looks after: a user's mistake, not a bug
            if isinstance(error, BrokenPipeError):
                raise
            trouble = StorageError.of(error.filename or "the system", error)
            sys.stderr.write(f"error: {trouble}\n")
            raise typer.Exit(trouble.exit_code) from error
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None


app = typer.Typer(
    name="v8",
    cls=_Commands,
    help="A fleet of crypto forecasters, trained at once, judged honestly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(data)
app.command()(features)
app.command()(report)
app.command()(publish)
app.command()(pull)
app.command()(predict)
app.command()(compare_profiles)
app.command()(doctor)


@app.callback()
def _root() -> None:
    """A fleet of crypto forecasters, trained at once, judged honestly."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: Words after the program's name; None takes them from `sys.argv`.
    """
    watch_interrupts()
    try:
        app(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="python -m v8")
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:
            sys.stdout.flush()
            leave()  # threads may wait for the network, and what they wait for is not wanted any more
        raise
