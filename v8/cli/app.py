"""The command line: its commands, and how errors become exit codes.

Each error class has its exit code (`v8.base.errors`); 0 is success, 130 interrupted. A run in which every
series failed because of its candles or features exits with 3: then the source is at fault, not a series.
Heavy imports happen inside commands, so that `--help` and usage errors answer quickly.
"""

import inspect
import io
import os
import pkgutil
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from types import TracebackType
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from v8.base.errors import ProfileError, StorageError, V8Error, shown
from v8.base.process import (
    EXIT_INTERRUPTED,
    command,
    exit_interrupted,
    exit_without_teardown,
    reporting_waiting_to,
    watch_interrupts,
)
from v8.base.registry import added_commands, load_plugins
from v8.base.terminal import for_stream, print_message
from v8.base.version import VERSION, commit
from v8.base.wording import for_file
from v8.cli import commands
from v8.cli.usage import VALUES, WORDS, usage_error

UsageError: Any = typer.BadParameter.__base__
"""Base class of the errors that click, or the copy of it within typer, raises for a wrong command line."""

_MAX_WORD_LETTERS: Final = 4_096
"""Most letters of one word of a command line; no path is longer."""


class _Commands(TyperGroup):
    """All commands: checks their words, prints every error as one line, and exits with its code."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        with _errors_on_one_line():
            _require_printable(args)
            return super().make_context(info_name, args, parent, **extra)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by group, each with the first sentence of its help."""
        for group in GROUPS:
            rows = []
            for name, each in self.commands.items():
                if getattr(each, "rich_help_panel", None) == group:
                    limit = formatter.width - 6 - _LONGEST_NAME
                    rows.append((name.ljust(_LONGEST_NAME), each.get_short_help_str(limit)))
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        with _errors_on_one_line(), reporting_waiting_to(print_message):
            return super().invoke(ctx)


class _Command(TyperCommand):
    """One command; refuses an empty text as a value, which a shell passes where a variable is not set."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List the words, then the flags by group, in the order in which the groups first appear.

        What may be named by a word or by a flag stands there once.
        """
        groups: dict[str, list[tuple[str, str]]] = {}
        words: set[str] = set()
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or parameter.metavar in words:
                continue
            group = getattr(parameter, "rich_help_panel", None) or "Options"
            if parameter.param_type_name == "argument":
                group = "Arguments"
                words.add(str(parameter.metavar))
            groups.setdefault(group, []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = tuple(args)
        try:
            values, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        except UsageError as error:
            error.ctx = error.ctx or ctx  # some of them do not say to which command they belong
            raise
        ctx.meta[VALUES] = values
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
            raise ProfileError(
                where=name,
                rule="needs a value that is not empty",
                got="an empty one",
                fix=f"Leave {name} out or give it a value; is a variable of your shell not set?",
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
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        _exit(usage_error(error, (*_CORE_COMMANDS, *added_commands())))
    except OSError as error:  # of a file that no other code of ours handles: a user's mistake, not a bug
        _exit(StorageError.out_of_reach(error))
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _exit(error: V8Error) -> NoReturn:
    text = for_stream(f"error: {error}", sys.stderr)
    sys.stderr.write(f"{text}\n")
    raise typer.Exit(error.exit_code) from error


def _require_printable(words: Sequence[str]) -> None:
    """Refuse what no terminal shows and no report can quote: control characters, bytes that are no UTF-8.

    Raises `ProfileError` for such a word, and for one that is too long.
    """
    for word in words:
        if not word.isprintable() or len(word) > _MAX_WORD_LETTERS:
            raise ProfileError(
                where="the command line",
                rule="is of words in UTF-8 without control characters, each at most "
                f"{_MAX_WORD_LETTERS:,} letters",
                got=shown(word),
                fix="Write that word otherwise; a file or folder may have to be renamed",
            )


app = typer.Typer(
    name="v8",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,  # plain help breaks no word, and names no type behind a flag
    pretty_exceptions_enable=False,
)
GROUPS: Final = ("Train", "Forecast", "Evaluate", "Share", "Inspect")
"""Groups of commands, in the order of `--help`."""

_CORE_COMMANDS: Final[dict[str, tuple[str, Callable[..., None]]]] = {
    "run": ("Train", commands.run),
    "predict": ("Forecast", commands.predict),
    "report": ("Evaluate", commands.report),
    "backtest": ("Evaluate", commands.backtest),
    "publish": ("Share", commands.publish),
    "pull": ("Share", commands.pull),
    "export": ("Share", commands.export),
    "data": ("Inspect", commands.data),
    "features": ("Inspect", commands.features),
    "doctor": ("Inspect", commands.doctor),
}
"""The commands of the core by name, each with its group; annexes add the others (`v8.base.registry`)."""


def _all_commands() -> dict[str, tuple[str, Callable[..., None]]]:
    """Return group and function of all commands by name; in a group those of annexes come last."""
    found = dict(_CORE_COMMANDS)
    for name, added in added_commands().items():
        found[name] = (added.group, pkgutil.resolve_name(added.call))
    return found


_PluginOption = Annotated[
    list[str] | None, typer.Option(metavar="FILE.py", help="A plug-in; repeat for more.")
]


def with_plugins(work: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the additional flag `--plugin`; the plug-ins are loaded before it starts."""

    @wraps(work)
    def call(*, plugin: list[str] | None, **options: Any) -> None:
        load_plugins(plugin or ())
        work(**options)

    signature = inspect.signature(work)
    plugin_parameter = inspect.Parameter(
        "plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_PluginOption
    )
    # Typer reads the flags of a command from its signature.
    parameters = [*signature.parameters.values(), plugin_parameter]
    vars(call)["__signature__"] = signature.replace(parameters=parameters)
    return call


def _register(name: str, group: str, function: Callable[..., None]) -> None:
    """Add a command to the command line: its docstring is its help, the examples in it come last."""
    text, _, examples = str(inspect.getdoc(function)).partition("\n\nExamples:\n")
    summary = text.partition("\n\n")[0]
    # \b keeps click from joining the lines. An example is printed with the program's name as it was called.
    epilog = "\b\nExamples:\n" + examples.replace("    v8", f"  {command()}")
    add_command = app.command(
        name, cls=_Command, help=text, short_help=summary, epilog=epilog, rich_help_panel=group
    )
    add_command(with_plugins(function))


for _name, (_group, _function) in _all_commands().items():
    _register(_name, _group, _function)

_LONGEST_NAME: Final = max(map(len, _all_commands()))
"""Letters of the longest name of a command."""


def _print_version(is_asked: bool) -> None:
    if is_asked:
        revision = commit()
        sys.stdout.write(f"v8 {VERSION} (commit {revision})\n" if revision else f"v8 {VERSION}\n")
        raise typer.Exit


_FIRST: Final = f"""\b
First, offline, in half a minute:
  {command("run", "--source", "demo", "--smoke")}
  {command("predict", "runs/frontier-smoke", "--source", "demo")}
\b
Documentation: docs/en/index.md, or scripts/docs serve as a site.
Help of a command: {command("COMMAND", "--help")}"""


@app.callback(epilog=_FIRST)
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


def _print_traceback(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    """Print an error that nobody expected as Python does, but without the secrets that its text may hold."""
    sys.stderr.write(for_file("".join(traceback.format_exception(kind, error, trace))))


def _print_traceback_of_thread(failure: threading.ExceptHookArgs) -> None:
    if failure.exc_type is not SystemExit:
        _print_traceback(failure.exc_type, failure.exc_value, failure.exc_traceback)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: Words after the program's name; None takes them from `sys.argv`.
    """
    _open_standard_streams()
    watch_interrupts()
    sys.excepthook = _print_traceback
    threading.excepthook = _print_traceback_of_thread
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a code page of Windows may lack letters that we print
            stream.reconfigure(errors="backslashreplace")
    try:
        # To call `app` itself would set a hook of typer, which prints the texts of errors as they are.
        commands_of_app = typer.main.get_command(app)
        commands_of_app(args=list(sys.argv[1:] if arguments is None else arguments), prog_name=command())
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:
            sys.stdout.flush()
            exit_interrupted()  # without waiting for threads that may still wait for the network
        if "tensorflow" in sys.modules and isinstance(end.code, int):
            exit_without_teardown(end.code)
        raise
