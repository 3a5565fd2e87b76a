"""Flags that several commands share, and how their words become our nouns."""

import shlex
from pathlib import Path
from typing import Annotated, Final

import typer

from v8.errors import ProfileError
from v8.invocation import command
from v8.market.sources.source import SOURCES

MAX_BARS: Final = 10_000_000
"""Candles per series that can be asked for; as many as a profile may use."""

SeriesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--series",
        metavar="BTCUSDT-15m",
        help="One series; repeat for more. Default: all 40, or all of --data-dir.",
    ),
]
UniverseOption = Annotated[
    Path | None,
    typer.Option(
        "--universe", metavar="FILE.yaml", help="Series of a file: symbols and timeframes, or series."
    ),
]
SourceOption = Annotated[
    str, typer.Option("--source", metavar="|".join(SOURCES), help="Where candles come from.")
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Folder of CSV, Parquet, Feather or JSON files, with --source files.",
    ),
]
TablesOption = Annotated[
    Path | None,
    typer.Option(
        "--tables",
        metavar="DIR",
        help="Folder of the CSV files that a profile names under covariates. Default: V8_TABLES, or here.",
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option("--device", metavar="auto|cpu|gpu", help="What computes; gpu refuses to run elsewhere."),
]
WorkersOption = Annotated[
    str, typer.Option("--workers", metavar="auto|N", help="Processes that train at the same time.")
]
EpochsOption = Annotated[
    int | None, typer.Option("--epochs", metavar="N", help="Most epochs. Default: the profile's.")
]
FleetSizeOption = Annotated[
    str, typer.Option("--fleet-size", metavar="auto|N", help="Series that train as one program.")
]
EngineOption = Annotated[
    str, typer.Option("--engine", metavar="local|ray", help="Who trains: this machine, or tasks of Ray.")
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address", metavar="HOST:PORT|auto", help="A Ray cluster to join. Default: one of this machine."
    ),
]
DEFAULT_ENGINE: Final = "local"
RevisionOption = Annotated[
    str | None,
    typer.Option(
        "--revision", metavar="SHA", help="Commit, branch or tag of the repository. Default: newest."
    ),
]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="Use only what is in the cache, as HF_HUB_OFFLINE=1 does.")
]

RunArgument = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="A run folder such as runs/aligned.", show_default=False)
]
RepoOption = Annotated[
    str | None, typer.Option("--repo", metavar="USER/NAME", help="A repository on the Hub instead.")
]
LedgerOption = Annotated[
    Path,
    typer.Option("--ledger", metavar="FILE", help="The database of forecasts; made when there is none."),
]


def require_folder_of(flag: str, file: Path) -> None:
    """Refuse a file that a flag names where there is no folder for it: v8 makes none at a misspelt place.

    Raises:
        ProfileError: If its folder does not exist.
    """
    if not file.parent.is_dir():
        raise ProfileError(
            where=flag,
            rule="is a file in a folder that exists",
            got=f"no folder {file.parent}",
            fix=f"Make it first: mkdir -p {shlex.quote(str(file.parent))}",
        )


def one_place(name: str, run: Path | None, repo: str | None) -> Path | str:
    """Return the one place of models that the call of a command names.

    Raises:
        ProfileError: If it names none or two.
    """
    if run is not None and repo is None:
        return run
    if repo is not None and run is None:
        return repo
    raise ProfileError(
        where=command(name),
        rule="needs one place of models: a run folder, or --repo",
        got="both" if run else "neither",
        fix="Write for example runs/aligned, or --repo user/name",
    )
