"""The live record in words: what the command `track` prints, and the table and sentences of a card."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from v8.annexes.live.ledger.database import Ledger
from v8.annexes.live.ledger.record import (
    MIN_DAYS,
    MOST_FORECASTS,
    LiveRecord,
    LiveSeries,
    LiveTask,
    live_record,
    own_baseline_sentence,
)
from v8.base.errors import ArtifactError, listed, shown
from v8.base.process import command
from v8.base.terminal import print_json, print_lines, print_table
from v8.base.wording import Table, number, p_value, percent, plural
from v8.cli.shared import place_words
from v8.model.evaluation.significance import BaselineComparison, reading_marks

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


def record_table(record: LiveRecord) -> Table:
    """Return a row a series: errors compared with naive and the best baseline, and counts."""
    comparisons = [
        (task, against.name) for task, live in record.tasks.items() for against in live.comparisons
    ]
    rows: list[list[object]] = []
    for series in record.series:
        marked = {
            (task, against.name): against.marked
            for task, live in series.tasks.items()
            for against in live.comparisons
        }
        num_scored = 0
        num_days = 0
        if series.tasks:
            first_task = next(iter(series.tasks.values()))
            num_scored = first_task.num_scored
            num_days = first_task.num_days
        multiples = [marked.get(comparison, "") for comparison in comparisons]
        counts = series.counts
        rows.append(
            [
                series.series,
                num_scored,
                num_days,
                *multiples,
                counts.num_late,
                counts.num_pending,
                counts.num_void,
            ]
        )
    multiple_names = [f"{task} × {name}" for task, name in comparisons]
    header = ("series", "scored", "days", *multiple_names, "late", "pending", "void")
    return Table(header, rows, "Mean absolute error as a multiple of a forecast without a network")


def record_sentences(record: LiveRecord) -> list[str]:
    """Summarise a record in sentences, and say how its table is read."""
    counts = record.counts
    sentences: list[str] = []
    for task, live in record.tasks.items():
        sentences += _task_sentences(task, live)
    if record.with_own_baseline:
        sentences.append(f"{listed(record.with_own_baseline)}: {own_baseline_sentence()}")
    sentences += _generation_sentences(record)
    sentences.append(f"{reading_marks(len(record.series))}; from {MIN_DAYS} days on.")
    sentences.append(
        f"{plural(counts.num_issued, 'forecast')} issued, {counts.num_scored} scored, {counts.num_late} late "
        f"(in no error), {counts.num_pending} waiting for their actual values, "
        f"{counts.num_void} without actual values for ever."
    )
    return sentences


def _task_sentences(task: str, live: LiveTask) -> Iterator[str]:
    """Compare the errors of a task over all series with baselines, and give CRPS and coverage."""
    over = f"{plural(live.num_scored, 'forecast')} of {plural(live.num_days, 'day')}"
    for against in live.comparisons:
        verdict = against.verdict
        if against.p_value is not None:
            verdict = f"{verdict}, p {p_value(against.p_value)}"
        yield f"{task}: {number(against.relative_mae)} of {against.name} over {over}: {verdict}."
    if live.coverage:
        shares = [f"{percent(share)} in the {name} interval" for name, share in live.coverage.shares.items()]
        newest = f"of the newest {MOST_FORECASTS:,} forecasts of each series"
        crps = number(live.relative_crps)
        yield f"{task}: CRPS {crps} of naive's error; actual values {newest}: {', '.join(shares)}."


def _generation_sentences(record: LiveRecord) -> Iterator[str]:
    """Give the errors of each model of the series that were forecast by more than one."""
    for series in record.series:
        if len(series.generations) < 2:
            continue
        for generation in series.generations:
            errors = []
            for task, live in generation.tasks.items():
                num_scored = plural(live.num_scored, "forecast")
                errors.append(f"{task} {number(live.naive.relative_mae)} of naive over {num_scored}")
            model = f"{series.series}, model that has seen until {generation.issuer.generation}"
            yield f"{model}: {', '.join(errors) or 'nothing scored yet'}."
