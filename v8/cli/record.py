"""What `track` prints: the live record, which nobody can tune: forecasts were written before their truth."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from v8.cli.options import place_words
from v8.cli.printing import print_json, print_lines, print_table, reading_marks
from v8.errors import ArtifactError, listed, shown
from v8.invocation import command
from v8.live.ledger import Ledger
from v8.live.record import MIN_DAYS, MOST_FORECASTS, LiveSeries, LiveTask, Record, live_record
from v8.losses.table import Against
from v8.wording import Table, number, p_value, percent, plural

_COLUMNS: Final = (
    *("series", "task", "num_scored", "num_days", "error", "naive_error", "multiple_of_naive"),
    *("verdict", "p_value", "corrected_p_value", "best_baseline", "best_error", "multiple_of_best"),
    *("verdict_against_best", "p_value_against_best", "corrected_p_value_against_best"),
)


def print_record(ledger: Path, where: Path | str, names: Sequence[str] | None, form: str) -> None:
    """Print how the forecasts of a place turned out, in a form of `RECORD_PRINTERS`.

    Raises `ArtifactError` if none was issued of what is asked for.
    """
    with Ledger.open(ledger) as book:
        known = book.series(where)
        missing = [name for name in names or () if name not in known]
        if missing or not known:
            of = f"{book.place(where)}, but of {listed(book.places()) or 'no place'}"
            rule = "must hold forecasts of what is asked for"
            got = f"none of {listed(missing) if missing else of}"
            fix = f"Issue some: {command('forecast', *place_words(where), '--every')}"
            raise ArtifactError(where=str(book.path), rule=rule, got=got, fix=fix)
        record = live_record(book, where, names)
    RECORD_PRINTERS[form](record)


def _print_tables(record: Record) -> None:
    tally = record.tally
    compared = [f"{task} × {beside.name}" for task, live in record.tasks.items() for beside in live.shown]
    header = ("series", "scored", "days", *compared, "late", "pending", "void")
    rows = [_cells(one, record) for one in record.series]
    print_lines(f"Live record of {shown(record.place)}")
    print_table(Table(header, rows, "Mean absolute error as a multiple of a forecast without a network"))
    for task, live in record.tasks.items():
        print_lines(*(_sentence(task, live, beside) for beside in live.shown), *_sureness(task, live))
    print_lines(
        *_by_model(record),
        f"{reading_marks(len(record.series))}; from {MIN_DAYS} days on.",
        f"{plural(tally.num_issued, 'forecast')} issued, {tally.num_scored} scored, {tally.num_late} late "
        f"(in no error), {tally.num_pending} waiting for their truth, {tally.num_void} without it for ever.",
    )


def _cells(one: LiveSeries, record: Record) -> list[object]:
    first = next(iter(one.tasks.values()), None)
    cells: list[object] = [one.series, first.num_scored if first else 0, first.num_days if first else 0]
    for task, all_series in record.tasks.items():
        live = one.tasks.get(task)
        found = [live.naive, live.best][: len(all_series.shown)] if live else []
        cells += map(_multiple, found) if live else [""] * len(all_series.shown)
    return [*cells, one.tally.num_late, one.tally.num_pending, one.tally.num_void]


def _multiple(against: Against) -> str:
    return f"{number(against.multiple)}{'*' if against.is_significant else ' '}"


def _sentence(task: str, live: LiveTask, beside: Against) -> str:
    """Say how a task did over all series beside a baseline."""
    known = beside.verdict if beside.p_value is None else f"{beside.verdict}, p {p_value(beside.p_value)}"
    over = f"{plural(live.num_scored, 'forecast')} of {plural(live.num_days, 'day')}"
    return f"{task}: {number(beside.multiple)} of {beside.name} over {over}: {known}."


def _sureness(task: str, live: LiveTask) -> Iterator[str]:
    """Say how good the quantiles of a task were over all series, of models that have some."""
    if live.coverage:
        held = ", ".join(
            f"{percent(share)} in the {name} interval" for name, share in live.coverage.shares.items()
        )
        newest = f"of the newest {MOST_FORECASTS:,} forecasts of each series"
        yield f"{task}: CRPS {number(live.crps_multiple)} of naive's error; truths {newest}: {held}."


def _by_model(record: Record) -> Iterator[str]:
    """Say how each model did by itself, where a series was forecast by more than one."""
    for one in record.series:
        for made in one.generations if len(one.generations) > 1 else ():
            told = (
                f"{task} {number(live.naive.multiple)} of naive over {plural(live.num_scored, 'forecast')}"
                for task, live in made.tasks.items()
            )
            model = f"{one.series}, model that has seen until {made.issuer.generation}"
            yield f"{model}: {', '.join(told) or 'nothing scored yet'}."


def _print_csv(record: Record) -> None:
    covered = [live.coverage for one in record.series for live in one.tasks.values() if live.coverage]
    intervals = [*dict.fromkeys(name for coverage in covered for name in coverage.num_held)]
    within = [f"within_{name.removesuffix(' %')}" for name in intervals]
    columns = [*_COLUMNS, *(["crps", *within] if intervals else [])]
    rows = (row for one in record.series for row in _rows(one, intervals))
    sys.stdout.write(Table(columns, rows).csv())


def _rows(one: LiveSeries, intervals: Sequence[str]) -> Iterator[list[object]]:
    for task, live in one.tasks.items():
        about: list[object] = [one.series, task, live.num_scored, live.num_days, live.error]
        for against in (live.naive, live.best):
            about += [] if against is live.naive else [against.name]
            about += [live.errors[against.baseline], against.multiple, against.verdict]
            about += [against.p_value, against.corrected_p_value]
        shares = live.coverage.shares if live.coverage else {}
        yield [*about, *([live.crps, *map(shares.get, intervals)] if intervals else [])]


RECORD_PRINTERS: Final[Mapping[str, Callable[[Record], None]]] = {
    "table": _print_tables,
    "json": lambda record: print_json(record.to_json()),
    "csv": _print_csv,
}
"""Every form of the live record by the name that `--format` takes."""
