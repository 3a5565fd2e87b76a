"""The command line: its commands, and how errors become exit codes.

Each error class has its exit code (`v8.errors`); 0 is success, 130 interrupted. A run in which every series
failed because of its candles or features exits with 3: then the source is at fault, not a series. Heavy
imports happen inside commands, so that `--help` and usage errors answer quickly.
"""

import inspect
import io
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from v8 import annexes
from v8.cli import commands
from v8.cli.options import with_plugins
from v8.errors import ProfileError, StorageError, V8Error, shown
from v8.invocation import EXIT_INTERRUPTED, command
from v8.machine.interruption import exit_interrupted, exit_without_teardown, watch_interrupts
from v8.net import reporting_waiting_to
from v8.registry import nearest
from v8.safe_text import for_terminal
from v8.version import VERSION, commit

_UsageError: Any = typer.BadParameter.__base__
"""Base class of the errors that click, or the copy of it within typer, raises for a wrong command line."""

_MAX_WORD_LETTERS: Final = 4_096
"""Most letters of one word of a command line; no path is longer."""


_NO_SUCH_COMMAND: Final = re.compile(r"No such command '(.*?)'(\.|$)")
_OTHER_WORDS: Final = {
    "train": "run",
    "fit": "run",
    "evaluate": "report",
    "eval": "report",
    "download": "data",
    "fetch": "data",
    "compare": "compare-profiles",
    "serve": "app",
    "server": "app",
    "upload": "publish",
    "push": "publish",
    "tune": "search",
    "retrain": "update",
    "record": "track",
    "cv": "backtest",
}
"""What other programs call the commands."""


class _Commands(TyperGroup):
    """All commands: checks their words, prints every error as one line, and exits with its code."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        with _errors_on_one_line():
            _require_printable(args)
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _errors_on_one_line(), reporting_waiting_to(_print_waiting):
            return super().invoke(ctx)


class _Command(TyperCommand):
    """One command; refuses an empty text as a value, which a shell passes where a variable is not set."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        values, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        for parameter in self.get_params(ctx):
            _require_no_empty_text(parameter, values.get(parameter.name))
        return super().parse_args(ctx, args)


def _require_no_empty_text(parameter: Any, value: object) -> None:
    """Refuse empty texts among the values of a parameter.

    Args:
        parameter: Of click.
        value: As it was typed: a text, several, or something else if it was not given.

    Raises:
        ProfileError: If a text is empty.
    """
    texts = value if isinstance(value, list | tuple) else (value,)
    for text in texts:
        if isinstance(text, str) and not text.strip():
            is_option = parameter.param_type_name == "option"
            name = max(parameter.opts, key=len) if is_option else str(parameter.metavar)
            fix = f"Leave {name} out or give it a value; is a variable of your shell not set?"
            raise ProfileError(
                where=name, rule="needs a value that is not empty", got="an empty one", fix=fix
            )


@contextmanager
def _errors_on_one_line() -> Iterator[None]:
    """Print an error of the block as one line, and end the process with its exit code."""
    try:
        yield
    except BrokenPipeError:
        raise
    except V8Error as error:
        _exit(error)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        _exit(_usage_error(error))
    except OSError as error:  # of a file that no other code of ours handles: a user's mistake, not a bug
        _exit(StorageError.out_of_reach(error))
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _usage_error(error: Any) -> ProfileError:
    """Put an error of click's about the words of a command line into our form."""
    place = error.ctx.command_path if error.ctx else command()
    lists = f"`{place} --help` lists them"
    kind = type(error).__name__
    if kind == "NoSuchOption":
        options = [name for each in error.ctx.command.get_params(error.ctx) for name in each.opts]
        suggestion = nearest(error.option_name, options)
        fix = f"Did you mean {suggestion}? {lists}" if suggestion else lists
        return ProfileError(
            where=place, rule="takes only its own options", got=shown(error.option_name), fix=fix
        )
    if kind == "MissingParameter":
        name = str(error.param.metavar or error.param.opts[0])
        example = " runs/frontier" if name == "RUN" else f" {name}"
        fix = f"Write for example {place}{example}"
        return ProfileError(where=place, rule=f"needs {name}", got="none", fix=fix)
    message = error.format_message().removeprefix("Got ").rstrip(".?")
    unknown_command = _NO_SUCH_COMMAND.match(message)
    if unknown_command:
        name = unknown_command[1]
        meant = _OTHER_WORDS.get(name) or nearest(name, [*_CORE_COMMANDS, *annexes.commands()])
        fix = f"Did you mean `{place} {meant}`? {lists}" if meant else lists
        return ProfileError(where=place, rule="needs one of its commands", got=shown(name), fix=fix)
    got = f"{message[:1].lower()}{message[1:]}"
    return ProfileError(
        where=place, rule="takes the words that its --help lists", got=got, fix=f"Call {place} --help"
    )


def _print_waiting(text: str) -> None:
    """Print what is waited for to standard error, as one line."""
    typer.echo(for_terminal(text), err=True)


def _exit(error: V8Error) -> NoReturn:
    sys.stderr.write(f"error: {error}\n")
    raise typer.Exit(error.exit_code) from error


def _require_printable(words: Sequence[str]) -> None:
    """Refuse what no terminal shows and no report can quote: control characters, bytes that are no UTF-8.

    Raises `ProfileError` for such a word, and for one that is too long.
    """
    for word in words:
        if not word.isprintable() or len(word) > _MAX_WORD_LETTERS:
            rule = (
                f"is of words in UTF-8 without control characters, each at most {_MAX_WORD_LETTERS:,} letters"
            )
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
_CORE_COMMANDS: Final = {
    function.__name__: function
    for function in (
        commands.run,
        commands.data,
        commands.features,
        commands.report,
        commands.export,
        commands.publish,
        commands.pull,
        commands.predict,
        commands.backtest,
        commands.doctor,
    )
}
"""The commands of the core by name; annexes add the others (`v8.annexes`)."""

_ORDER: Final = (
    *("run", "data", "features", "report", "export", "worth", "publish", "pull", "predict"),
    *("update", "forecast", "track", "backtest", "compare-profiles", "search", "app", "doctor"),
)
"""The order in which `--help` lists commands that are there; others come last."""


def _all_commands() -> dict[str, Callable[..., None]]:
    """Return the functions of all commands by name, in the order of `--help`."""
    functions: dict[str, Callable[..., None]] = dict(_CORE_COMMANDS)
    for name, place in annexes.commands().items():
        functions[name] = pkgutil.resolve_name(place)
    known = [name for name in _ORDER if name in functions]
    others = [name for name in functions if name not in _ORDER]
    return {name: functions[name] for name in (*known, *others)}


def _register(name: str, function: Callable[..., None]) -> None:
    """Add a command to the command line: its docstring is its help, the examples in it come last."""
    text, _, examples = str(inspect.getdoc(function)).partition("\n\nExamples:\n")
    summary = text.partition("\n\n")[0]
    # \b keeps click from joining the lines. An example is printed with the program's name as it was called.
    epilog = "\b\nExamples:\n" + examples.replace("    v8", f"  {command()}")
    add_command = app.command(name, cls=_Command, help=text, short_help=summary, epilog=epilog)
    add_command(with_plugins(function))


for _name, _function in _all_commands().items():
    _register(_name, _function)


def _print_version(is_asked: bool) -> None:
    """Print the version and end, if `--version` is given."""
    if is_asked:
        revision = commit()
        sys.stdout.write(f"v8 {VERSION} (commit {revision})\n" if revision else f"v8 {VERSION}\n")
        raise typer.Exit


@app.callback()
def _root(
    is_asked: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print version and commit."
    ),
) -> None:
    """Crypto forecasters, trained together, evaluated honestly."""


def _open_standard_streams() -> None:
    """Open the null device for every standard stream that was closed when the process started.

    Otherwise a file that is opened later would get the descriptor of a standard stream (0, 1 or 2), and what
    is printed would go into that file.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free number
    while descriptor <= 2:
        os.set_inheritable(descriptor, True)
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: Words after the program's name; None takes them from `sys.argv`.
    """
    _open_standard_streams()
    watch_interrupts()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a code page of Windows may lack letters that we print
            stream.reconfigure(errors="backslashreplace")
    try:
        app(args=list(sys.argv[1:] if arguments is None else arguments), prog_name=command())
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:
            sys.stdout.flush()
            exit_interrupted()  # without waiting for threads that may still wait for the network
        if "tensorflow" in sys.modules and isinstance(end.code, int):
            exit_without_teardown(end.code)
        raise
