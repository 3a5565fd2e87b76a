"""What `predict` and `forecast` do and print: forecasts, at once or into the ledger.

`predict` forecasts one series, several, or all that a place has models of. Where several are asked for, one
that cannot be forecast is one line on standard error, and the others are printed all the same. A few series
are printed bar by bar; of many the table has one row a series. Numbers go to standard output; what is said
about those of a CSV goes to standard error.

`forecast` writes into the ledger: once the newest close of every series, what was missed since the last call,
and scores where the truth has come; with --every it goes on at each close until Ctrl-C. Killed anywhere, the
same command goes on.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pandas as pd

from v8.cli.options import place_words, require_picture
from v8.cli.printing import print_lines, print_table, tell
from v8.columns import CLOSE, HIGH, LOW
from v8.errors import SeriesError, V8Error, listed
from v8.hub.opening import open_place
from v8.invocation import command
from v8.live import DEFAULT_LEDGER
from v8.live.issuing import Issued, IssuedMany, age, issue, issue_each
from v8.live.ledger import Ledger
from v8.live.watching import ServingModels, Wake, Watch, jitter_s
from v8.machine.interruption import set_last_words
from v8.machine.starting import quiet_start
from v8.market.series import iso
from v8.market.sources.source import CandleSource
from v8.runs.engines import place as place_models
from v8.wording import ABSENT, Table, number, percent, plural

MOST_WHOLE: Final = 4
"""Series that are printed bar by bar; more are printed in a row each."""


def forecast_each(
    source: Path | str,
    names: Sequence[str],
    candles: CandleSource,
    *,
    revision: str | None,
    is_offline: bool,
    is_many: bool,
    bars: int | None,
    is_any_age: bool,
) -> IssuedMany:
    """Forecast the named series of a place: all that it has, or its only one, where none is named."""
    place_models("auto", "1", "1")  # the same sums in the same order as when the model was judged
    with quiet_start():
        models = open_place(source, revision=revision, is_offline=is_offline)
        if is_many:
            return issue_each(models, names or models.series, candles, bars=bars, is_any_age=is_any_age)
        forecaster = models.open(names[0] if names else None)
        return IssuedMany([issue(forecaster, candles, models.name, bars=bars, is_any_age=is_any_age)], {})


def draw(issued: Sequence[Issued], plot: Path, *, is_many: bool) -> None:
    """Draw forecasts into a file, or a file each in a folder, and say where."""
    from v8.views.pictures import draw_forecast

    for one in issued:
        file = plot / f"{one.forecaster.series}.png" if is_many else plot
        require_picture(file)
        draw_forecast(one.candles, one.forecast, file, notes=one.lines())
        tell(f"Picture: {file}")


def tell_refusals(told: IssuedMany) -> int:
    """Say in a line for each reason which series were not forecast, and return the exit code of `run`."""
    by_reason: dict[str, list[str]] = {}
    for name, error in told.refused.items():
        by_reason.setdefault(str(error), []).append(name)
    for reason, names in by_reason.items():
        where = "" if reason.startswith(names[0]) else f"{listed(names)}: "
        tell(f"failed: {where}{reason}")
    codes = {error.exit_code for error in told.refused.values()}
    if told.issued or len(codes) > 1:
        return SeriesError.exit_code if codes else 0
    return codes.pop() if codes else 0


def print_tables(issued: Sequence[Issued], *, is_many: bool) -> None:
    """Print a table a series, or one of all of them."""
    if len(issued) > MOST_WHOLE:
        _print_rows(issued)
        return
    for one in issued:
        header, opens = ("open time", *one.points().columns), one.opens()
        shown = [map("{:.7g}".format, values) for values in one.points().to_numpy()]
        whole = f"{one.forecaster.series}: forecast issued at {iso(one.issued_at_s)}"
        parts: dict[str, Iterable[Iterable[str]]] = {whole: shown}
        parts |= {f"{name} intervals": cells for name, cells in one.intervals().items()}
        for title, cells in parts.items():
            rows = [(time, *values) for time, values in zip(opens, cells, strict=True)]
            print_table(Table(header, rows, title))
        print_lines(*one.lines())


def print_csv(issued: Sequence[Issued], *, is_many: bool) -> None:
    """Print numbers with all their digits, one row a bar; the first column is the series where many are."""
    frames = []
    for one in issued:
        frames.append(one.forecast.set_axis(one.opens()).rename_axis("open_time").reset_index())
        if is_many:
            frames[-1].insert(0, "series", str(one.forecaster.series))
        tell("\n".join(one.lines()))
    if frames:
        pd.concat(frames).to_csv(sys.stdout, index=False, lineterminator="\n")


def print_json(issued: Sequence[Issued], *, is_many: bool) -> None:
    """Print one object, or a list of them where many were asked for."""
    contents = [one.to_json() for one in issued]
    sys.stdout.write(json.dumps(contents if is_many else contents[0], indent=2, allow_nan=False) + "\n")


PRINTERS: Final[Mapping[str, Callable[..., None]]] = {
    "table": print_tables,
    "csv": print_csv,
    "json": print_json,
}
"""Every form by the name that `--format` takes; each is given forecasts and whether many were asked for."""


def _print_rows(issued: Sequence[Issued]) -> None:
    """Print a row a series, and of forecasts of one place where they come from and how to read them."""
    first, last = issued[0], max(one.issued_at_s for one in issued)
    header = ("series", "first bar", "bars", "last close", "low", "high", "close", "change", "× best", "age")
    print_table(Table(header, map(_row, issued), f"{len(issued)} forecasts issued at {iso(last)}"))
    model, task = first.forecaster, next(iter(first.forecaster.about.quality))
    revision, profile = f" at {model.revision}" if model.revision else "", model.about.profile.name
    print_lines(
        f"Models: {first.place}{revision}, profile {profile}. Candles: {first.candles.source}.",
        *first.demo_lines(),
        "low, high: of all bars; close: of the last bar, and its change from the last close.",
        f"× best: error of {task} on the test span as a multiple of the best baseline's; below 1 it is less.",
        "age: how long before the forecast the newest candle closed that training has seen.",
    )


def _row(one: Issued) -> list[Any]:
    """Sum a forecast up: how low and how high it goes, where it ends, what the model is worth, its age."""
    forecast, close = one.forecast, float(one.candles.column(CLOSE)[-1])
    ends = float(forecast[CLOSE].iloc[-1]) if CLOSE in forecast else None
    low = forecast[LOW].min() if LOW in forecast else None
    high = forecast[HIGH].max() if HIGH in forecast else None
    change = ABSENT if ends is None else percent(ends / close - 1.0, 2)
    best = next(iter(one.forecaster.about.quality.values()))["multiple_of_best"]
    old = ABSENT if one.model_age_s is None else age(one.model_age_s)
    prices = [ABSENT if value is None else f"{value:.7g}" for value in (low, high, ends)]
    first = one.forecast.index[0].strftime("%Y-%m-%dT%H:%MZ")
    start = [str(one.forecaster.series), first, len(forecast), f"{close:.7g}"]
    return [*start, *prices, change, number(best), old]


def issue_forecasts(
    where: Path | str,
    find_models: Callable[[], ServingModels],
    ledger: Path,
    open_candles: Callable[[], CandleSource],
    *,
    is_for_ever: bool,
) -> int:
    """Forecast the models of a place into a ledger, print what was done, and return the exit code."""
    set_last_words(f"interrupted: {ledger} is whole. Continue with: {command(*sys.argv[1:])}")
    place_models("auto", "1", "1")  # the same sums in the same order as when the models were judged
    with quiet_start():
        models = find_models()  # before a file is made
    with Ledger.open_to_write(ledger) as book:
        with quiet_start():  # opening models starts TensorFlow
            for name in models.series:
                with suppress(V8Error):  # the first wake tells
                    models.forecaster(name)
        place = book.place(where)
        settle_s = jitter_s(place) if is_for_ever else 0
        watch = Watch(models, open_candles, book, place, tell=tell, settle_s=settle_s)
        if is_for_ever:
            watch.keep_going(
                lambda woken: print_lines(f"{_done(woken)}; next at {iso(watch.next_close_s(woken.now_s))}")
            )
        woken = watch.wake()
    words = place_words(where) if ledger == DEFAULT_LEDGER else (*place_words(where), "--ledger", str(ledger))
    print_lines(f"{_done(woken)}.", f"Ledger: {ledger}. Its record: {command('track', *words)}")
    if not woken.failures:
        return 0
    return SeriesError.exit_code if woken.num_issued else next(iter(woken.failures.values())).exit_code


def _done(woken: Wake) -> str:
    late = f" ({woken.num_late} late)" if woken.num_late else ""
    failed = f", {len(woken.failures)} series failed" if woken.failures else ""
    issued = plural(woken.num_issued, "forecast")
    return f"{iso(woken.now_s)}: {issued} issued{late}, {woken.num_scored} scored{failed}"
