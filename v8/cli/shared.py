"""What commands share: flags, each declared once, how their values become objects of v8, and common work.

`takes_options` makes the flags of a command from its options (`v8.base.records`): none lists them again.

Of `v8.cli` an annex imports this module alone (a contract in `setup.cfg`). What takes seconds to import is
imported when it is called, so that `--help` and usage errors answer quickly.
"""

import inspect
import os
import pkgutil
import shlex
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic.fields import FieldInfo
from typer import Argument, Option

from v8.base.errors import ProfileError
from v8.base.hardware import process_variables, replacement_notice
from v8.base.process import command, report_waiting
from v8.base.records import Flag, Options
from v8.base.registry import added_flags, advice
from v8.base.storage import require_own
from v8.base.wording import Language
from v8.cli.usage import meant_word
from v8.data.market.sources import CandleSource, OpenedSource, open_source
from v8.profile.profile import TABLES_PLACE
from v8.runs import options as run_options
from v8.runs.options import ModelsOptions, chosen_series, contradiction, require_tables_folder

if TYPE_CHECKING:
    from v8.publish.hub.publish import Publication, Published
    from v8.publish.report.outputs import RunResults
    from v8.runs.backtest import Backtest, BacktestResults
    from v8.runs.events import RunObserver, SeriesOutcome
    from v8.runs.plan import Engine, Plan


DEFAULT_ENGINE: Final = "local"

LOOPBACK: Final = "127.0.0.1"
"""Address that only this machine reaches."""


def _set_language(lang: Language | None) -> None:
    """Set the language that a flag names; the code that draws pages reads it from the environment."""
    if lang:
        os.environ["V8_LANG"] = lang


def settle_process(device: str = "auto") -> None:
    """Let this process, and those that it starts, compute on a device; before TensorFlow is imported.

    The same sums in the same order as in training: else a forecast differs from the one that was evaluated.
    """
    notice = replacement_notice(device)
    if notice:
        report_waiting(notice)
    os.environ.update(process_variables(device))


def offered(option: Any) -> Any:
    """Return the flag of an option of a run, for a command whose options are not a class."""
    (flag,) = (part for part in get_args(option) if isinstance(part, Flag))
    return Option(metavar=flag.metavar, help=flag.help)


SeriesOption = Annotated[list[str] | None, offered(run_options.SeriesNames)]
UniverseOption = Annotated[Path | None, offered(run_options.UniverseFile)]
SourceOption = Annotated[str, offered(run_options.SourceName)]
DataDirOption = Annotated[Path | None, offered(run_options.DataFolder)]
TablesOption = Annotated[Path | None, offered(run_options.TablesFolder)]
DeviceOption = Annotated[str, offered(run_options.Device)]
WorkersOption = Annotated[str, offered(run_options.Workers)]
FleetSizeOption = Annotated[str, offered(run_options.FleetSize)]
EngineOption = Annotated[str, offered(run_options.EngineName)]
AddressOption = Annotated[str | None, offered(run_options.ClusterAddress)]
PublishOption = Annotated[str | None, offered(run_options.Repository)]
FormatOption = Annotated[str, Option("--format", metavar="table|csv|json", help="How to print it.")]
LangOption = Annotated[
    Language | None, Option(help="Language of pages. Default: V8_LANG, or en.", callback=_set_language)
]
RevisionOption = Annotated[str | None, Option(metavar="SHA", help="Commit, branch or tag. Default: newest.")]
OfflineOption = Annotated[bool, Option("--offline", help="Use only what is in the cache (HF_HUB_OFFLINE=1).")]
RuntimeOption = Annotated[str, Option(metavar="auto|onnx|keras", help="auto: model.onnx where there is one.")]
RunArgument = Annotated[
    Path | None, Argument(metavar="RUN", help="A run folder such as runs/frontier; also --run RUN.")
]
RunOption = Annotated[Path | None, Option("--run", metavar="RUN", help="RUN, named by an option.")]
ProfileArgument = Annotated[str | None, Argument(metavar="PROFILE", hidden=True)]
RepoOption = Annotated[str | None, Option(metavar="USER/NAME", help="A repository on the Hub instead.")]
OverwriteOption = Annotated[bool, Option("--overwrite", help="Replace a file that v8 did not write, too.")]


def language_words(lang: Language | None) -> list[str]:
    """Return the words that repeat `--lang`, which is no option of the library."""
    return ["--lang", lang] if lang else []


def this_command(secret_address: str | None = None) -> str:
    """Return the command line of this process, ready to be pasted, with URL for an address with a secret."""
    words = sys.argv[1:]
    if secret_address:
        words = [word.replace(secret_address, "URL") for word in words]
    return command(*words)


def some_series(sentence: str) -> Any:
    """Return a flag that names series, with its help."""
    return Option(None, metavar="BTCUSDT-15m", help=sentence)


def some_bars(sentence: str) -> Any:
    """Return a flag that counts candles, with its help."""
    return Option(None, metavar="N", min=1, max=run_options.MAX_BARS, help=sentence)


def one_profile(name: str, argument: str | None, option: str | None) -> str | None:
    """Return the profile that a command names, as a word or by `--profile`; None where it names none.

    Args:
        name: The command.
        argument: The word.
        option: The value of the option.

    Raises:
        ProfileError: If both name one, or the word is plainly something else.
    """
    if argument is None or argument == option:
        return option
    if option is not None:
        raise contradiction(f"PROFILE {argument}", f"--profile {option}", "names the profile")
    if Path(argument).suffix in (".yaml", ".yml"):
        return argument
    place = command(name)
    rule = "takes the name or file of a profile"
    if (Path(argument) / "run.json").is_file():
        raise ProfileError(
            where=place,
            rule=rule,
            got=f"the run folder {argument}",
            fix="Name its profile; the command that a run prints when it is interrupted continues it",
        )
    meant = meant_word(argument, place)
    if meant:
        raise ProfileError(where=place, rule=rule, got=repr(argument), fix=meant)
    return argument


def maybe_run(argument: Path | None, option: Path | None) -> Path | None:
    """Return the run that a command names, as a word or by `--run`; None where it names none.

    Raises `ProfileError` if both name one.
    """
    if argument and option and argument != option:
        raise contradiction(f"RUN {argument}", f"--run {option}", "names the run")
    return argument or option


def one_run(name: str, argument: Path | None, option: Path | None) -> Path:
    """Return the run that a command of this name takes; see `maybe_run`.

    Raises `ProfileError` if it names none.
    """
    run = maybe_run(argument, option)
    if run is None:
        raise ProfileError(
            where=command(name),
            rule="needs RUN",
            got="none",
            fix=f"Write for example {command(name, 'runs/frontier')}",
        )
    return run


def require_folder_of(flag: str, file: Path) -> None:
    """Refuse a file in a folder that does not exist: v8 creates no folder for a misspelt path.

    Raises `ProfileError` if there is no such folder.
    """
    if not file.parent.is_dir():
        raise no_folder(flag, "is a file in a folder that exists", file.parent)


def no_folder(flag: str, rule: str, folder: Path) -> ProfileError:
    """Return the error for a folder that the user has to create first."""
    return ProfileError(
        where=flag,
        rule=rule,
        got=f"no folder {folder}",
        fix=f"Make it first: mkdir -p {shlex.quote(str(folder))}",
    )


def require_one_of(flag: str, value: str, choices: Collection[str]) -> None:
    """Raise a `ProfileError` if the value of a flag is not among its choices."""
    if value not in choices:
        raise ProfileError(
            where=flag,
            rule=f"is one of {', '.join(choices)}",
            got=repr(value),
            fix=advice(value, choices, "Choose one"),
        )


def open_candles(
    source: str, data_dir: Path | None, tables: Path | None = None, message: str = ""
) -> CandleSource:
    """Open the source of candles that flags name.

    Args:
        source: Its name.
        data_dir: Folder of files, for sources that read files.
        tables: Folder of the covariates' tables.
        message: Says that the command is at work. It is printed after the checks that need no time, and
            before anything heavy is imported.

    Raises:
        ProfileError: If there is no source of that name, or what it needs does not exist.
    """
    require_tables_folder(tables)
    if tables is not None:
        os.environ[TABLES_PLACE] = str(tables.absolute())

    def begin() -> None:
        if message:
            report_waiting(message)

    return open_source(source, data_dir=data_dir, begin=begin)


def one_place(name: str, run: Path | None, repo: str | None) -> Path | str:
    """Return the place of models that a command names: a run folder, or a repository on the Hub.

    Raises `ProfileError` if it names none or both.
    """
    place = run or repo
    if place and (run is None or repo is None):
        return place
    raise ProfileError(
        where=command(name),
        rule="needs one place of models: a run folder, or --repo",
        got="both" if run else "neither",
        fix="Write for example runs/frontier, or --repo user/name",
    )


def opening(place: Path | str, runtime: str = "keras") -> str:
    """Return the first message of a command that opens models; empty if the folder does not exist.

    Args:
        place: Where the models are.
        runtime: What computes, one of `v8.forecaster.shared_models.RUNTIMES`.
    """
    if isinstance(place, Path) and not place.is_dir():
        return ""
    has_tensorflow = find_spec("tensorflow") is not None
    if not has_tensorflow or runtime == "onnx" or (runtime == "auto" and _may_use_onnx(place)):
        return f"Opening {place}."
    return f"Opening {place}: TensorFlow starts, which takes some seconds."


def _may_use_onnx(place: Path | str) -> bool:
    """Return whether models of a place are likely to be computed without TensorFlow."""
    if find_spec("onnxruntime") is None:
        return False
    if isinstance(place, str):  # what a repository holds is not known yet
        return True
    patterns = ("model.onnx", "*/model.onnx", "models/*/model.onnx")
    return any(True for pattern in patterns for _ in place.glob(pattern))


def candles_of_models(options: ModelsOptions, place: Path) -> Callable[[str], OpenedSource]:
    """Say that models of a place are opened; return what opens their candles, see `source_opener`."""
    message = opening(place)
    if message:
        report_waiting(message)
    return options.source_opener(place)


def names_of(series: Sequence[str] | None) -> list[str] | None:
    """Return the checked names of the series that `--series` gives; None if it is not used."""
    return [str(name) for name in chosen_series(series) or ()] or None


def place_words(place: Path | str) -> tuple[str, ...]:
    """Return the words of a command line that name a place of models."""
    return (str(place),) if isinstance(place, Path) else ("--repo", place)


def run_display() -> "RunObserver":
    """Return what shows the progress of runs: bars on a terminal, a line for each event elsewhere."""
    from v8.cli.runs import RunDisplay

    return RunDisplay()


def evaluate_and_print(
    path: Path, backtest: "Backtest", source: CandleSource, engine: "Engine"
) -> "BacktestResults":
    """Carry out a back-test in its folder, or the rest of it, and print its tables."""
    from v8.cli import runs

    return runs.evaluate_and_print(path, backtest, source, engine)


def print_plan(plan: "Plan", source: CandleSource) -> None:
    """Print what a run would do, and about how long it would take."""
    from v8.cli import runs

    runs.print_plan(plan, source)


def print_leaderboard(results: "RunResults") -> None:
    """Print errors relative to those of the naive forecast and of the best baseline."""
    from v8.cli import runs

    runs.print_leaderboard(results)


def print_without_onnx(outcomes: "Sequence[SeriesOutcome]") -> None:
    """Print which series have no ONNX file although one was wanted, and why."""
    from v8.cli import runs

    runs.print_without_onnx(outcomes)


def check_publishing(repo: str, source: CandleSource) -> None:
    """Refuse before hours of training what publishing would refuse afterwards; see `v8.cli.hub`."""
    from v8.cli import hub

    hub.check_publishing(repo, source)


def publish_run(run: Path, repo: str, *, is_partial: bool) -> None:
    """Publish a run, and print its address; with `is_partial` although series of it are unfinished."""
    from v8.cli import hub

    hub.publish_run(run, repo, is_partial=is_partial)


def publish_staged(staged: "Publication", repo: str, print_text: Callable[[str], None]) -> "Published":
    """Publish what is staged, and print beforehand what will change."""
    from v8.cli import hub

    return hub.publish_staged(staged, repo, print_text, is_private=False)


_NAMED_BY_WORD: Final[Mapping[str, Callable[[str, Any, Any], Any]]] = {
    "PROFILE": one_profile,
    "RUN": one_run,
}
"""What chooses between the word and the flag of an option, by the name of the word."""


def takes_options(model: type[Options]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each option of a class; it gets them as one argument, of that class.

    The command's other parameters, which Typer reads, come after these flags.
    """

    def decorate(work: Callable[..., None]) -> Callable[..., None]:
        name = work.__name__.replace("_", "-")

        @wraps(work)
        def call(**values: Any) -> None:
            options = {}
            for option, field, flag in model.flags():
                value = values.pop(option)
                if flag.word:
                    value = _NAMED_BY_WORD[flag.word](name, values.pop(f"{option}_argument"), value)
                if value is None:
                    continue
                options[option] = tuple(value) if _is_several(field.annotation) else value
            work(model(**options), **values)

        own = [*inspect.signature(work).parameters.values()][1:]
        parameters = [*_words(model), *_flags(model), *own]
        by_name = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        vars(call)["__signature__"] = inspect.Signature(by_name)
        return call

    return decorate


def _words(model: type[Options]) -> list[inspect.Parameter]:
    """List the parameters of options that may also be given as a word without a flag."""
    parameters = []
    for name, field, flag in model.flags():
        if flag.word:
            offered = Argument(metavar=flag.word, help=flag.word_help, hidden=not flag.word_help)
            parameters.append(_parameter(f"{name}_argument", _optional(field.annotation), offered, None))
    return parameters


def _flags(model: type[Options]) -> list[inspect.Parameter]:
    parameters = []
    for name, field, flag in model.flags():
        low, high = _limits(field)
        offered = Option(
            *_names(name, field, flag),
            metavar=flag.metavar,
            help=flag.help,
            min=low,
            max=high,
            rich_help_panel=flag.group or None,
        )
        is_several = _is_several(field.annotation)
        default = None if is_several or flag.word else field.default
        kind = list[str] if is_several else _plain(field.annotation)
        parameters.append(_parameter(name, _optional(kind) if default is None else kind, offered, default))
    return parameters


def _parameter(name: str, kind: Any, offered: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, offered]
    )


def _names(name: str, field: FieldInfo, flag: Flag) -> tuple[str, ...]:
    """Return the names of a flag; a switch has one, without which Typer would add `--no-...`."""
    if flag.names or field.annotation is not bool:
        return flag.names
    return (f"--{name.replace('_', '-')}",)


def _members(kind: Any) -> tuple[Any, ...]:
    """Return what a value may be: the members of a union but None, or the one kind."""
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    return tuple(member for member in members if member is not types.NoneType)


def _is_several(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _plain(kind: Any) -> Any:
    """Return the kind that Typer reads, without range; a text where a number or a text may be given."""
    members = []
    for member in _members(kind):
        members.append(get_args(member)[0] if get_origin(member) is Annotated else member)
    return str if str in members else members[0]


def _optional(kind: Any) -> Any:
    return _plain(kind) | None


def _limits(field: FieldInfo) -> tuple[Any, Any]:
    """Return the smallest and the largest value of an option, None where there is no limit."""
    found: list[Any] = [*field.metadata]
    for member in _members(field.annotation):
        for part in get_args(member)[1:] if get_origin(member) is Annotated else ():
            found += part.metadata if isinstance(part, FieldInfo) else [part]
    lows = [part.ge for part in found if isinstance(part, Ge)]
    highs = [part.le for part in found if isinstance(part, Le)]
    return (lows[0] if lows else None), (highs[0] if highs else None)


AddedFunctions: TypeAlias = Mapping[str, Callable[..., Any]]
"""The functions of those flags of annexes that are given, by the names of the flags."""


def with_added_flags(work: Callable[..., None]) -> Callable[..., None]:
    """Return a command of the core with the flags of annexes; it gets their functions as `added`."""
    flags = added_flags(work.__name__)

    @wraps(work)
    def call(**options: Any) -> None:
        given = {name: flag.call for name, flag in flags.items() if options.pop(name)}
        work(added={name: pkgutil.resolve_name(function) for name, function in given.items()}, **options)

    signature = inspect.signature(work)
    parameters = [each for each in signature.parameters.values() if each.name != "added"]
    for name, flag in flags.items():
        annotation = Annotated[bool, Option(f"--{name}", help=flag.help)]
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        )
    vars(call)["__signature__"] = signature.replace(parameters=parameters)
    return call


def table_form(flag: str, file: Path, form: str | None = None, *, is_overwriting: bool) -> str:
    """Return the format of a table to write, "parquet" or "csv": as requested, or by its file's suffix.

    Args:
        flag: Names the file in errors.
        file: To be written.
        form: The requested format, if there is one.
        is_overwriting: Whether a file that v8 did not write may be replaced.

    Raises:
        ProfileError: If there is no such format, the file ends as another one, its folder does not exist, or
            it exists, is not of v8 and may not be replaced.
    """
    require_folder_of(flag, file)
    ending = file.suffix.removeprefix(".")
    chosen = form or ending
    forms = ("parquet", "csv")
    require_one_of("--format" if form else f"{flag}, its ending", chosen, forms)
    if ending in forms and ending != chosen:
        rule = f"ends as its format, {chosen}"
        fix = f"Write {flag} {file.with_suffix(f'.{chosen}')}, or leave --format out"
        raise ProfileError(where=flag, rule=rule, got=str(file), fix=fix)
    require_own(flag, file, is_overwriting=is_overwriting)
    return chosen


def require_plot(place: Path | None, names: Sequence[str], *, is_many: bool, is_overwriting: bool) -> None:
    """Check the file or folder for pictures of some series, before anything is forecast.

    Raises:
        ProfileError: If several series need a folder that does not exist, or `require_picture` refuses the
            file of one.
    """
    if place is None:
        return
    if not place.is_dir():
        if is_many:
            raise no_folder("--plot", "is a folder that exists where several series are forecast", place)
        require_picture(place, is_overwriting=is_overwriting)
        return
    for name in names:
        require_picture(picture_file(place, name), is_overwriting=is_overwriting)


def picture_file(place: Path, series: str) -> Path:
    """Return the file of a series' picture: the place itself, or, if it is a folder, a file in it."""
    return place / f"{series}.png" if place.is_dir() else place


def require_picture(file: Path, *, is_overwriting: bool) -> None:
    """Check the file for a picture: no folder is created, and no file of anybody else is replaced.

    Raises:
        ProfileError: If it does not end in .png, its folder does not exist, or it exists, is not of v8 and
            may not be replaced.
    """
    if file.suffix.lower() != ".png":
        raise ProfileError(
            where="--plot",
            rule="is a file that ends in .png",
            got=repr(file.name),
            fix=f"Write --plot {shlex.quote(str(file.with_suffix('.png')))}",
        )
    require_folder_of("--plot", file)
    require_own("--plot", file, is_overwriting=is_overwriting)
