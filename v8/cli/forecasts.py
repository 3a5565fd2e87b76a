"""What `predict` and `forecast` do and print: forecasts, at once or into the ledger.

Of several series that are asked of `predict`, one that cannot be forecast is one line on standard error, and
the others are printed all the same. Numbers go to standard output; what is said about those of a CSV goes to
standard error. `forecast` goes on where it was killed.
"""

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import pandas as pd

from v8.cli.options import picture_file, place_words, require_picture
from v8.cli.printing import print_json, print_lines, print_page, print_reasons, print_table, tell
from v8.columns import BAND_PERIOD_BARS, CLOSE, HIGH, LOW, OPEN_TIME, VOLATILITY
from v8.errors import SeriesError, V8Error, listed
from v8.forecasts.export import write_forecasts
from v8.forecasts.issuing import Answers, Issued, age
from v8.invocation import command
from v8.ledger import DEFAULT_LEDGER
from v8.ledger.database import Ledger
from v8.ledger.posting import keep_sending, send_messages
from v8.ledger.receiver import Receiver
from v8.ledger.watching import ServingModels, Wake, Watch, jitter_s
from v8.machine.interruption import set_last_words
from v8.machine.starting import quiet_start
from v8.market.series import iso
from v8.market.sources.source import CandleSource
from v8.net import counted, in_thread
from v8.own_files import require_own
from v8.quantile_levels import interval_names, intervals, quantile_column
from v8.reports.markup import DEMO_WARNING
from v8.runs.engines import place as place_models
from v8.trading import page as page
from v8.trading.rules import Worth
from v8.trading.study import measure_worth
from v8.wording import Table, frame_csv, number, percent, plural, price

MOST_WHOLE: Final = 4
"""Series that are printed bar by bar, too; of more there is a row each."""


def print_forecasts(
    issue: Callable[[], Answers],
    form: str,
    draw: Callable[[Sequence[Issued]], object] | None,
    *,
    is_many: bool,
) -> int:
    """Print the forecasts of some series that `issue_each` issues, draw them, and return the exit code.

    Raises `V8Error` where one series was asked for, and cannot be forecast.
    """
    place_models("auto", "1", "1")  # the same sums in the same order as when the models were evaluated
    with quiet_start():
        issued, refused = issue()
    for error in () if is_many else refused.values():
        raise error
    PRINTERS[form](issued, is_many)
    if draw:
        draw(issued)
    return tell_refusals(refused, is_partial=bool(issued))


def draw_forecasts(issued: Sequence[Issued], place: Path, *, is_overwriting: bool) -> None:
    """Draw forecasts into a file, or a file each in a folder, and say where."""
    from v8.reports.pictures import draw_forecast

    for one in issued:
        file = picture_file(place, str(one.forecaster.series))
        require_picture(file, is_overwriting=is_overwriting)
        draw_forecast(one.candles, one.forecast, file, notes=one.lines())
        tell(f"Picture: {file}")


def tell_refusals(refused: Mapping[str, V8Error], *, is_partial: bool) -> int:
    """Say in a line for each reason which series were not forecast, and return the exit code of `run`."""
    by_reason: dict[str, list[str]] = {}
    for name, error in refused.items():
        by_reason.setdefault(str(error), []).append(name)
    for reason, names in by_reason.items():
        where = "" if reason.startswith(names[0]) else f"{listed(names)}: "
        tell(f"failed: {where}{reason}")
    codes = {error.exit_code for error in refused.values()}
    is_mixed = len(codes) > 1 or (codes and is_partial)
    return SeriesError.exit_code if is_mixed else next(iter(codes), 0)


def print_tables(issued: Sequence[Issued]) -> None:
    """Print a row a series, and of a few series bar by bar what is forecast, and by which model."""
    if not issued:
        return
    about = max((one.forecaster.about for one in issued), key=lambda about: about.is_evaluated)
    *_, task = about.quality or about.tasks
    best = (
        f"× best: error of {task} on the test span as a multiple of the best baseline's; below 1 it is less."
    )
    header = "series", "close", "low", "high", "range ahead", "range now", "vol ahead", "vol now", "× best"
    title = f"{plural(len(issued), 'forecast')} issued at {iso(max(one.issued_at_s for one in issued))}"
    print_table(Table(header, map(_row, issued), title))
    for one in issued if len(issued) <= MOST_WHOLE else ():
        _print_bars(one)
        print_lines(*one.lines())
    for one in (each for each in issued if each.paths is not None):
        _print_chances(one)
    if len(issued) > MOST_WHOLE:
        first = issued[0]
        ages_s = [one.model_age_s for one in issued if one.model_age_s is not None]
        revision = f" at {first.forecaster.revision}" if first.forecaster.revision else ""
        oldest = f" The oldest has seen candles until {age(max(ages_s))} before." if ages_s else ""
        told = f"{first.place}{revision}, profile {first.forecaster.about.profile.name}.{oldest}"
        print_lines(f"Models: {told} Candles: {first.candles.source}.", *first.demo_lines())
        print_lines(*(line for one in issued for line in one.forecaster.origin_lines))
    print_lines(
        "low, high: of all bars ahead. range: of the median bar, in % of the close; now: of as many before.",
        "vol: volatility, the deviation of twenty closes over their mean, at the last bar ahead, and now.",
        best if about.is_evaluated else "× best: unknown, because it was not evaluated.",
    )


def _row(one: Issued) -> list[str]:
    """Sum a forecast up: how far prices will range, how wild they will be, and what the model is worth."""
    ahead = one.forecast
    candles = one.candles
    close = float(candles.column(CLOSE)[-1])
    closes = candles.column(CLOSE)[-BAND_PERIOD_BARS:]
    low = float(ahead[LOW].min())
    high = float(ahead[HIGH].max())
    known = (candles.column(HIGH) - candles.column(LOW))[-len(ahead) :]
    shares = [median(ahead[HIGH] - ahead[LOW]) / close, median(known) / close, None, None]
    if VOLATILITY in ahead:
        shares[2:] = ahead[VOLATILITY].iloc[-1], closes.std(ddof=1) / closes.mean()
    *_, quality = ({"relative_mae_to_best": None}, *one.forecaster.about.quality.values())
    told = [*map(price, (close, low, high)), *(percent(share, 2) for share in shares)]
    return [str(one.forecaster.series), *told, number(quality["relative_mae_to_best"])]


def _print_bars(one: Issued) -> None:
    """Print what is forecast of each bar, then how sure the model is of its close and volatility."""
    opens = [f"{opened:%m-%d %H:%M}" for opened in one.forecast.index]
    levels = one.forecaster.quantiles
    cells = {str(name): [_cell(name, each) for each in values] for name, values in one.points().items()}
    for name in (name for name in (CLOSE, VOLATILITY) if name in cells):
        for told, pair in zip(interval_names(levels), intervals(levels), strict=True):
            ends = one.forecast[[quantile_column(name, each) for each in pair]].to_numpy()
            cells[f"{told} {name}"] = [_cell(name, *each) for each in ends]
    title = f"{one.forecaster.series}: {len(opens)} bars from {one.opens()[0]} on"
    print_table(Table(("opens", *cells), zip(opens, *cells.values(), strict=True), title))


def _print_chances(one: Issued) -> None:
    """Print the chances that prices above and below the close are touched."""
    rows = [
        (f"{100 * move:g} %", price(above), percent(rises, 1), price(below), percent(falls, 1))
        for move, above, rises, below, falls in (each.values() for each in one.chances()["touch"])
    ]
    title = f"{one.forecaster.series}: chance that a bar ahead touches a price so far off the close"
    print_table(Table(("move", "above", "chance", "below", "chance"), rows, title))


def _cell(name: Hashable, *values: float) -> str:
    if name == VOLATILITY:
        return f"{' – '.join(f'{100 * value:.2f}' for value in values)} %"
    return " – ".join(f"{value:.6g}" for value in values)


def print_csv(issued: Sequence[Issued], is_many: bool) -> None:
    """Print numbers with all their digits, one row a bar; the first column is the series where many are.

    Where paths were asked for it is a row for each bar of each path.
    """
    frames = []
    for one in issued:
        frames.append((one.forecast if one.paths is None else one.paths).reset_index())
        frames[-1][OPEN_TIME] = one.opens() * (len(frames[-1]) // len(one.forecast))
        if is_many:
            frames[-1].insert(0, "series", str(one.forecaster.series))
        for line in one.lines():
            tell(line)
    if frames:
        sys.stdout.write(frame_csv(pd.concat(frames)))


PRINTERS: Final[Mapping[str, Callable[[Sequence[Issued], bool], None]]] = {
    "table": lambda issued, is_many: print_tables(issued),
    "csv": print_csv,
    "json": lambda issued, is_many: print_json(
        [one.to_json() for one in issued] if is_many else issued[0].to_json()
    ),
}
"""Every form by the name that `--format` takes; each is given forecasts and whether many were asked for."""


def export_forecasts(flag: str, place: Path, file: Path, *, is_overwriting: bool, **wanted: Any) -> int:
    """Write every forecast of the test spans of a place, say where and what is missing; return the exit code.

    A flag named the file; what is wanted are arguments of `write_forecasts`.
    """
    place_models("auto", "1", "1")  # the same sums in the same order as when the models were evaluated
    require_own(flag, file, is_overwriting=is_overwriting)  # a back-test took hours since it was looked at
    with quiet_start():
        exported = write_forecasts(place, file, **wanted)
    print_lines(*exported.notes, f"Written: {file}, {exported.num_rows:,} rows.")
    if not exported.missing:
        return 0
    print_reasons(f"{len(exported.missing)} missing in {file}", exported.missing.items())
    return SeriesError.exit_code


def print_worth(place: Path, **given: Any) -> Worth:
    """Print what forecasts of a place are worth, as `measure_worth` finds it, and write it there."""
    place_models("auto", "1", "1")  # the same sums in the same order as when the models were evaluated
    with quiet_start():
        worth = measure_worth(place, **given)
    print_lines(*([DEMO_WARNING] if worth.is_demo else []), *page.sentences(worth))
    for table in (page.rules_table(worth.together, page.TITLE), *page.figure_tables(worth)):
        print_table(table)
    *_, html = files = page.write_worth(place, worth)
    print_lines(f"Written: {', '.join(map(str, files))}")
    print_page(html)
    return worth


def issue_forecasts(
    where: Path | str,
    find_models: Callable[[], ServingModels],
    ledger: Path,
    open_candles: Callable[[], CandleSource],
    receiver: Receiver | None,
    *,
    is_for_ever: bool,
) -> int:
    """Forecast the models of a place into a ledger, print what was done, and return the exit code.

    What happens is sent to a receiver, if there is one.
    """
    words = [word.replace(receiver.url, "URL") if receiver else word for word in sys.argv[1:]]
    set_last_words(f"interrupted: {ledger} is whole. Continue with: {command(*words)}")
    place_models("auto", "1", "1")  # the same sums in the same order as when the models were evaluated
    with quiet_start():
        models = find_models()  # before a file is made
    shown = place_words(where) if ledger == DEFAULT_LEDGER else (*place_words(where), "--ledger", str(ledger))
    with Ledger.open_to_write(ledger) as book:
        with quiet_start():  # opening models starts TensorFlow
            for name in counted(models.series, "Opening models"):
                with suppress(V8Error):  # the first wake tells
                    models.forecaster(name)
        place = book.place(where)
        settle_s = jitter_s(place) if is_for_ever else 0
        is_posting = receiver is not None
        watch = Watch(models, open_candles, book, place, tell=tell, settle_s=settle_s, is_posting=is_posting)
        if receiver and is_for_ever:
            in_thread(partial(keep_sending, ledger, place, receiver, tell))
        if is_for_ever:
            watch.keep_going(
                lambda woken: print_lines(f"{_done(woken)}; next at {iso(watch.next_close_s(woken.now_s))}")
            )
        woken = watch.wake()
        print_lines(f"{_done(woken)}.", f"Ledger: {ledger}. Its record: {command('track', *shown)}")
        if receiver:
            send_messages(ledger, place, receiver)
    if not woken.failures:
        return 0
    return SeriesError.exit_code if woken.num_issued else next(iter(woken.failures.values())).exit_code


def _done(woken: Wake) -> str:
    late = f" ({woken.num_late} late)" if woken.num_late else ""
    failed = f", {len(woken.failures)} series failed" if woken.failures else ""
    issued = plural(woken.num_issued, "forecast")
    return f"{iso(woken.now_s)}: {issued} issued{late}, {woken.num_scored} scored{failed}"
