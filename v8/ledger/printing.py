"""What `track` prints: the live record, which nobody can tune: forecasts were written before their actual values."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from v8.cli.options import place_words
from v8.cli.printing import print_json, print_lines, print_table
from v8.errors import ArtifactError, listed, shown
from v8.invocation import command
from v8.ledger.database import Ledger
from v8.ledger.record import LiveSeries, Record, live_record, record_sentences, record_table
from v8.wording import Table

_COLUMNS: Final = (
    *("series", "task", "num_scored", "num_days", "error", "naive_error", "relative_mae"),
    *("verdict", "p_value", "corrected_p_value", "best_baseline", "best_error", "relative_mae_to_best"),
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
    print_lines(f"Live record of {shown(record.place)}")
    print_table(record_table(record))
    print_lines(*record_sentences(record))


def _print_csv(record: Record) -> None:
    covered = [live.coverage for one in record.series for live in one.tasks.values() if live.coverage]
    intervals = [*dict.fromkeys(name for coverage in covered for name in coverage.num_held)]
    within = [f"within_{name.removesuffix(' %')}" for name in intervals]
    columns = [*_COLUMNS, *(["crps", *within] if intervals else [])]
    rows = (row for one in record.series for row in _rows(one, intervals))
    sys.stdout.write(Table(columns, rows).csv())


def _rows(one: LiveSeries, intervals: Sequence[str]) -> Iterator[list[object]]:
    for task, live in one.tasks.items():
        about: list[object] = [one.series, task, live.num_scored, live.num_days, live.naive.model_error]
        for against in (live.naive, live.best):
            about += [] if against is live.naive else [against.name]
            about += [live.errors[against.baseline], against.relative_mae, against.verdict]
            about += [against.p_value, against.corrected_p_value]
        shares = live.coverage.shares if live.coverage else {}
        yield [*about, *([live.crps, *map(shares.get, intervals)] if intervals else [])]


RECORD_PRINTERS: Final[Mapping[str, Callable[[Record], None]]] = {
    "table": _print_tables,
    "json": lambda record: print_json(record.to_json()),
    "csv": _print_csv,
}
"""Every form of the live record by the name that `--format` takes."""
