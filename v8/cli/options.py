"""Flags that several commands share, each declared once, and how their words become our nouns."""

import inspect
import os
import shlex
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final

from typer import Argument, Option

from v8.errors import ProfileError
from v8.invocation import command
from v8.language import Language
from v8.market.sources.source import SOURCES, CandleSource, open_source
from v8.net import report_waiting
from v8.own_files import require_own
from v8.plugins import load_plugins
from v8.profile import TABLES_PLACE
from v8.runs.options import take_tables

MAX_BARS: Final = 10_000_000
"""Candles per series that can be asked for; as many as a profile may use."""

DEFAULT_ENGINE: Final = "local"


def _speak(lang: Language | None) -> None:
    """Take the language that a flag names; whatever draws pages reads it from the environment."""
    if lang:
        os.environ["V8_LANG"] = lang


SeriesOption = Annotated[list[str] | None, Option(metavar="BTCUSDT-15m", help="Repeatable. Default: all.")]
UniverseOption = Annotated[Path | None, Option(metavar="FILE.yaml", help="A file that lists series.")]
SourceOption = Annotated[str, Option(metavar="|".join(SOURCES), help="Where candles come from.")]
OtherSourceOption = Annotated[
    str | None, Option(metavar="|".join(SOURCES), help="Default: the run's; update takes live for vision.")
]
PublishOption = Annotated[str | None, Option(metavar="USER/NAME", help="Publish it to the Hub in the end.")]
FormatOption = Annotated[str, Option("--format", metavar="table|csv|json", help="How to print it.")]
DataDirOption = Annotated[Path | None, Option(metavar="DIR", help="Folder of CSV, Parquet, Feather or JSON.")]
TablesOption = Annotated[Path | None, Option(metavar="DIR", help="Tables of profiles. Default: V8_TABLES.")]
DeviceOption = Annotated[str, Option(metavar="auto|cpu|gpu", help="What computes; gpu refuses all else.")]
WorkersOption = Annotated[str, Option(metavar="auto|N", help="Processes that train at the same time.")]
EpochsOption = Annotated[int | None, Option(metavar="N", help="Most epochs. Default: the profile's.")]
FleetSizeOption = Annotated[str, Option(metavar="auto|N", help="Series that train as one program.")]
EngineOption = Annotated[str, Option(metavar="local|ray", help="Who trains: this machine, or tasks of Ray.")]
LangOption = Annotated[Language | None, Option(help="Of pages. Default: V8_LANG, or en.", callback=_speak)]
AddressOption = Annotated[str | None, Option(metavar="HOST:PORT|auto", help="A cluster of Ray.")]
RevisionOption = Annotated[str | None, Option(metavar="SHA", help="Commit, branch or tag. Default: newest.")]
OfflineOption = Annotated[bool, Option("--offline", help="Use only what is in the cache (HF_HUB_OFFLINE=1).")]
RunArgument = Annotated[Path | None, Argument(metavar="RUN", help="A run folder such as runs/frontier.")]
ThisRunArgument = Annotated[Path, Argument(metavar="RUN", help="A run folder, for example runs/frontier.")]
RepoOption = Annotated[str | None, Option(metavar="USER/NAME", help="A repository on the Hub instead.")]
OverwriteOption = Annotated[bool, Option("--overwrite", help="Replace a file that v8 did not write, too.")]
LedgerOption = Annotated[Path, Option(metavar="FILE", help="The database of forecasts; made if missing.")]


PluginOption = Annotated[list[str] | None, Option(metavar="FILE.py", help="A plug-in; repeat for more.")]


def with_plugins(work: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the flag `--plugin`, which is obeyed before it begins."""

    @wraps(work)
    def call(*, plugin: list[str] | None, **given: Any) -> None:
        load_plugins(plugin or ())
        work(**given)

    known = inspect.signature(work)
    kind = inspect.Parameter.KEYWORD_ONLY
    added = inspect.Parameter("plugin", kind, default=None, annotation=PluginOption)
    vars(call)["__signature__"] = known.replace(parameters=[*known.parameters.values(), added])
    return call


def some_series(sentence: str) -> Any:
    """Return a flag that names series, with its help."""
    return Option(None, metavar="BTCUSDT-15m", help=sentence)


def some_bars(sentence: str) -> Any:
    """Return a flag that counts candles, with its help."""
    return Option(None, metavar="N", min=1, max=MAX_BARS, help=sentence)


def require_folder_of(flag: str, file: Path) -> None:
    """Refuse a file that a flag names where there is no folder for it: v8 makes none at a misspelt place.

    Raises `ProfileError` if its folder does not exist.
    """
    if not file.parent.is_dir():
        raise no_folder(flag, "is a file in a folder that exists", file.parent)


def no_folder(flag: str, rule: str, folder: Path) -> ProfileError:
    """Return the error for a folder that has to be made first."""
    fix = f"Make it first: mkdir -p {shlex.quote(str(folder))}"
    return ProfileError(where=flag, rule=rule, got=f"no folder {folder}", fix=fix)


def require_one_of(flag: str, word: str, known: Collection[str], fix: str = "Choose one") -> None:
    """Refuse a word that a flag does not know with a `ProfileError`."""
    if word not in known:
        raise ProfileError(where=flag, rule=f"is one of {', '.join(known)}", got=repr(word), fix=fix)


def table_form(flag: str, file: Path, form: str | None = None, *, is_overwriting: bool) -> str:
    """Return in which form a table is written: as is asked, or as its file ends.

    Raises `ProfileError` if that is no form, the file is in no folder that exists, or one that v8 did not
    write is there and shall not be overwritten.
    """
    require_folder_of(flag, file)
    chosen = form or file.suffix.removeprefix(".")
    require_one_of("--format" if form else f"{flag}, its ending", chosen, ("parquet", "csv"))
    require_own(flag, file, is_overwriting=is_overwriting)
    return chosen


def require_plot(place: Path | None, names: Sequence[str], *, is_many: bool, is_overwriting: bool) -> None:
    """Refuse a place for pictures of some series, before anything is forecast for them.

    Raises:
        ProfileError: If several need a folder that exists, or `require_picture` refuses the file of one.
    """
    if place and is_many and not place.is_dir():
        raise no_folder("--plot", "is a folder that exists where several series are forecast", place)
    if place:
        files = [picture_file(place, name) for name in names] if place.is_dir() else [place]
        for file in files:
            require_picture(file, is_overwriting=is_overwriting)


def picture_file(place: Path, series: str) -> Path:
    """Return the file of a series' picture: the place itself, or a file in the folder that it is."""
    return place / f"{series}.png" if place.is_dir() else place


def require_picture(file: Path, *, is_overwriting: bool) -> None:
    """Refuse a place for a picture: no folder is made, and no file of anybody else is replaced.

    Raises:
        ProfileError: If it does not end in .png, is in no folder that exists, or v8 did not write what is
            there and it shall not be overwritten.
    """
    if file.suffix.lower() != ".png":
        rule = "is a file that ends in .png"
        raise ProfileError(where="--plot", rule=rule, got=repr(file.name), fix="Add the ending")
    require_folder_of("--plot", file)
    require_own("--plot", file, is_overwriting=is_overwriting)


def open_candles(
    source: str, data_dir: Path | None, tables: Path | None = None, sign: str = ""
) -> CandleSource:
    """Open the source of candles that flags name, with the tables beside it.

    The sign of life is told behind what is refused at once, and before anything heavy is imported. Raises
    `ProfileError` if there is no source of that name, or what it needs is not there.
    """
    take_tables(tables)
    return open_source(source, data_dir=data_dir, begin=lambda: report_waiting(sign) if sign else None)


def one_place(name: str, run: Path | None, repo: str | None) -> Path | str:
    """Return the one place of models that the call of a command names.

    Raises `ProfileError` if it names none or two.
    """
    if (run is None or repo is None) and (place := run or repo):
        return place
    rule = "needs one place of models: a run folder, or --repo"
    fix = "Write for example runs/frontier, or --repo user/name"
    raise ProfileError(where=command(name), rule=rule, got="both" if run else "neither", fix=fix)


def opening(where: Path | str) -> str:
    """Return the first sign of life of commands that open models; none where they are refused at once."""
    is_there = not isinstance(where, Path) or where.is_dir()
    return f"Opening {where}: TensorFlow starts, which takes some seconds." if is_there else ""


def candles_of_models(
    place: Path, source: str | None, data_dir: Path | None, tables: Path | None
) -> Callable[[str], CandleSource]:
    """Return what opens candles for the models of a place: another source, or the one that a model names.

    Folders that no flag names are those that the run of the models recorded.
    """
    sign = opening(place)
    if sign:
        report_waiting(sign)

    def open_named(name: str) -> CandleSource:
        from v8.artifacts.nested_runs import recorded_folders

        chosen = source or name
        folders = recorded_folders(place)
        folder = data_dir
        tables_folder = tables
        if folder is None and chosen == name and chosen in SOURCES and SOURCES[chosen].reads_folder:
            folder = folders.data_dir
        if tables_folder is None and TABLES_PLACE not in os.environ:
            tables_folder = folders.tables
        return open_candles(chosen, folder, tables_folder)

    return open_named


def place_words(where: Path | str) -> tuple[str, ...]:
    """Return the words of a command line that name a place of models."""
    return (str(where),) if isinstance(where, Path) else ("--repo", where)
