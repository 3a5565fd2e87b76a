"""`python -m v8 predict`: candles in, the forecast of the coming bars as a table, CSV, JSON or picture.

A forecast is about the future, so candles after which every forecast bar has already closed are refused
unless --allow-old says that the past is meant. The demo market has a calendar of its own and no present.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from v8.commands.options import (
    MAX_BARS,
    DataDirOption,
    OfflineOption,
    RevisionOption,
    SourceOption,
    asked_series,
)
from v8.errors import DataError, ProfileError
from v8.invocation import command
from v8.wording import number

if TYPE_CHECKING:
    import pandas as pd

    from v8.artifacts.forecaster import Forecaster
    from v8.evaluation.judgement import Judgement
    from v8.market.candles import Candles
    from v8.market.sources.source import CandleSource

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
        from v8.hub.opening import open_forecaster

        forecasters = [
            open_forecaster(repo or folder or "", name, revision=revision, is_offline=offline)
            for name in names
        ]
    issued = [
        _issue(forecaster, candle_source, bars, repo or str(folder), is_any_age=allow_old)
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


def _check_market(forecaster: Forecaster, source: CandleSource) -> None:
    """Refuse to speak about real prices with a model that has only seen simulated ones."""
    if forecaster.metadata.get("is_demo_market") and source.is_publishable:
        raise DataError(
            where=str(forecaster.series),
            rule="a model of the demo market forecasts the demo market only",
            got=f"candles from {source.name}",
            fix="Use --source demo, or a model that was trained on real candles",
        )


@dataclass(frozen=True)
class _Issued:
    """A forecast, one row a bar to come, with all that is said about it; `place` is as the user named it."""

    forecaster: Forecaster
    candles: Candles
    forecast: pd.DataFrame
    place: str

    def opens(self) -> list[str]:
        return [moment.strftime("%Y-%m-%dT%H:%M:%SZ") for moment in self.forecast.index]

    def quality(self) -> dict[str, dict[str, Any]]:
        """Return the judgement per task: its error beside naive's and the best baseline's, and verdicts."""
        from v8.evaluation.judgement import Judgement

        metadata = self.forecaster.metadata
        where = f"metadata of {metadata['series']}, key judgement"
        judgement = Judgement.from_json(metadata.get("judgement"), where=where)
        return {task: _task_quality(judgement, task) for task in judgement.tasks}

    def lines(self) -> list[str]:
        """Say what stands above the numbers."""
        forecaster, report = self.forecaster, self.candles.report
        revision = f" at {forecaster.revision}" if forecaster.revision else ""
        lines = [
            f"Model: {self.place}{revision}, profile {forecaster.metadata['profile']['name']}.",
            f"Candles: {len(self.candles):,} from {self.candles.source}, "
            f"{report.first_open} to {report.last_open} (open times).",
        ]
        if self.candles.source == "demo":
            lines.append("Demo market: simulated candles; this forecast says nothing about real prices.")
        naive, best = (
            ", ".join(
                f"{task} {number(told[f'multiple_of_{kind}'])} ({told[verdict]})"
                for task, told in self.quality().items()
            )
            for kind, verdict in (("naive", "verdict"), ("best", "verdict_against_best"))
        )
        lines.append(f"Error on its test span as a multiple of the naive forecast's: {naive}.")
        return [*lines, f"As a multiple of the best baseline's: {best}."]

    def to_json(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
        forecaster, report = self.forecaster, self.candles.report
        rows = zip(self.opens(), self.forecast.to_dict("records"), strict=True)
        return {
            "series": str(forecaster.series),
            "issued_at": self.opens()[0],
            "model": {
                "place": self.place,
                "revision": forecaster.revision,
                "profile": forecaster.metadata["profile"]["name"],
                "sha256": forecaster.metadata["model_sha256"],
                "quality": self.quality(),
            },
            "candles": {
                "source": self.candles.source,
                "num_bars": len(self.candles),
                "first_open": report.first_open,
                "last_open": report.last_open,
            },
            "forecast": [{"open_time": opens, **values} for opens, values in rows],
        }


def _task_quality(judgement: Judgement, task: str) -> dict[str, Any]:
    from v8.evaluation.baselines import called

    best = judgement.best_baseline(task)
    return {
        "multiple_of_naive": judgement.multiple(task),
        "verdict": judgement.verdict(task),
        "best_baseline": called(best),
        "multiple_of_best": judgement.multiple(task, baseline=best),
        "verdict_against_best": judgement.verdict(task, best),
    }


def _issue(
    forecaster: Forecaster, source: CandleSource, bars: int | None, place: str, *, is_any_age: bool
) -> _Issued:
    _check_market(forecaster, source)
    candles = source.candles(forecaster.series, forecaster.needed_bars if bars is None else bars)
    is_any_age = is_any_age or not source.is_publishable
    forecast = forecaster.predict(candles, max_age_bars=None if is_any_age else forecaster.horizon_bars - 1)
    return _Issued(forecaster, candles, forecast, place)


def _print_tables(issued: Sequence[_Issued]) -> None:
    from v8.commands.printing import print_lines, print_table

    for one in issued:
        opens, forecast = one.opens(), one.forecast
        shown = (map("{:.7g}".format, values) for values in forecast.to_numpy())
        rows = [(time, *values) for time, values in zip(opens, shown, strict=True)]
        title = f"{one.forecaster.series}: forecast issued at {opens[0]}"
        print_table(title, ("open time", *forecast.columns), rows)
        print_lines(*one.lines())


def _print_csv(issued: Sequence[_Issued]) -> None:
    """Print numbers with all their digits; what is said about them goes to standard error."""
    for number_of, one in enumerate(issued):
        numbers = one.forecast.set_axis(one.opens()).rename_axis("open_time").reset_index()
        if len(issued) > 1:
            numbers.insert(0, "series", str(one.forecaster.series))
        numbers.to_csv(sys.stdout, index=False, header=number_of == 0, lineterminator="\n")
        sys.stderr.write("\n".join(one.lines()) + "\n")


def _print_json(issued: Sequence[_Issued]) -> None:
    """Print one object, or a list of them where several series were asked for."""
    contents = [one.to_json() for one in issued]
    text = json.dumps(contents if len(contents) > 1 else contents[0], indent=2, allow_nan=False)
    sys.stdout.write(text + "\n")


_PRINTERS: Final[dict[str, Callable[[Sequence[_Issued]], None]]] = {
    "table": _print_tables,
    "csv": _print_csv,
    "json": _print_json,
}
