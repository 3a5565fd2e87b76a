"""The live record for readers: what the command `track` prints, and the dataset that it publishes.

A ledger becomes an append-only dataset:

    README.md                       the record so far, compared with naive and the best baseline
    forecasts/2026-11-23.parquet    forecasts for the closes of a day: a row a forecaster and bar ahead
    scores/2026-11-23.parquet       their scores: a row a forecaster and task

Each published row must be in the ledger unchanged, and not more often there than in the ledger, or nothing is
sent. Files are compared by the id that the Hub lists, and files that differ are compared row by row. A day
with rows that were published twice is sent again only on request (`is_repairing`). There is one commit a day:
if closes of today are published already, forecasts written since are sent tomorrow. The dataset holds neither
actual values nor candles; with the candles of the digests anybody can compute the scores again.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from v8.annexes.live.backup import back_up
from v8.annexes.live.entries import Entry, Score
from v8.annexes.live.ledger import Ledger
from v8.annexes.live.record import (
    MIN_DAYS,
    MOST_FORECASTS,
    LiveRecord,
    LiveSeries,
    LiveTask,
    live_board,
    live_record,
    own_baseline_sentence,
    require_record,
)
from v8.api.board import board_markdown
from v8.base.errors import PublishError, listed, shown
from v8.base.storage import packaged, passing_folder, write_text
from v8.base.terminal import print_json, print_lines, print_message, print_table
from v8.base.wording import Table, number, p_value, percent, plural
from v8.cli.shared import publish_staged
from v8.data.market.series import iso
from v8.data.market.sources.tables import PARQUET_FAULTS, ParquetContent, is_plain, longest_text
from v8.forecaster.model_file import MAX_UNPACKED_BYTES
from v8.model.evaluation.significance import BaselineComparison, reading_marks
from v8.profile.tasks import TASKS
from v8.publish.hub import hub_endpoint
from v8.publish.hub.client import check_repo_name, is_listed
from v8.publish.hub.places import CARD_FILE
from v8.publish.hub.publish import Publication, RemoteRepo, RemoteState

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

_DAY_FILE: Final = re.compile(r"(forecasts|scores)/[0-9]{4}-[0-9]{2}-[0-9]{2}\.parquet")
_MAX_COPIES: Final = 8  # a published file with more than so many times the rows of ours is not read
_BOARD_HEADING: Final = "## All forecasters on one board"
_ISSUER_COLUMNS: Final = ("series", "profile", "profile_digest", "model_sha256", "revision", "source")


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
        require_record(ledger, place, names or ())
        record = live_record(ledger, place, names)
    RECORD_PRINTERS[output_format](record)


def print_backup(ledger_file: Path, copy: Path) -> None:
    """Copy a ledger, and print how many forecasts the copy holds."""
    with Ledger.open(ledger_file) as ledger:
        back_up(ledger, copy)
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
    rows = [row for series in record.series for row in _csv_rows(series, intervals)]
    sys.stdout.write(Table(columns, rows).csv())


def _csv_rows(series: LiveSeries, intervals: Sequence[str]) -> Iterator[list[object]]:
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
        first_task = next(iter(series.tasks.values()), None)
        multiples = [marked.get(comparison, "") for comparison in comparisons]
        counts = series.counts
        rows.append(
            [
                series.series,
                first_task.num_scored if first_task else 0,
                first_task.num_days if first_task else 0,
                *multiples,
                counts.num_late,
                counts.num_pending,
                counts.num_void,
            ]
        )
    multiple_names = [f"{task} × {name}" for task, name in comparisons]
    header = ("series", "scored in time", "days", *multiple_names, "late", "pending", "void")
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
    scored_late = f" ({counts.num_scored_late} of them late)" if counts.num_scored_late else ""
    sentences.append(
        f"{plural(counts.num_issued, 'forecast')} issued, {counts.num_scored} scored{scored_late}, "
        f"{counts.num_late} late (in no error), "
        f"{counts.num_pending} waiting for their actual values, "
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


class OddParquetError(ValueError):
    """A table with unexpected content; the text describes it as a clause, for example `60 rows`."""


@dataclass
class LedgerDataset(Publication):
    """The forecasts of a place and their scores, in a folder; making one writes the card.

    Raises:
        ArtifactError: If the ledger is damaged.
    """

    kind = "dataset"
    flag = "param:publish"
    ordinary = frozenset({".gitattributes", CARD_FILE, "LICENSE", "LICENSE.md"})
    rule = "a record goes into a new dataset, or one that holds the beginning of it"

    folder: Path  # where its files are written
    repo: str  # `user/name` of the dataset on the Hub
    ledger: Ledger  # open, with forecasts of the place
    place: Path | str  # of models, see `v8.annexes.live.entries.place_name`
    now_s: int  # the present, seconds since the epoch, UTC
    is_repairing: bool = False  # whether to send days again of which rows were published more than once
    paths: tuple[str, ...] = field(default=(), init=False)  # of the files that are to be sent

    def __post_init__(self) -> None:
        self._days = {iso(day_s)[:10]: day_s for day_s in self.ledger.days(self.place)}
        self.marker = f"forecasts/{min(self._days)}.parquet"
        self.title = f"Forecasts up to {max(self._days)}"
        write_text(self.folder / CARD_FILE, dataset_card(self.repo, self.ledger, self.place))

    def merged(self, remote: RemoteRepo, state: RemoteState) -> "LedgerDataset":
        """Find out which files are to be added, and which days are to be sent again.

        Raises:
            PublishError: If the ledger lacks a published row, or a row was published more often than it is in
                the ledger and days are not to be repaired.
        """
        self.require_ours(remote, state)
        not_compared = {path for path in state.files if _DAY_FILE.fullmatch(path)}
        new = [CARD_FILE]
        repeated: list[str] = []
        for day, day_s in self._days.items():
            for kind, rows in _day_tables(self.ledger, self.place, day_s).items():
                path = f"{kind}/{day}.parquet"
                file = self.folder / path
                file.parent.mkdir(exist_ok=True)
                rows.to_parquet(file, index=False, compression="zstd")
                is_published = path in not_compared
                difference = _compare_file(file, path, remote, state) if is_published else "grown"
                if difference == "same":
                    file.unlink()
                elif difference == "grown":
                    new.append(path)
                else:
                    repeated.append(path)
                not_compared.discard(path)
        if not_compared:
            count = plural(len(not_compared), "file")
            raise _rows_error(remote, f"{count} of which it has none: {listed(sorted(not_compared))}")
        if repeated and not self.is_repairing:
            raise PublishError(
                where=remote.name,
                rule="each row of the ledger is in the dataset once",
                got=f"rows more than once in {listed(repeated)}",
                fix="Send these days again: repeat the command with param:repair; no row that the ledger "
                "lacks is in them",
            )
        has_today = f"forecasts/{iso(self.now_s)[:10]}.parquet" in state.files
        self.paths = tuple(repeated) if has_today else (*new, *repeated)
        return self


def _rows_error(remote: RemoteRepo, got: str) -> PublishError:
    """Return the error for rows of the dataset that the ledger does not hold."""
    return PublishError(
        where=remote.name,
        rule="a record is only ever added to: the ledger holds every row that is there, unchanged",
        got=got,
        fix=f"Publish the ledger that wrote them, or begin another dataset with {remote.flag}",
    )


def _compare_file(file: Path, path: str, remote: RemoteRepo, state: RemoteState) -> str:
    """Compare the rows of a day with the published ones.

    Args:
        file: Our rows.
        path: Path of the file in the repository.
        remote: The repository.
        state: Its files.

    Returns:
        "same" if the rows are equal, "grown" if only some of ours are published, "repeated" if one was
        published more often than it is in ours.

    Raises:
        PublishError: If a published row is not in ours, or the published file is not such a table.
    """
    if is_listed(file, state.files[path]):
        return "same"
    rows = parquet.read_table(file)
    try:
        published = _published_rows(remote.text(path, state, MAX_UNPACKED_BYTES).read_bytes(), rows)
    except OddParquetError as odd:  # somebody replaced it
        raise _rows_error(remote, f"{odd}, in {path}") from odd
    num_here, num_published = _counted_rows(_widened(rows), published)
    num_unknown = int(num_published[num_here == 0].sum())
    if num_unknown:
        count = plural(len(published), "row")
        raise _rows_error(remote, f"{num_unknown:,} of {count} that it does not hold, in {path}")
    if (num_published > num_here).any():
        return "repeated"
    return "grown" if (num_published < num_here).any() else "same"


def _published_rows(content: bytes, rows: pa.Table) -> pa.Table:
    """Read the published rows of a day, with exactly the columns of ours.

    Args:
        content: The published file.
        rows: Our rows.

    Raises:
        OddParquetError: If it is not such a table, or too large to be compared.
    """
    text_columns = [column for column in rows.columns if pa.types.is_large_string(column.type)]
    text_columns += [column for column in rows.columns if pa.types.is_string(column.type)]
    most_text = longest_text(chunk for column in text_columns for chunk in column.chunks)
    schema = _widened(rows).schema
    try:
        file = ParquetContent(content)
        _require_bounded(file, schema, _MAX_COPIES * len(rows), MAX_UNPACKED_BYTES)
        table = file.read(schema.names)
        columns = [_cast_column(table[name], schema.field(name), most_text) for name in schema.names]
    except OddParquetError:
        raise
    except PARQUET_FAULTS as error:
        raise OddParquetError("a file without rows") from error
    return pa.Table.from_arrays(columns, schema=schema)


def _require_bounded(file: ParquetContent, schema: pa.Schema, most_rows: int, most_bytes: int) -> None:
    """Refuse a file by its footer alone: by the columns, rows and unpacked bytes that it states."""
    others = sorted({*file.schema.names} ^ {*schema.names})
    if others:
        raise OddParquetError(f"other columns: {listed(others)}")
    if len(file.schema.names) > len(schema.names):
        raise OddParquetError("a column twice")
    odd = [f"{field.type} in {field.name}" for field in file.schema if not is_plain(field.type)]
    if odd:
        raise OddParquetError(listed(odd))
    if file.num_rows > most_rows:
        raise OddParquetError(f"{file.num_rows:,} rows where at most {most_rows:,} are read")
    if file.num_bytes > most_bytes:
        raise OddParquetError(f"columns that unpack to {file.num_bytes:,} bytes")


def _cast_column(column: pa.ChunkedArray, field: pa.Field, most_text: int) -> pa.ChunkedArray:
    """Convert a column of another type if no information is lost; refuse a text of more bytes than ours."""
    is_dictionary = pa.types.is_dictionary(column.type)
    kind = column.type.value_type if is_dictionary else column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        length = longest_text(chunk.dictionary if is_dictionary else chunk for chunk in column.chunks)
        if length > most_text:
            raise OddParquetError(f"a text of {length:,} bytes in {field.name}")
    return column.cast(kind).cast(field.type)


def _widened(rows: pa.Table) -> pa.Table:
    """Convert columns to the widest type of their kind, and leave out the metadata of pandas."""
    fields = [pa.field(field.name, _widest_type(field.type)) for field in rows.schema]
    return rows.cast(pa.schema(fields))


def _widest_type(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(data_type):
        return pa.float64()
    if pa.types.is_integer(data_type):
        return pa.int64()
    if pa.types.is_timestamp(data_type):
        return pa.timestamp("us", tz="UTC")
    return pa.string()


def _counted_rows(rows: pa.Table, published: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count how often each distinct row is in each of two tables, two arrays of shape (rows,), int64."""
    both = pa.concat_tables([rows, published]).to_pandas()
    row_ids = both.groupby(list(both.columns), dropna=False, sort=False).ngroup().to_numpy()
    num_distinct = int(row_ids.max(initial=-1)) + 1
    return (
        np.bincount(row_ids[: len(rows)], minlength=num_distinct),
        np.bincount(row_ids[len(rows) :], minlength=num_distinct),
    )


def _day_tables(ledger: Ledger, place: Path | str, day_s: int) -> dict[str, pd.DataFrame]:
    """Return the forecasts for the closes of a day, and their scores, each if there are any."""
    pairs: list[tuple[Entry, Score | None]] = []
    for series in ledger.series(place):
        pairs += ledger.forecasts_of_day(place, series, day_s)
    tables: dict[str, list[pd.DataFrame]] = {"forecasts": [], "scores": []}
    for _, group in groupby(pairs, lambda pair: pair[0].issuer):
        issuer_pairs = list(group)
        tables["forecasts"].append(_forecast_rows([entry for entry, _ in issuer_pairs]))
        scored = [(entry, score) for entry, score in issuer_pairs if score]
        if scored:
            tables["scores"].append(_score_rows(scored))
    return {kind: pd.concat(frames) for kind, frames in tables.items() if frames}


def _forecast_rows(entries: Sequence[Entry]) -> pd.DataFrame:
    """Return the forecasts of one issuer, a row a forecast, forecaster and bar ahead."""
    issuer = entries[0].issuer
    by_task = issuer.split(np.stack([entry.values for entry in entries]))
    names = [name for columns in issuer.tasks.values() for name in columns]
    # Published datasets have the columns of these tasks, whether they are forecast or not.
    everywhere = [task for task in TASKS.values() if task.is_of_bars]
    absent = [name for task in everywhere for name in task.columns if name not in names]
    values = np.concatenate(list(by_task.values()), axis=-1).reshape(-1, len(names))
    rows = _day_rows(
        [(entry.issued_for_s, entry.written_s, entry.candles_digest) for entry in entries],
        ("issued_for", "written_at", "candles_digest"),
        {"forecaster": issuer.forecasters, "step": range(1, issuer.horizon_bars + 1)},
        pd.DataFrame(values, columns=names),
    )
    constants = {name: getattr(issuer, name) for name in _ISSUER_COLUMNS}
    constants |= dict.fromkeys(absent, np.float32("nan"))
    constants["open_time"] = rows["issued_for"] + pd.to_timedelta((rows["step"] - 1) * issuer.bar_s, unit="s")
    constants["trained_until"] = pd.Timestamp(issuer.trained_until_s, unit="s", tz="UTC")
    return rows.assign(**constants).astype({"revision": "str"})


def _score_rows(scored: Sequence[tuple[Entry, Score]]) -> pd.DataFrame:
    """Return the scores of one issuer, a row a forecast, forecaster and task; void ones hold no number."""
    issuer = scored[0][0].issuer
    void = np.full((len(issuer.forecasters), len(issuer.tasks)), np.nan)
    losses = [void if score.losses is None else score.losses for _, score in scored]
    rows = _day_rows(
        [(entry.issued_for_s, score.scored_s, score.actual_digest) for entry, score in scored],
        ("issued_for", "scored_at", "actual_digest"),
        {"forecaster": issuer.forecasters, "task": list(issuer.tasks)},
        pd.DataFrame({"loss": np.concatenate(losses).ravel()}),
    )
    return rows.assign(series=issuer.series).astype({"actual_digest": "str"})


def _day_rows(
    forecasts: Sequence[tuple[int, int, str | None]],
    names: Sequence[str],
    keys: Mapping[str, Sequence[Any]],
    values: pd.DataFrame,
) -> pd.DataFrame:
    """Put the columns that identify a row before its values.

    Args:
        forecasts: Two times, in seconds since the epoch, UTC, and a digest of each forecast.
        names: Column names of these three.
        keys: Further columns by name, and the values that each takes within a forecast.
        values: A row for each forecast and each combination of the keys, in this order.
    """
    columns = pd.DataFrame.from_records(list(forecasts), columns=list(names))
    times = {name: pd.to_datetime(columns[name], unit="s", utc=True) for name in names[:2]}
    columns = columns.assign(**times)
    combinations = pd.MultiIndex.from_product(list(keys.values()), names=list(keys))
    key_columns = combinations.to_frame(index=False)
    return pd.concat([columns.merge(key_columns, how="cross"), values], axis=1)


def dataset_card(repo: str, ledger: Ledger, place: Path | str) -> str:
    """Write the card of a record in Markdown, with the metadata that the Hub reads at its top."""
    record = live_record(ledger, place)
    board = live_board(ledger, place)
    counts = record.counts
    kinds = ["forecasts", "scores"] if counts.num_pending < counts.num_issued else ["forecasts"]
    configs = [f"- config_name: {kind}\n  data_files: {kind}/*.parquet" for kind in kinds]
    models = ""
    if isinstance(place, str):
        models = f" by the models of [{place}]({hub_endpoint()}/{place})"
    return packaged("v8.annexes.live", "dataset.md").format(
        configs="\n".join(configs),
        repo=repo,
        models=models,
        table=record_table(record).markdown(),
        board=f"\n{_BOARD_HEADING}\n\n{board_markdown(board)}\n" if len(board) else "",
        sentences="\n".join(f"- {sentence}" for sentence in record_sentences(record)),
    )


def publish_record(ledger: Path, place: Path | str, repo: str, *, is_repairing: bool = False) -> None:
    """Publish the live record of a place as a dataset, and print to standard error what was sent.

    Args:
        ledger: The database of forecasts.
        place: Of the models: a run folder, or a repository on the Hub.
        repo: The dataset on the Hub, USER/NAME.
        is_repairing: Send the days again of which rows were published more than once.

    Raises:
        PublishError: If it cannot be published, if there are such days and they are not repaired, or the
            ledger lacks a row that was published.
    """
    check_repo_name(repo, "--publish")
    with Ledger.open(ledger) as opened_ledger, passing_folder("v8-record") as folder:
        staged = LedgerDataset(folder, repo, opened_ledger, place, int(time.time()), is_repairing)
        published = publish_staged(staged, repo, print_message)
    if published.sent:
        print_message(f"Published: {published.url}")
    else:
        print_message(f"Nothing was sent: {published.url} has closes of today, or all that there is.")
