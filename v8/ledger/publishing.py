"""Publishing the live record: a ledger as a dataset on the Hub, which is only ever added to.

    README.md                       what the record says so far, beside naive and the best baseline
    forecasts/2026-11-23.parquet    what was issued for the closes of a day: a row a forecaster and bar ahead
    scores/2026-11-23.parquet       what came of it: a row a forecaster and task

Each row that stands there must be in the ledger as it is, and no more often, or nothing is sent: files are
compared by the id that the Hub lists, and those that differ row by row. A day of which rows stand there twice
is sent again where that is asked for. There is one commit a day: where closes of today stand already, what
was written since waits for tomorrow's. Neither the actual values nor a candle is in it: whoever has the candles of
the digests can score it anew.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from v8.artifacts.model_file import MAX_UNPACKED_BYTES
from v8.errors import PublishError, listed
from v8.hub import hub_endpoint
from v8.hub.client import is_listed
from v8.hub.layout import CARD_FILE
from v8.hub.publish import Publication, RemoteRepo, RemoteState
from v8.ledger.database import Ledger
from v8.ledger.entries import Entry, Score
from v8.ledger.record import live_record, record_sentences, record_table
from v8.market.series import iso
from v8.parquet import OddParquetError, longest_text, read_as
from v8.storage import packaged, write_text
from v8.tasks import TASKS
from v8.wording import plural

_DAY_FILE: Final = re.compile(r"(forecasts|scores)/[0-9]{4}-[0-9]{2}-[0-9]{2}\.parquet")
_MOST_COPIES: Final = 8  # a file of more rows than so many times ours is not read
_ABOUT: Final = ("series", "profile", "profile_digest", "model_sha256", "revision", "source")


@dataclass
class LedgerDataset(Publication):
    """The forecasts of a place, and what came of them, in a folder; making one writes the card.

    Raises `ArtifactError` if the ledger is damaged.
    """

    kind = "dataset"
    flag = "param:publish"
    ordinary = frozenset({".gitattributes", CARD_FILE, "LICENSE", "LICENSE.md"})
    rule = "a record goes into a new dataset, or one that holds the beginning of it"

    folder: Path  # where
    repo: str  # where to, `user/name`
    ledger: Ledger  # open, with forecasts of the place
    place: Path | str  # of models, see `v8.ledger.database.place_name`
    now_s: int  # the present, seconds since the epoch, UTC
    is_repairing: bool = False  # whether to send days again of which rows stand there more than once
    paths: tuple[str, ...] = field(default=(), init=False)  # of the files that are to be sent

    def __post_init__(self) -> None:
        self._days = {iso(day_s)[:10]: day_s for day_s in self.ledger.days(self.place)}
        self.marker, self.title = f"forecasts/{min(self._days)}.parquet", f"Forecasts up to {max(self._days)}"
        write_text(self.folder / CARD_FILE, dataset_card(self.repo, self.ledger, self.place))

    def merged(self, remote: RemoteRepo, seen: RemoteState) -> "LedgerDataset":
        """Find out what is to be added, and which days are to be sent again.

        Raises `PublishError` if the ledger lacks a row that stands there, or one stands there more often than
        in the ledger and nothing is to be repaired.
        """
        self.require_ours(remote, seen)
        there = {path for path in seen.files if _DAY_FILE.fullmatch(path)}
        new = [CARD_FILE]
        repeated: list[str] = []
        for day, day_s in self._days.items():
            for kind, rows in _tables(self.ledger, self.place, day_s).items():
                path = f"{kind}/{day}.parquet"
                file = self.folder / path
                file.parent.mkdir(exist_ok=True)
                rows.to_parquet(file, index=False, compression="zstd")
                state = _state_of(file, path, remote, seen) if path in there else "grown"
                if state == "same":
                    file.unlink()
                elif state == "grown":
                    new.append(path)
                else:
                    repeated.append(path)
                there.discard(path)
        if there:
            got = f"{plural(len(there), 'file')} of which it has none: {listed(sorted(there))}"
            raise _rows_error(remote, got)
        if repeated and not self.is_repairing:
            raise PublishError(
                where=remote.name,
                rule="each row of the ledger stands in the dataset once",
                got=f"rows more than once in {listed(repeated)}",
                fix="Send these days again: repeat the command with param:repair; no row that the ledger "
                "lacks is in them",
            )
        is_made = f"forecasts/{iso(self.now_s)[:10]}.parquet" in seen.files
        self.paths = tuple(repeated) if is_made else (*new, *repeated)
        return self


def _rows_error(remote: RemoteRepo, got: str) -> PublishError:
    """Return the error for rows of the dataset that the ledger does not hold."""
    return PublishError(
        where=remote.name,
        rule="a record is only ever added to: the ledger holds every row that stands there, as it is",
        got=got,
        fix=f"Publish the ledger that wrote them, or begin another dataset with {remote.flag}",
    )


def _state_of(file: Path, path: str, remote: RemoteRepo, seen: RemoteState) -> str:
    """Compare the rows of a day with those that stand in the repository.

    Returns:
        "same" if these are the rows, "grown" if some of them stand there, "repeated" if one stands there
        more often than here.

    Raises:
        PublishError: If a row stands there that is not here, or what stands there is no table of such rows.
    """
    if is_listed(file, seen.files[path]):
        return "same"
    ours = parquet.read_table(file)
    try:
        theirs = _published_rows(remote.text(path, seen, MAX_UNPACKED_BYTES).read_bytes(), ours)
    except OddParquetError as odd:  # somebody replaced it
        raise _rows_error(remote, f"{odd}, in {path}") from odd
    num_ours, num_theirs = _counted_rows(_widened(ours), theirs)
    num_strange = int(num_theirs[num_ours == 0].sum())
    if num_strange:
        got = f"{num_strange:,} of {plural(len(theirs), 'row')} that it does not hold, in {path}"
        raise _rows_error(remote, got)
    if (num_theirs > num_ours).any():
        return "repeated"
    return "grown" if (num_theirs < num_ours).any() else "same"


def _published_rows(content: bytes, ours: pa.Table) -> pa.Table:
    """Read the rows of a day that stand in the repository, of the columns of ours.

    Raises `OddParquetError` if it is not such a table, or so large that it cannot be compared.
    """
    texts = [column for column in ours.columns if pa.types.is_large_string(column.type)]
    texts += [column for column in ours.columns if pa.types.is_string(column.type)]
    return read_as(
        content,
        _widened(ours).schema,
        most_rows=_MOST_COPIES * len(ours),
        most_bytes=MAX_UNPACKED_BYTES,
        most_text=longest_text(chunk for column in texts for chunk in column.chunks),
    )


def _widened(rows: pa.Table) -> pa.Table:
    """Convert columns to the widest type of their kind, and leave out what pandas says of them."""
    fields = [pa.field(field.name, _widest(field.type)) for field in rows.schema]
    return rows.cast(pa.schema(fields))


def _widest(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    return pa.string()


def _counted_rows(ours: pa.Table, theirs: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count how often each different row stands in two tables, each array of shape (rows,), int64."""
    both = pa.concat_tables([ours, theirs]).to_pandas()
    row_ids = both.groupby(list(both.columns), dropna=False, sort=False).ngroup().to_numpy()
    num_rows = int(row_ids.max(initial=-1)) + 1
    return (
        np.bincount(row_ids[: len(ours)], minlength=num_rows),
        np.bincount(row_ids[len(ours) :], minlength=num_rows),
    )


def _tables(ledger: Ledger, place: Path | str, day_s: int) -> dict[str, pd.DataFrame]:
    """Return what was issued for the closes of a day, and what came of it, where there is any."""
    written = [one for series in ledger.series(place) for one in ledger.of_day(place, series, day_s)]
    tables: dict[str, list[pd.DataFrame]] = {"forecasts": [], "scores": []}
    for _, those in groupby(written, lambda one: one[0].issuer):
        pairs = [*those]
        tables["forecasts"].append(_forecast_rows([entry for entry, _ in pairs]))
        scored = [(entry, score) for entry, score in pairs if score]
        if scored:
            tables["scores"].append(_score_rows(scored))
    return {kind: pd.concat(frames) for kind, frames in tables.items() if frames}


def _forecast_rows(entries: Sequence[Entry]) -> pd.DataFrame:
    """Write what one issuer forecast."""
    issuer = entries[0].issuer
    by_task = issuer.split(np.stack([entry.values for entry in entries]))
    names = [name for columns in issuer.tasks.values() for name in columns]
    absent = [name for task in TASKS.values() for name in task.columns if name not in names]
    rows = _rows(
        [(entry.issued_for_s, entry.written_s, entry.candles_digest) for entry in entries],
        ("issued_for", "written_at", "candles_digest"),
        {"forecaster": issuer.forecasters, "step": range(1, issuer.horizon_bars + 1)},
        pd.DataFrame(np.concatenate([*by_task.values()], axis=-1).reshape(-1, len(names)), columns=names),
    )
    about = {key: getattr(issuer, key) for key in _ABOUT} | dict.fromkeys(absent, np.float32("nan"))
    opens = rows["issued_for"] + pd.to_timedelta((rows["step"] - 1) * issuer.bar_s, unit="s")
    seen = pd.Timestamp(issuer.trained_until_s, unit="s", tz="UTC")
    return rows.assign(**about, open_time=opens, trained_until=seen).astype({"revision": "str"})


def _score_rows(scored: Sequence[tuple[Entry, Score]]) -> pd.DataFrame:
    """Write what came of forecasts of one issuer; no number where a candle never came."""
    issuer = scored[0][0].issuer
    void = np.full((len(issuer.forecasters), len(issuer.tasks)), np.nan)
    losses = [void if score.losses is None else score.losses for _, score in scored]
    rows = _rows(
        [(entry.issued_for_s, score.scored_s, score.actual_digest) for entry, score in scored],
        ("issued_for", "scored_at", "actual_digest"),
        {"forecaster": issuer.forecasters, "task": [*issuer.tasks]},
        pd.DataFrame({"loss": np.concatenate(losses).ravel()}),
    )
    return rows.assign(series=issuer.series).astype({"actual_digest": "str"})


def _rows(
    facts: Sequence[tuple[int, int, str | None]],
    names: Sequence[str],
    keys: Mapping[str, Sequence[Any]],
    values: pd.DataFrame,
) -> pd.DataFrame:
    """Put two times and a digest of each forecast, and keys, before the values, which are in that order."""
    each = pd.DataFrame.from_records([*facts], columns=[*names])
    each = each.assign(**{name: pd.to_datetime(each[name], unit="s", utc=True) for name in names[:2]})
    keyed = pd.MultiIndex.from_product([*keys.values()], names=[*keys]).to_frame(index=False)
    return pd.concat([each.merge(keyed, how="cross"), values], axis=1)


def dataset_card(repo: str, ledger: Ledger, place: Path | str) -> str:
    """Write the card of a record in Markdown, with what the Hub reads of it above."""
    record = live_record(ledger, place)
    kinds = ("forecasts", "scores") if record.tally.num_pending < record.tally.num_issued else ("forecasts",)
    return packaged("v8.ledger", "dataset.md").format(
        configs="\n".join(f"- config_name: {kind}\n  data_files: {kind}/*.parquet" for kind in kinds),
        repo=repo,
        models=f" by the models of [{place}]({hub_endpoint()}/{place})" if isinstance(place, str) else "",
        table=record_table(record).markdown(),
        sentences="\n".join(f"- {sentence}" for sentence in record_sentences(record)),
    )
