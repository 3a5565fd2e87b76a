"""`python -m v8 predict`: candles in, the forecast of the coming bars as a table, CSV, JSON or picture.

A forecast is about the future, so candles after which every forecast bar has already closed are refused
unless --allow-old says that the past is meant. The demo market has a calendar of its own and no present.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from v8.commands.options import (
    MAX_BARS,
    DataDirOption,
    OfflineOption,
    RevisionOption,
    SourceOption,
    asked_series,
)
from v8.errors import ProfileError
from v8.invocation import command

if TYPE_CHECKING:
    from v8.engine.issuing import Issued

FORMATS = ("table", "csv", "json")


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
    revision: RevisionOption = None,
    offline: OfflineOption = False,
    source: SourceOption = "vision",
    data_dir: DataDirOption = None,
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
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the candles and the forecast.")
    ] = None,
) -> None:
    """Forecast the bars after the newest candle with a saved or published model."""
    names = _names(series, plot)
    _check_words(folder, repo, output_format, plot)

    from v8.commands.device import place
    from v8.engine.quiet import quiet_start
    from v8.market.sources.source import open_source

    candle_source = open_source(source, data_dir=data_dir)
    place("auto", "1", "1")  # the same sums in the same order as when the model was judged
    with quiet_start():
        from v8.engine.issuing import issue
        from v8.hub.opening import open_place

        models = open_place(repo or folder or "", revision=revision, is_offline=offline)
        forecasters = [models.open(name) for name in names]
    issued = [
        issue(forecaster, candle_source, models.name, bars=bars, is_any_age=allow_old)
        for forecaster in forecasters
    ]
    _PRINTERS[output_format](issued)
    if plot:
        from v8.reports.pictures import draw_forecast

        draw_forecast(issued[0].candles, issued[0].forecast, plot, notes=issued[0].lines())
        sys.stderr.write(f"Picture: {plot}\n")


def _names(series: Sequence[str] | None, plot: Path | None) -> list[str | None]:
    """Return the names of the series that are forecast; None for the only one that there is."""
    if not series:
        return [None]
    names = [str(one) for one in asked_series(series) or ()]
    if plot and len(names) > 1:
        raise ProfileError(
            where="--plot",
            rule="draws the forecast of one series",
            got=f"{len(names)} series",
            fix="Name one with --series, or leave --plot out",
        )
    return list(names)


def _check_words(folder: Path | None, repo: str | None, output_format: str, plot: Path | None) -> None:
    if (folder is None) == (repo is None):
        raise ProfileError(
            where=command("predict"),
            rule="needs one place of the model: a folder, or --repo",
            got="neither" if repo is None else "both",
            fix="Write for example runs/aligned --series BTCUSDT-15m, or --repo user/name",
        )
    if output_format not in FORMATS:
        raise ProfileError(
            where="--format",
            rule=f"is one of {', '.join(FORMATS)}",
            got=repr(output_format),
            fix="Choose one",
        )
    if plot:
        _check_picture(plot)


def _check_picture(plot: Path) -> None:
    """Refuse a picture's place: no folder is made for it, and no file of the user's replaced."""
    rule = got = None
    if plot.suffix.lower() != ".png":
        rule, got, fix = "is a file that ends in .png", repr(plot.name), "Add the ending"
    elif not plot.parent.is_dir():
        rule, got = "is a file in a folder that exists", f"no folder {plot.parent}"
        fix = f"Make it first: mkdir -p {shlex.quote(str(plot.parent))}"
    elif (plot.is_symlink() or plot.exists()) and not _is_own_picture(plot):
        rule, got = "is a new file or a picture that v8 drew", f"another file at {plot}"
        fix = "Choose another name, or move that file away"
    if rule and got:
        raise ProfileError(where="--plot", rule=rule, got=got, fix=fix)


def _is_own_picture(plot: Path) -> bool:
    from v8.reports.pictures import is_own_picture

    return is_own_picture(plot)


def _print_tables(issued: Sequence[Issued]) -> None:
    from v8.commands.printing import print_lines, print_table
    from v8.market.open_times import iso

    for one in issued:
        opens, forecast = one.opens(), one.forecast
        shown = (map("{:.7g}".format, values) for values in forecast.to_numpy())
        rows = [(time, *values) for time, values in zip(opens, shown, strict=True)]
        title = f"{one.forecaster.series}: forecast issued at {iso(one.issued_at_s)}"
        print_table(title, ("open time", *forecast.columns), rows)
        print_lines(*one.lines())


def _print_csv(issued: Sequence[Issued]) -> None:
    """Print numbers with all their digits; what is said about them goes to standard error."""
    for number_of, one in enumerate(issued):
        numbers = one.forecast.set_axis(one.opens()).rename_axis("open_time").reset_index()
        if len(issued) > 1:
            numbers.insert(0, "series", str(one.forecaster.series))
        numbers.to_csv(sys.stdout, index=False, header=number_of == 0, lineterminator="\n")
        sys.stderr.write("\n".join(one.lines()) + "\n")


def _print_json(issued: Sequence[Issued]) -> None:
    """Print one object, or a list of them where several series were asked for."""
    contents = [one.to_json() for one in issued]
    text = json.dumps(contents if len(contents) > 1 else contents[0], indent=2, allow_nan=False)
    sys.stdout.write(text + "\n")


_PRINTERS: Final[dict[str, Callable[[Sequence[Issued]], None]]] = {
    "table": _print_tables,
    "csv": _print_csv,
    "json": _print_json,
}
