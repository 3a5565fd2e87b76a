"""The work of the commands `predict` and `export`: forecasts that are printed, or written into a table.

If `predict` cannot forecast one of several series, this is one line on standard error, and the others are
printed. Numbers go to standard output; the lines about the numbers of a CSV go to standard error.
"""

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

from v8.api.export import OpenSource, write_forecasts
from v8.api.issuing import IssuedForecast, IssueResults, coverage_sentence, format_age, periods_ahead
from v8.base.errors import SeriesError, V8Error, listed
from v8.base.process import quiet_start
from v8.base.storage import require_own
from v8.base.terminal import print_json, print_lines, print_message, print_reasons, print_table
from v8.base.wording import ABSENT, Table, frame_csv, number, percent, plural
from v8.cli.shared import picture_file, require_picture, settle_process
from v8.data.market.series import iso
from v8.forecaster.shared_models import require_onnx_packages
from v8.model.baselines.paths import RANGE_SHARE, pooled
from v8.model.evaluation.significance import BEATS, LOSES
from v8.profile.columns import (
    BAND_PERIOD_BARS,
    CLOSE,
    OPEN_TIME,
    TOTAL_RANGE,
    VOLATILITY,
    interval_names,
    intervals,
    quantile_column,
)
from v8.profile.tasks import is_share
from v8.publish.hub.places import is_repository

MAX_DETAILED: Final = 4
"""Up to so many series are printed bar by bar, too; of more there is one row each."""


def print_forecasts(
    issue: Callable[[], IssueResults],
    output_format: str,
    draw: Callable[[Sequence[IssuedForecast]], object] | None,
    *,
    is_many: bool,
) -> int:
    """Issue forecasts, print and draw them, and return the exit code.

    Args:
        issue: Issues the forecasts, see `issue_forecasts`.
        output_format: A key of `PRINTERS`.
        draw: Draws the forecasts; None draws nothing.
        is_many: Whether several series were requested.

    Raises:
        V8Error: If one series was requested and cannot be forecast.
    """
    settle_process()
    with quiet_start():
        issued, refused = issue()
    if refused and not is_many:
        raise next(iter(refused.values()))
    PRINTERS[output_format](issued, is_many)
    if draw:
        draw(issued)
    return report_refused(refused, is_partial=bool(issued))


def draw_forecasts(issued: Sequence[IssuedForecast], place: Path, *, is_overwriting: bool) -> None:
    """Draw forecasts into a file, or a file each in a folder, and print the paths."""
    from v8.publish.report.pictures import draw_forecast

    for forecast in issued:
        file = picture_file(place, str(forecast.forecaster.series))
        require_picture(file, is_overwriting=is_overwriting)
        draw_forecast(forecast.candles, forecast.forecast, file, notes=forecast.summary_lines())
        print_message(f"Picture: {file}")


def report_refused(refused: Mapping[str, V8Error], *, is_partial: bool) -> int:
    """Print a line for each reason with the series that were not forecast; return the exit code of `run`.

    Args:
        refused: The errors by series.
        is_partial: Whether other series were forecast.
    """
    by_reason: dict[str, list[str]] = {}
    for name, error in refused.items():
        by_reason.setdefault(str(error), []).append(name)
    for reason, names in by_reason.items():
        prefix = "" if reason.startswith(names[0]) else f"{listed(names)}: "
        print_message(f"failed: {prefix}{reason}")
    codes = {error.exit_code for error in refused.values()}
    if not codes:
        return 0
    if is_partial or len(codes) > 1:
        return SeriesError.exit_code
    return codes.pop()


def print_tables(issued: Sequence[IssuedForecast]) -> None:
    """Print a row a series; for a few series also a table of the bars and the lines about the model."""
    if not issued:
        return
    newest_issued_at_s = max(forecast.issued_at_s for forecast in issued)
    header = ("series", "close", f"{percent(RANGE_SHARE, 0)} range", "vol ahead", "vol now", "× best")
    title = f"{plural(len(issued), 'forecast')} issued at {iso(newest_issued_at_s)}"
    print_table(Table(header, [_overview_row(forecast) for forecast in issued], title))
    if len(issued) <= MAX_DETAILED:
        for forecast in issued:
            _print_bars(forecast)
            range_line = forecast.range_line()
            print_lines(*([range_line] if range_line else []), *forecast.summary_lines())
    for forecast in issued:
        if forecast.paths is not None:
            _print_touch_probabilities(forecast)
    if len(issued) > MAX_DETAILED:
        _print_common_lines(issued)
    print_lines(
        *_late_lines(issued),
        _range_note(issued),
        "vol: volatility, the deviation of twenty closes over their mean, at the last bar ahead, and now.",
        _best_baseline_note(issued),
    )


def _late_lines(issued: Sequence[IssuedForecast]) -> list[str]:
    """Return a line about the forecasts of which bars have closed already; none without any."""
    late = []
    for forecast in issued:
        if forecast.num_closed_bars:
            bars = f"{forecast.num_closed_bars} of {len(forecast.forecast)} bars"
            late.append(f"{forecast.candles.series} ({bars}, from {iso(forecast.closed_s)} on)")
    return [f"Newer candles were missing, so bars ahead have closed already: {listed(late)}."] if late else []


def _range_note(issued: Sequence[IssuedForecast]) -> str:
    """Explain the column of the range ahead."""
    name = f"{percent(RANGE_SHARE, 0)} range"
    if all(forecast.price_range is None for forecast in issued):
        return f"{name}: – because these models forecast no intervals."
    periods = periods_ahead(
        (len(forecast.forecast) * forecast.candles.series.bar_s, forecast.candles.series.timeframe)
        for forecast in issued
    )
    stated = f"{name}: 9 of 10 times the price should stay within, {periods} from the newest candle on."
    tested = pooled(forecast.forecaster.about.price_range for forecast in issued)
    return stated if tested is None else f"{stated} {coverage_sentence(tested)}"


def _best_baseline_note(issued: Sequence[IssuedForecast]) -> str:
    """Explain the column `× best`, by the last task of a model."""
    for forecast in issued:
        metadata = forecast.forecaster.about
        if metadata.is_evaluated:
            task = list(metadata.quality or metadata.tasks)[-1]
            meaning = f"error of {task} on the test span as a multiple of the best baseline's"
            return f"× best: {meaning}; below 1 it is less. * statistically significant."
    return "× best: unknown, because it was not evaluated."


def _print_common_lines(issued: Sequence[IssuedForecast]) -> None:
    """Print about many series only what they have in common, and the age of the oldest model."""
    first = issued[0]
    ages_s = [forecast.model_age_s for forecast in issued if forecast.model_age_s is not None]
    revision = f" at {first.forecaster.revision}" if first.forecaster.revision else ""
    oldest = f" The oldest has seen candles until {format_age(max(ages_s))} before." if ages_s else ""
    models = f"{first.place}{revision}, profile {first.forecaster.about.profile.name}.{oldest}"
    lines = [f"Models: {models} Candles: {first.candles.source}.", *first.demo_lines()]
    for forecast in issued:
        lines += forecast.forecaster.origin_lines
    own = [each.forecaster.about.series for each in issued if each.forecaster.about.has_own_baseline]
    if own:
        lines.append(
            f"Best baseline of {listed(own)}: the best of each series alone, because its run stored none of "
            "all series."
        )
    print_lines(*lines, *first.runtime_lines())


def _overview_row(issued: IssuedForecast) -> list[str]:
    """Return the row of a series: price, range ahead, volatility ahead and now, and the model's error."""
    forecast = issued.forecast
    candles = issued.candles
    volatility_ahead = None
    volatility_now = None
    if VOLATILITY in forecast:
        closes = candles.column(CLOSE)[-BAND_PERIOD_BARS:]
        volatility_ahead = forecast[VOLATILITY].iloc[-1]
        volatility_now = closes.std(ddof=1) / closes.mean()
    relative_mae_to_best = ABSENT
    for quality in issued.forecaster.about.quality.values():  # that of the last task counts
        mark = "*" if quality["verdict_against_best"].startswith((BEATS, LOSES)) else " "
        relative_mae_to_best = number(quality["relative_mae_to_best"]) + mark
    return [
        str(issued.forecaster.series),
        issued.written_price(float(candles.column(CLOSE)[-1])),
        _range_ahead(issued),
        percent(volatility_ahead, 2),
        percent(volatility_now, 2),
        relative_mae_to_best,
    ]


def _range_ahead(issued: IssuedForecast) -> str:
    """Return the prices that all bars ahead stay between 9 times of 10; a dash if that is not forecast."""
    prices = issued.price_range
    if prices is None:
        return ABSENT
    return f"{issued.written_price(prices.low)} – {issued.written_price(prices.high)}"


def _print_bars(issued: IssuedForecast) -> None:
    """Print the forecast of each bar; of a model with quantiles close and range or volatility with intervals.

    Medians of low and high would read as a second range beside the one that all bars stay within.
    """
    forecasts = issued.point_forecasts()
    levels = issued.forecaster.quantiles
    if levels:
        spread = TOTAL_RANGE if TOTAL_RANGE in forecasts else VOLATILITY
        forecasts = forecasts[[name for name in (CLOSE, spread) if name in forecasts]]
    columns = {"opens, UTC": [f"{open_time:%m-%d %H:%M}" for open_time in forecasts.index]}
    for name, values in forecasts.items():
        columns[str(name)] = [_written(issued, name, value) for value in values]
        if levels:
            low, high = (quantile_column(str(name), level) for level in intervals(levels)[0])
            columns[f"{interval_names(levels)[0]} {name}"] = [
                f"{_written(issued, name, lower)} – {_written(issued, name, upper)}"
                for lower, upper in issued.forecast[[low, high]].to_numpy()
            ]
    title = f"{issued.forecaster.series}: {len(forecasts)} bars from {issued.open_times()[0]} on"
    rows = list(zip(*columns.values(), strict=True))
    print_table(Table(list(columns), rows, title))


def _print_touch_probabilities(issued: IssuedForecast) -> None:
    """Print the probabilities that prices above and below the close are touched."""
    rows = []
    for touch in issued.touch_probabilities()["touch"]:
        rows.append(
            (
                f"{100 * touch['move']:g} %",
                issued.written_price(touch["above"]),
                percent(touch["chance_above"], 1),
                issued.written_price(touch["below"]),
                percent(touch["chance_below"], 1),
            )
        )
    title = f"{issued.forecaster.series}: chance that a bar ahead touches a price so far off the close"
    print_table(Table(("move", "above", "chance", "below", "chance"), rows, title))


def _written(issued: IssuedForecast, name: Hashable, value: float) -> str:
    """Write a value of a column: a price as the exchange rounds it, what has no unit in per cent."""
    return percent(value, 2) if is_share(str(name)) else issued.written_price(value)


def print_csv(issued: Sequence[IssuedForecast], is_many: bool) -> None:
    """Print numbers with all their digits, one row a bar, or a bar of a path if paths were requested.

    The first column is the series if many were requested.
    """
    frames = []
    for forecast in issued:
        values = forecast.forecast if forecast.paths is None else forecast.paths
        frame = values.reset_index()
        num_paths = len(frame) // len(forecast.forecast)
        frame[OPEN_TIME] = forecast.open_times() * num_paths
        if is_many:
            frame.insert(0, "series", str(forecast.forecaster.series))
        frames.append(frame)
        for line in forecast.summary_lines():
            print_message(line)
    if frames:
        sys.stdout.write(frame_csv(pd.concat(frames)))


PRINTERS: Final[Mapping[str, Callable[[Sequence[IssuedForecast], bool], None]]] = {
    "table": lambda issued, is_many: print_tables(issued),
    "csv": print_csv,
    "json": lambda issued, is_many: print_json(
        [forecast.to_json() for forecast in issued] if is_many else issued[0].to_json()
    ),
}
"""Every output format by the name that `--format` takes: a function of forecasts and whether many were
requested."""


def export_onnx(
    place: Path, out: Path | None, names: Sequence[str], sources_of: Callable[[Path], OpenSource]
) -> int:
    """Write `model.onnx` of the models of a place, print a summary, and return the exit code.

    Args:
        place: Folder of the models, or `user/name` on the Hub as a path.
        out: Folder for copies of the models; None writes beside the models.
        names: Series that are meant; all when there are none.
        sources_of: Returns, for a folder of models, what opens the candles of its models.
    """
    require_onnx_packages("param:models onnx")
    from v8.api.export import write_onnx_models

    folder = place
    if not place.is_dir() and is_repository(str(place)):
        from v8.publish.hub.pull import pull

        folder = pull(str(place), names or None).folder
    settle_process()
    open_source = sources_of(folder)
    with quiet_start():
        exported = write_onnx_models(folder, open_source=open_source, names=names, out=out)
    most_steps = max(exported.steps.values())
    print_lines(
        f"Written: {plural(len(exported.steps), 'ONNX file')} in {out or place}; largest difference of "
        f"a forecast to the Keras file's: {most_steps:.1f} steps of single precision."
    )
    if not exported.missing:
        return 0
    print_reasons(f"{len(exported.missing)} without ONNX file", exported.missing.items())
    return SeriesError.exit_code


def export_forecasts(
    flag: str, place: Path, file: Path, *, is_overwriting: bool, **export_options: Any
) -> int:
    """Write every forecast of the test spans of a place, print a summary, and return the exit code.

    Args:
        flag: The flag that named the file, for error messages.
        place: Folder of the models.
        file: The file to write.
        is_overwriting: Whether a file of others may be replaced.
        export_options: Further arguments of `v8.api.export.write_forecasts`.
    """
    settle_process()
    require_own(flag, file, is_overwriting=is_overwriting)  # it was checked before a back-test of hours, too
    with quiet_start():
        exported = write_forecasts(place, file, **export_options)
    print_lines(*exported.notes, f"Written: {file}, {exported.num_rows:,} rows.")
    if not exported.missing:
        return 0
    print_reasons(f"{len(exported.missing)} missing in {file}", exported.missing.items())
    return SeriesError.exit_code
