"""Flags that several commands share, each declared once, and how their words become our nouns."""

import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Final

from typer import Argument, Option

from v8.errors import ProfileError
from v8.invocation import command
from v8.market.sources.source import SOURCES, CandleSource, open_source
from v8.runs.options import take_tables

MAX_BARS: Final = 10_000_000
"""Candles per series that can be asked for; as many as a profile may use."""

DEFAULT_ENGINE: Final = "local"

SeriesOption = Annotated[
    list[str] | None,
    Option(metavar="BTCUSDT-15m", help="One series; repeat for more. Default: all 40, or all of --data-dir."),
]
UniverseOption = Annotated[
    Path | None, Option(metavar="FILE.yaml", help="Series of a file: symbols and timeframes, or series.")
]
SourceOption = Annotated[str, Option(metavar="|".join(SOURCES), help="Where candles come from.")]
DataDirOption = Annotated[
    Path | None,
    Option(metavar="DIR", help="Folder of CSV, Parquet, Feather or JSON files, with --source files."),
]
TablesOption = Annotated[
    Path | None,
    Option(
        metavar="DIR",
        help="Folder of the CSV files that a profile names under covariates. Default: V8_TABLES, or here.",
    ),
]
DeviceOption = Annotated[
    str, Option(metavar="auto|cpu|gpu", help="What computes; gpu refuses to run elsewhere.")
]
WorkersOption = Annotated[str, Option(metavar="auto|N", help="Processes that train at the same time.")]
EpochsOption = Annotated[int | None, Option(metavar="N", help="Most epochs. Default: the profile's.")]
FleetSizeOption = Annotated[str, Option(metavar="auto|N", help="Series that train as one program.")]
EngineOption = Annotated[str, Option(metavar="local|ray", help="Who trains: this machine, or tasks of Ray.")]
AddressOption = Annotated[
    str | None, Option(metavar="HOST:PORT|auto", help="A Ray cluster to join. Default: one of this machine.")
]
RevisionOption = Annotated[
    str | None, Option(metavar="SHA", help="Commit, branch or tag of the repository. Default: newest.")
]
OfflineOption = Annotated[
    bool, Option("--offline", help="Use only what is in the cache, as HF_HUB_OFFLINE=1 does.")
]
RunArgument = Annotated[
    Path | None, Argument(metavar="RUN", help="A run folder such as runs/aligned.", show_default=False)
]
ThisRunArgument = Annotated[Path, Argument(metavar="RUN", help="A run folder, for example runs/aligned.")]
RepoOption = Annotated[str | None, Option(metavar="USER/NAME", help="A repository on the Hub instead.")]
LedgerOption = Annotated[
    Path, Option(metavar="FILE", help="The database of forecasts; made when there is none.")
]


def some_series(sentence: str) -> Any:
    """Return a flag that names series, with its help."""
    return Option(None, metavar="BTCUSDT-15m", help=sentence)


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


def require_picture(file: Path) -> None:
    """Refuse a place for a picture with a `ProfileError`: no folder is made, and no file replaced."""
    if file.suffix.lower() != ".png":
        rule = "is a file that ends in .png"
        raise ProfileError(where="--plot", rule=rule, got=repr(file.name), fix="Add the ending")
    require_folder_of("--plot", file)
    if file.is_symlink() or file.exists():
        from v8.views.pictures import is_own_picture

        if not is_own_picture(file):
            rule, got = "is a new file or a picture that v8 drew", f"another file at {file}"
            fix = "Choose another name, or move that file away"
            raise ProfileError(where="--plot", rule=rule, got=got, fix=fix)


def open_candles(source: str, data_dir: Path | None, tables: Path | None = None) -> CandleSource:
    """Open the source of candles that flags name, with the tables beside it.

    Raises `ProfileError` if there is none of that name, or what it needs is not there.
    """
    take_tables(tables)
    return open_source(source, data_dir=data_dir)


def one_place(name: str, run: Path | None, repo: str | None) -> Path | str:
    """Return the one place of models that the call of a command names.

    Raises `ProfileError` if it names none or two.
    """
    if run is not None and repo is None:
        return run
    if repo is not None and run is None:
        return repo
    rule = "needs one place of models: a run folder, or --repo"
    fix = "Write for example runs/aligned, or --repo user/name"
    raise ProfileError(where=command(name), rule=rule, got="both" if run else "neither", fix=fix)


def place_words(where: Path | str) -> tuple[str, ...]:
    """Return the words of a command line that name a place of models."""
    return (str(where),) if isinstance(where, Path) else ("--repo", where)
