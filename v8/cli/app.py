"""The command line: its commands, and how errors become exit codes.

The codes stand beside the errors (`v8.errors`); 0 is all good, 130 interrupted. A run whose every series
failed for its candles or features exits 3: then the source is at fault, not a series. Heavy imports happen
inside commands, so that `--help` and usage errors answer at once.
"""

import inspect
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from v8.cli import commands
from v8.cli.options import with_plugins
from v8.comparison.command import compare_profiles
from v8.errors import ProfileError, StorageError, V8Error, shown
from v8.invocation import EXIT_INTERRUPTED, command
from v8.machine.interruption import leave, leave_at_once, watch_interrupts
from v8.net import told_of_waiting
from v8.safe_text import for_terminal
from v8.version import VERSION, commit

_UsageError: Any = typer.BadParameter.__mro__[1]
"""What click, or the copy of it within typer, raises for words that it does not understand."""

_MAX_WORD: Final = 4_096
"""Letters of one word of a command line; no path is longer."""


class _Commands(TyperGroup):
    """Checks the words, prints every error as one line, and exits with its code."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        with _one_line():
            _require_words(args)
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _one_line(), told_of_waiting(_print_waiting):
            return super().invoke(ctx)


class _Command(TyperCommand):
    """Refuses an empty text for any option or argument: a shell writes one where a variable is not set."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        values, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        for parameter in self.get_params(ctx):
            _require_no_empty_text(parameter, values.get(parameter.name))
        return super().parse_args(ctx, args)


def _require_no_empty_text(parameter: Any, value: object) -> None:
    """Refuse an empty text among what the command line gives for a parameter, as it was typed.

    Raises `ProfileError` if there is one.
    """
    texts = value if isinstance(value, list | tuple) else (value,)
    for text in texts:
        if isinstance(text, str) and not text.strip():
            is_option = parameter.param_type_name == "option"
            where = max(parameter.opts, key=len) if is_option else str(parameter.metavar)
            fix = f"Leave {where} out or give it a value; is a variable of your shell not set?"
            raise ProfileError(
                where=where, rule="needs a value that is not empty", got="an empty one", fix=fix
            )


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except V8Error as error:
        _exit(error)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        place = error.ctx.command_path if error.ctx else command()
        message = error.format_message().removeprefix("Got ").rstrip(".")
        got = f"{message[:1].lower()}{message[1:]}"
        rule = "takes the words that its --help lists"
        fix = f"Call {place} --help"
        _exit(ProfileError(where=place, rule=rule, got=got, fix=fix))
    except OSError as error:  # of a place that nothing of ours looks after: a user's mistake, not a bug
        _exit(StorageError.out_of_reach(error))
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _print_waiting(text: str) -> None:
    """Print what is waited for to standard error, as one line."""
    typer.echo(for_terminal(text), err=True)


def _exit(error: V8Error) -> NoReturn:
    sys.stderr.write(f"error: {error}\n")
    raise typer.Exit(error.exit_code) from error


def _require_words(words: Sequence[str]) -> None:
    """Refuse what no terminal shows and no report can quote: control characters, bytes that are no UTF-8."""
    for word in words:
        if not word.isprintable() or len(word) > _MAX_WORD:
            rule = f"is of words in UTF-8 without control characters, each at most {_MAX_WORD:,} letters"
            fix = "Write that word otherwise; a file or folder may have to be renamed"
            raise ProfileError(where="the command line", rule=rule, got=shown(word), fix=fix)


app = typer.Typer(
    name="v8",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help breaks no word, and names no type behind a flag
    pretty_exceptions_enable=False,
)
COMMANDS: Final = (
    *(commands.run, commands.data, commands.features, commands.report, commands.export, commands.worth),
    *(commands.publish, commands.pull, commands.predict, commands.update, commands.forecast),
    *(commands.track, commands.backtest, compare_profiles, commands.search),
    *(commands.serve, commands.doctor),
)
for _function in COMMANDS:
    _said, _, _examples = str(inspect.getdoc(_function)).partition("\n\nExamples:\n")
    _shown = "\b\nExamples:\n" + _examples.replace("    v8", f"  {command()}")
    _name = "app" if _function is commands.serve else None
    _short = _said.partition("\n\n")[0]
    app.command(_name, cls=_Command, help=_said, short_help=_short, epilog=_shown)(with_plugins(_function))


def _print_version(is_asked: bool) -> None:
    if is_asked:
        known = commit()
        sys.stdout.write(f"v8 {VERSION} (commit {known})\n" if known else f"v8 {VERSION}\n")
        raise typer.Exit


@app.callback()
def _root(
    is_asked: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print version and commit."
    ),
) -> None:
    """A fleet of crypto forecasters, trained at once, evaluated honestly."""


def _hold_streams() -> None:
    """Lead standard streams nowhere where somebody closed them: no file of ours may take their numbers."""
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(spare, True)
    os.close(spare)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: Words after the program's name; None takes them from `sys.argv`.
    """
    _hold_streams()
    watch_interrupts()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a code page of Windows lacks letters that we write
            stream.reconfigure(errors="backslashreplace")
    try:
        app(args=list(sys.argv[1:] if arguments is None else arguments), prog_name=command())
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:
            sys.stdout.flush()
            leave()  # threads may wait for the network, and what they wait for is not wanted any more
        if "tensorflow" in sys.modules and isinstance(end.code, int):
            leave_at_once(end.code)
        raise
