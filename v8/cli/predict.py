"""`python -m v8 predict`: the forecast of the coming bars as a table, CSV, JSON or picture.

Of one series, of several, or of all that a place has models of. Where several are asked for, one that cannot
be forecast is one line on standard error, and the others are printed all the same.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from v8.cli.options import (
    MAX_BARS,
    DataDirOption,
    OfflineOption,
    RevisionOption,
    SourceOption,
    TablesOption,
    UniverseOption,
    require_folder_of,
)
from v8.cli.printed_forecasts import PRINTERS
from v8.errors import ProfileError, SeriesError, listed
from v8.invocation import command
from v8.runs.options import asked_series, take_tables

if TYPE_CHECKING:
    from v8.live.issuing import Issued, IssuedMany


def predict(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="A run folder such as runs/aligned, or one series' folder."),
    ] = None,
    repo: Annotated[
        str | None, typer.Option("--repo", metavar="USER/NAME", help="A repository on the Hub instead.")
    ] = None,
    series: Annotated[
        list[str] | None,
        typer.Option("--series", metavar="BTCUSDT-15m", help="Whose model to use; repeat for more."),
    ] = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="Use the models of all series that are there.")
    ] = False,
    universe: UniverseOption = None,
    revision: RevisionOption = None,
    offline: OfflineOption = False,
    source: SourceOption = "live",
    data_dir: DataDirOption = None,
    tables: TablesOption = None,
    bars: Annotated[
        int | None,
        typer.Option(
            "--bars",
            metavar="N",
            min=1,
            max=MAX_BARS,
            help="Candles to read. Default: as many as the model needs.",
        ),
    ] = None,
    allow_old: Annotated[
        bool, typer.Option("--allow-old", help="Forecast even where every forecast bar has already closed.")
    ] = False,
    output_format: Annotated[
        str, typer.Option("--format", metavar="table|csv|json", help="How to print the forecast.")
    ] = "table",
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE.png|DIR",
            help="Draw candles and forecast; of several series a picture each, in a folder.",
        ),
    ] = None,
) -> None:
    """Forecast the bars after the newest candle with saved or published models."""
    _check_words(folder, repo, output_format)
    asked = _asked(series, universe, is_all=is_all)
    is_many = is_all or universe is not None or len(asked) > 1
    _check_plot(plot, is_many=is_many)

    from v8.machine.starting import quiet_start
    from v8.market.sources.source import open_source
    from v8.runs.engines import place

    take_tables(tables)
    candle_source = open_source(source, data_dir=data_dir)
    place("auto", "1", "1")  # the same sums in the same order as when the model was judged
    with quiet_start():
        from v8.hub.opening import open_place
        from v8.live.issuing import IssuedMany, issue, issue_each

        models = open_place(repo or folder or "", revision=revision, is_offline=offline)
        if is_many:
            names = asked or models.series
            told = issue_each(models, names, candle_source, bars=bars, is_any_age=allow_old)
        else:
            forecaster = models.open(asked[0] if asked else None)
            one = issue(forecaster, candle_source, models.name, bars=bars, is_any_age=allow_old)
            told = IssuedMany([one], {})
    PRINTERS[output_format](told.issued, is_many=is_many)
    if plot:
        _draw(told.issued, plot, is_many=is_many)
    _exit_on_refusals(told)


def _asked(series: Sequence[str] | None, universe: Path | None, *, is_all: bool) -> tuple[str, ...]:
    """Return the names of the series that are asked for; none for the only one, or for all that there are."""
    if is_all and (series or universe):
        raise ProfileError(
            where="--all",
            rule="takes every series that is there",
            got="--series or --universe beside it",
            fix="Leave one of them out",
        )
    return tuple(map(str, asked_series(series, universe) or ()))


def _check_words(folder: Path | None, repo: str | None, output_format: str) -> None:
    if (folder is None) == (repo is None):
        raise ProfileError(
            where=command("predict"),
            rule="needs one place of the model: a folder, or --repo",
            got="neither" if repo is None else "both",
            fix="Write for example runs/aligned --series BTCUSDT-15m, or --repo user/name",
        )
    if output_format not in PRINTERS:
        raise ProfileError(
            where="--format",
            rule=f"is one of {', '.join(PRINTERS)}",
            got=repr(output_format),
            fix="Choose one",
        )


def _check_plot(plot: Path | None, *, is_many: bool) -> None:
    if plot and not is_many:
        _check_picture(plot)
    elif plot and not plot.is_dir():
        raise ProfileError(
            where="--plot",
            rule="is a folder that exists where several series are forecast",
            got=f"no folder {plot}",
            fix=f"Make it first: mkdir -p {shlex.quote(str(plot))}",
        )


def _check_picture(plot: Path) -> None:
    """Refuse a picture's place: no folder is made for it, and no file of the user's replaced."""
    if plot.suffix.lower() != ".png":
        rule = "is a file that ends in .png"
        raise ProfileError(where="--plot", rule=rule, got=repr(plot.name), fix="Add the ending")
    require_folder_of("--plot", plot)
    if (plot.is_symlink() or plot.exists()) and not _is_own_picture(plot):
        raise ProfileError(
            where="--plot",
            rule="is a new file or a picture that v8 drew",
            got=f"another file at {plot}",
            fix="Choose another name, or move that file away",
        )


def _is_own_picture(plot: Path) -> bool:
    from v8.views.pictures import is_own_picture

    return is_own_picture(plot)


def _draw(issued: Sequence[Issued], plot: Path, *, is_many: bool) -> None:
    from v8.views.pictures import draw_forecast

    for one in issued:
        file = plot / f"{one.forecaster.series}.png" if is_many else plot
        _check_picture(file)
        draw_forecast(one.candles, one.forecast, file, notes=one.lines())
        sys.stderr.write(f"Picture: {file}\n")


def _exit_on_refusals(told: IssuedMany) -> None:
    """Say in a line for each reason which series were not forecast, and leave as `run` does."""
    by_reason: dict[str, list[str]] = {}
    for name, error in told.refused.items():
        by_reason.setdefault(str(error), []).append(name)
    for reason, names in by_reason.items():
        where = "" if reason.startswith(names[0]) else f"{listed(names)}: "
        sys.stderr.write(f"failed: {where}{reason}\n")
    codes = {error.exit_code for error in told.refused.values()}
    if codes:
        raise typer.Exit(codes.pop() if not told.issued and len(codes) == 1 else SeriesError.exit_code)
