"""Publishes the present to the Hub: the live record as a dataset, and the page as a Space.

A ledger becomes an append-only dataset:

    README.md                       the record so far, compared with naive and the best baseline
    forecasts/2026-11-23.parquet    forecasts for the closes of a day: a row a forecaster and bar ahead
    scores/2026-11-23.parquet       their scores: a row a forecaster and task

Each published row must be in the ledger unchanged, and not more often there than in the ledger, or nothing is
sent. Files are compared by the id that the Hub lists, and files that differ are compared row by row. A day
with rows that were published twice is sent again only on request (`is_repairing`). There is one commit a day:
if closes of today are published already, forecasts written since are sent tomorrow. The dataset holds neither
actual values nor candles; with the candles of the digests anybody can compute the scores again.

A Space is an application that shows published models:

    README.md           settings of the Space for the Hub, and a description
    LICENSE             of the package
    Dockerfile          this version of Python, the pinned packages, the command that serves the page
    requirements.txt    every package that the page needs, at the version that is installed here
    v8/...              the package itself, because it is on no public index

The same v8 in the same environment gives the same bytes: no file contains the current time. A Space that
holds files that neither the Hub nor v8 has put there is refused. Files below `v8/` that were published before
and are not needed any more are removed in the same commit.
"""

import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pyarrow import parquet

from v8.annexes.live.ledger.database import Ledger
from v8.annexes.live.ledger.entries import Entry, Score
from v8.annexes.live.ledger.printing import record_sentences, record_table
from v8.annexes.live.ledger.record import live_board, live_record
from v8.api.board import board_markdown
from v8.base.errors import PublishError, listed
from v8.base.storage import packaged, passing_folder, write_bytes, write_text
from v8.base.terminal import print_message
from v8.base.version import VERSION
from v8.base.wording import plural
from v8.cli.shared import publish_staged
from v8.data.market.series import iso
from v8.data.market.sources import SOURCES, present_source
from v8.data.market.sources.tables import PARQUET_FAULTS, ParquetContent, is_plain, longest_text
from v8.forecaster.model_file import MAX_UNPACKED_BYTES
from v8.profile.profile import config_path
from v8.profile.tasks import TASKS
from v8.publish.hub import hub_endpoint
from v8.publish.hub.client import check_repo_name, is_listed
from v8.publish.hub.places import CARD_FILE
from v8.publish.hub.publish import Publication, RemoteRepo, RemoteState
from v8.publish.hub.pull import pull

_DAY_FILE: Final = re.compile(r"(forecasts|scores)/[0-9]{4}-[0-9]{2}-[0-9]{2}\.parquet")
_MAX_COPIES: Final = 8  # a published file with more than so many times the rows of ours is not read
_BOARD_HEADING: Final = "## All forecasters on one board"
_ISSUER_COLUMNS: Final = ("series", "profile", "profile_digest", "model_sha256", "revision", "source")

SPACE_PORT: Final = 7860  # on which a Space listens
SPACE_SOURCE: Final = "live"  # candle source of a Space
SPACE_PACKAGE_FOLDER: Final = "v8"  # all files below it are published by v8
SPACE_DISTRIBUTION: Final = ("v8-forecasters", "app")
"""The name under which v8 is installed, and the extra that the page needs."""

_LINUX: Final = {
    "os_name": "posix",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
}
"""Markers of the system of a Space; the system that publishes it may be another one."""


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
    place: Path | str  # of models, see `v8.annexes.live.ledger.entries.place_name`
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
    rows = _rows(
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
    rows = _rows(
        [(entry.issued_for_s, score.scored_s, score.actual_digest) for entry, score in scored],
        ("issued_for", "scored_at", "actual_digest"),
        {"forecaster": issuer.forecasters, "task": list(issuer.tasks)},
        pd.DataFrame({"loss": np.concatenate(losses).ravel()}),
    )
    return rows.assign(series=issuer.series).astype({"actual_digest": "str"})


def _rows(
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
    return packaged("v8.annexes.live.ledger", "dataset.md").format(
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
    unsent = f"Nothing was sent: {published.url} has closes of today, or all that there is."
    print_message(f"Published: {published.url}" if published.sent else unsent)


@dataclass(frozen=True)
class StagedSpace(Publication):
    """The files of a Space."""

    kind = "space"
    flag = "param:space"
    ordinary = frozenset({".gitattributes", "README.md", "LICENSE"})
    marker = f"{SPACE_PACKAGE_FOLDER}/__main__.py"
    rule = "a page goes into a new Space, or one that v8 published"

    folder: Path
    paths: tuple[str, ...]
    title: str

    def is_removed(self, path: str) -> bool:
        """Return whether a file belongs to the package that was published before."""
        return path.startswith(f"{SPACE_PACKAGE_FOLDER}/")


def stage_space(folder: Path, space: str, repo: str) -> StagedSpace:
    """Write the files of the Space of published models into an empty folder.

    Args:
        folder: The empty folder.
        space: `user/name` of the Space.
        repo: `user/name` of the repository with the models.

    Raises:
        PublishError: If a package that the page needs is not installed here, so that its version is unknown.
        PullError: If this user can read no published models in `repo`.
    """
    published = pull(repo, ()).manifest
    sources = sorted({present_source(span.source) for span in published.data.values()})
    # Candles of the present: those of the market that the models were trained on, where a source has them.
    source = next(
        (name for name in sources if name in {kind.present for kind in SOURCES.values()}), SPACE_SOURCE
    )
    python = ".".join(map(str, sys.version_info[:2]))
    values = {
        "repo": repo,
        "port": SPACE_PORT,
        "source": source,
        "python": python,
        "version": VERSION,
        "title": space.partition("/")[2],
        "page": f"{hub_endpoint()}/{repo}",
    }
    for name in ("Dockerfile", "LICENSE", "README.md"):
        write_text(folder / name, packaged("v8.annexes.live.app", f"space.{name}").format(**values))
    package_name, extra = SPACE_DISTRIBUTION
    write_text(folder / "requirements.txt", "\n".join(pinned(package_name, extra)) + "\n")
    package = Path(__file__).parents[2]
    for file in sorted(file for file in package.rglob("*") if file.is_file() and file.suffix != ".pyc"):
        write_bytes(folder / SPACE_PACKAGE_FOLDER / file.relative_to(package), file.read_bytes())
    for file in sorted(config_path("universe").parent.glob("*.yaml")):
        write_bytes(folder / SPACE_PACKAGE_FOLDER / "configs" / file.name, file.read_bytes())
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return StagedSpace(folder, tuple(paths), f"Publish the page of {repo}")


def pinned(package: str, extra: str) -> list[str]:
    """Pin all packages that a package with an extra needs on Linux, at the versions that are installed here.

    Returns:
        Lines `name==version`, sorted by name, without the package itself.

    Raises:
        PublishError: If the package, or one that it needs directly, is not installed.
    """
    versions: dict[str, str] = {}
    pending = [_Dependency(package, extra, is_direct=True)]
    visited: set[_Dependency] = set()
    while pending:
        dependency = pending.pop()
        if dependency in visited:
            continue
        visited.add(dependency)
        name = dependency.name
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if not dependency.is_direct:
                continue  # a package for Linux only, and this system is another: pip will choose its version
            raise PublishError(
                where="param:space",
                rule="pins what the page needs at the versions that are installed here",
                got=f"no package {name}",
                fix="Install v8 with its extra app: python -m pip install '/path/to/checkout[app]'",
            ) from None
        versions[name] = Version(distribution.version).public
        for needed_name, needed_extra in _requirements(distribution.requires or (), dependency.extra):
            pending.append(_Dependency(needed_name, needed_extra, is_direct=name == package))
    return [f"{name}=={versions[name]}" for name in sorted(versions) if name != package]


@dataclass(frozen=True)
class _Dependency:
    """A package that is needed, with one of its extras, "" for none."""

    name: str
    extra: str
    is_direct: bool  # whether it is the package itself, or one that the package needs directly


def _requirements(lines: Iterable[str], extra: str) -> Iterator[tuple[str, str]]:
    """Yield name and extra of what a package needs on Linux: once without extra, and once for each extra."""
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({**_LINUX, "extra": extra}):
            for needed_extra in ("", *requirement.extras):
                yield canonicalize_name(requirement.name), needed_extra
