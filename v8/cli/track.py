"""`python -m v8 track`: the live record, which nobody can tune: forecasts were written before their truth."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from v8.cli.options import LedgerOption, RepoOption, RunArgument, one_place
from v8.errors import ArtifactError, ProfileError, listed
from v8.invocation import command
from v8.live import DEFAULT_LEDGER
from v8.redaction import shown
from v8.runs.options import asked_series
from v8.tables import Table
from v8.wording import ABSENT, number, p_value, percent, plural

if TYPE_CHECKING:
    from v8.live.ledger import Ledger
    from v8.live.record import LiveSeries, LiveTask, Record
    from v8.losses.table import Against

FORMATS: Final = ("table", "json", "csv")

_COLUMNS: Final = (
    "series",
    "task",
    "num_scored",
    "num_days",
    "error",
    "naive_error",
    "multiple_of_naive",
    "verdict",
    "p_value",
    "corrected_p_value",
    "best_baseline",
    "best_error",
    "multiple_of_best",
    "verdict_against_best",
    "p_value_against_best",
    "corrected_p_value_against_best",
)


def track(
    run: RunArgument = None,
    repo: RepoOption = None,
    series: Annotated[
        list[str] | None,
        typer.Option("--series", metavar="BTCUSDT-15m", help="Only this one; repeat for more. Default: all."),
    ] = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
    output_format: Annotated[
        str, typer.Option("--format", metavar="table|json|csv", help="How to print the record.")
    ] = "table",
) -> None:
    """Print how issued forecasts turned out, beside the naive forecast and the best baseline."""
    where = one_place("track", run, repo)
    names = [str(one) for one in asked_series(series) or ()] or None
    if output_format not in FORMATS:
        raise ProfileError(
            where="--format",
            rule=f"is one of {', '.join(FORMATS)}",
            got=repr(output_format),
            fix="Choose one",
        )

    from v8.live.ledger import Ledger
    from v8.live.record import live_record

    with Ledger.open(ledger) as book:
        _require_known(book, where, names)
        record = live_record(book, where, names)
    _PRINTERS[output_format](record)


def _require_known(book: Ledger, where: Path | str, names: list[str] | None) -> None:
    """Refuse a place or a series that no forecast was issued for."""
    known = book.series(where)
    if missing := [name for name in names or () if name not in known]:
        got = f"none of {listed(missing)}"
    elif not known:
        got = f"none of {book.place(where)}, but of {listed(book.places()) or 'no place'}"
    else:
        return
    words = (str(where),) if isinstance(where, Path) else ("--repo", where)
    raise ArtifactError(
        where=str(book.path),
        rule="must hold forecasts of what is asked for",
        got=got,
        fix=f"Issue some: {command('forecast', *words, '--every')}",
    )


def _print_tables(record: Record) -> None:
    from v8.cli.printing import print_lines, print_table

    tally = record.tally
    compared = [f"{task} × {beside.name}" for task, live in record.tasks.items() for beside in live.shown]
    header = ("series", "scored", "days", *compared, "late", "pending", "void")
    rows = [_cells(one, record) for one in record.series]
    print_lines(f"Live record of {shown(record.place)}")
    print_table(Table(header, rows, "Mean absolute error as a multiple of a forecast without a network"))
    _print_intervals(record)
    _print_generations(record)
    for task, live in record.tasks.items():
        print_lines(*(_sentence(task, live, beside) for beside in live.shown))
    print_lines(_explained(record))
    print_lines(
        f"{plural(tally.num_issued, 'forecast')} issued, {tally.num_scored} scored, {tally.num_late} late "
        f"(in no error), {tally.num_pending} waiting for their truth, {tally.num_void} without it for ever."
    )


def _print_intervals(record: Record) -> None:
    """Print how good the quantiles were, of models that have some."""
    from v8.cli.printing import print_lines, print_table
    from v8.live.record import MOST_FORECASTS

    names = {task: [*live.coverage.shares] for task, live in record.tasks.items() if live.coverage}
    if not names:
        return
    header = [f"{task} {what}" for task in names for what in ("CRPS × naive", *names[task])]
    lines = [*((one.series, one.tasks) for one in record.series), ("all", record.tasks)]
    rows = [[name, *_interval_cells(tasks, names)] for name, tasks in lines]
    title = "Quantiles: CRPS as a multiple of naive's error, and truths within"
    print_table(Table(("series", *header), rows, title))
    print_lines(f"Within the intervals: of the newest {MOST_FORECASTS:,} forecasts of each series.")


def _interval_cells(tasks: Mapping[str, LiveTask], names: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for task, intervals in names.items():
        live = tasks.get(task)
        shares = live.coverage.shares if live and live.coverage else {}
        yield number(live.crps_multiple if live else None)
        yield from (percent(shares.get(name)) for name in intervals)


def _print_generations(record: Record) -> None:
    """Print each model by itself, where a series was forecast by more than one."""
    from v8.cli.printing import print_table
    from v8.market.series import iso

    rows: list[list[object]] = []
    for one in record.series:
        for made in one.generations if len(one.generations) > 1 else ():
            first_s, last_s = (None if at_s is None else iso(at_s) for at_s in (made.first_s, made.last_s))
            about = [one.series, made.issuer.generation, first_s or ABSENT, last_s or ABSENT]
            found = [made.tasks.get(task) for task in record.tasks]
            scored = max((live.num_scored for live in found if live), default=0)
            rows.append([*about, scored, *(number(live.naive.multiple) if live else "" for live in found)])
    if rows:
        compared = [f"{task} × naive" for task in record.tasks]
        header = ("series", "seen until, digest", "first", "last", "scored", *compared)
        print_table(Table(header, rows, "Each model by itself"))


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
    of = plural(live.num_scored, "forecast")
    days = plural(live.num_days, "day")
    return f"{task}: {number(beside.multiple)} of {beside.name} over {of} of {days}: {known}."


def _explained(record: Record) -> str:
    from v8.live.record import MIN_DAYS
    from v8.losses.table import ALPHA

    return (
        f"Below 1 the model errs less. * differs by more than chance: Diebold-Mariano test, p < {ALPHA:g}, "
        f"corrected for {len(record.series)} series at once; from {MIN_DAYS} days on."
    )


def _print_json(record: Record) -> None:
    sys.stdout.write(json.dumps(record.to_json(), indent=2, allow_nan=False) + "\n")


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


_PRINTERS: Final[dict[str, Callable[[Record], None]]] = {
    "table": _print_tables,
    "json": _print_json,
    "csv": _print_csv,
}
