"""What the command `track` prints and publishes: the live record of forecasts written in advance."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from v8.annexes.live.ledger.database import Ledger
from v8.annexes.live.ledger.record import (
    LiveRecord,
    LiveSeries,
    LiveTask,
    live_record,
    record_sentences,
    record_table,
)
from v8.base.errors import ArtifactError, listed, shown
from v8.base.process import command
from v8.base.terminal import print_json, print_lines, print_table
from v8.base.wording import Table, plural
from v8.cli.shared import place_words
from v8.model.evaluation.significance import BaselineComparison

_COLUMNS: Final = (
    "series",
    "task",
    "num_scored",
    "num_days",
    "error",
    "naive_error",
    "relative_mae",
    "verdict",
    "p_value",
    "corrected_p_value",
    "best_baseline",
    "best_error",
    "relative_mae_to_best",
    "verdict_against_best",
    "p_value_against_best",
    "corrected_p_value_against_best",
)


def print_record(
    ledger_file: Path, place: Path | str, names: Sequence[str] | None, output_format: str
) -> None:
    """Print the live record of a place.

    Args:
        ledger_file: Path of the ledger.
        place: The place of the models.
        names: Names of the series; all that have forecasts when None.
        output_format: A key of `RECORD_PRINTERS`.

    Raises:
        ArtifactError: If the ledger holds no forecast of a series, or of the place.
    """
    with Ledger.open(ledger_file) as ledger:
        ledger.require_intact()
        available = ledger.series(place)
        missing = [name for name in names or () if name not in available]
        if missing or not available:
            if missing:
                got = f"none of {listed(missing)}"
            else:
                got = f"none of {ledger.place(place)}, but of {listed(ledger.places()) or 'no place'}"
            rule = "must hold forecasts of what is asked for"
            example = command("forecast", *place_words(place), "--every")
            raise ArtifactError(where=str(ledger.path), rule=rule, got=got, fix=f"Issue some: {example}")
        record = live_record(ledger, place, names)
    RECORD_PRINTERS[output_format](record)


def print_backup(ledger_file: Path, copy: Path) -> None:
    """Copy a ledger, and print how many forecasts the copy holds."""
    with Ledger.open(ledger_file) as ledger:
        ledger.back_up(copy)
    with Ledger.open(copy) as copied:
        num_forecasts = plural(copied.last_number, "forecast")
    print_lines(f"Copied: {num_forecasts} of {ledger_file}, to {copy}.")


def _print_tables(record: LiveRecord) -> None:
    print_lines(f"Live record of {shown(record.place)}")
    print_table(record_table(record))
    print_lines(*record_sentences(record))


def _print_csv(record: LiveRecord) -> None:
    intervals: list[str] = []
    for series in record.series:
        for live in series.tasks.values():
            if live.coverage:
                intervals += [name for name in live.coverage.num_inside if name not in intervals]
    columns = list(_COLUMNS)
    if intervals:
        columns += ["crps", *(f"within_{name.removesuffix(' %')}" for name in intervals)]
    rows = [row for series in record.series for row in _rows(series, intervals)]
    sys.stdout.write(Table(columns, rows).csv())


def _rows(series: LiveSeries, intervals: Sequence[str]) -> Iterator[list[object]]:
    """Yield a row a task, with the columns `_COLUMNS`, and CRPS and coverage if there are intervals."""
    for task, live in series.tasks.items():
        row: list[object] = [series.series, task, live.num_scored, live.num_days, live.naive.model_error]
        row += _comparison_cells(live, live.naive)
        row.append(live.best.name)
        row += _comparison_cells(live, live.best)
        if intervals:
            shares = live.coverage.shares if live.coverage else {}
            row.append(live.crps)
            row += [shares.get(name) for name in intervals]
        yield row


def _comparison_cells(live: LiveTask, against: BaselineComparison) -> list[object]:
    return [
        live.errors[against.baseline],
        against.relative_mae,
        against.verdict,
        against.p_value,
        against.corrected_p_value,
    ]


RECORD_PRINTERS: Final[Mapping[str, Callable[[LiveRecord], None]]] = {
    "table": _print_tables,
    "json": lambda record: print_json(record.to_json()),
    "csv": _print_csv,
}
"""Every output format of the live record by the name that `--format` takes."""
