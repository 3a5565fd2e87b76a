"""What reports read from the `metadata.json` of a finished series, checked once and named.

Reports need these keys; others may stand beside them:

    series                              "BTCUSDT-15m"
    is_demo_market                      true when the candles were simulated
    candles.source                      name of the candle source
    candles.report                      counts of what was read, repaired and dropped
    split                               train, validation, test: rows, first_open, last_open, num_windows
    training.best_epoch, .epochs_run    epochs; best epoch 0 is the untrained network
    seconds                             wall time per stage, in seconds
    judgement                           `v8.evaluation.judgement.Judgement.to_json`

and these of the `run.json` of the run:

    profile.name, profile_digest        what was trained
    source, is_publishable              where the candles came from; not publishable: simulated
    command, created_at                 how and when the run was started
    versions, machine                   what it ran on
    series                              per series: status and, when it failed, the reason
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from v8.errors import ArtifactError
from v8.evaluation.judgement import Judgement

History = Sequence[Mapping[str, float]]
"""One record per epoch with at least `epoch`, `train_loss` and `validation_loss`."""

_HISTORY_COLUMNS = ("epoch", "train_loss", "validation_loss")


@dataclass(frozen=True)
class SeriesResult:
    """One finished series, as reports show it.

    Args:
        series: Its name, "BTCUSDT-15m".
        source: Name of the candle source.
        is_demo: Whether the market was simulated.
        best_epoch: Epoch whose weights were kept, from 1; 0 is the untrained network.
        epochs_run: Epochs trained.
        seconds: Wall time per stage, in seconds.
        judgement: Errors beside the baselines.
        split: Spans of the table, as `SeriesData.describe_split` writes them.
        candle_report: Counts, as `CandleReport.to_json` writes them.
    """

    series: str
    source: str
    is_demo: bool
    best_epoch: int
    epochs_run: int
    seconds: Mapping[str, float]
    judgement: Judgement
    split: Mapping[str, Any]
    candle_report: Mapping[str, Any]

    @property
    def total_seconds(self) -> float:
        """Wall time over all stages, in seconds."""
        return math.fsum(self.seconds.values())


@dataclass(frozen=True)
class RunFacts:
    """One run, as reports show it.

    Args:
        profile_name: Name of the profile.
        profile_digest: Its sha256, 64 hex digits.
        source: Name of the candle source.
        is_demo: Whether the market was simulated.
        command: The command line that started it.
        created_at: When, ISO 8601 in UTC.
        versions: Versions of what can change a result.
        machine: Processor, cores, memory.
        statuses: Per series: `pending`, `running`, `done` or `failed`.
        reasons: Per failed series: why, in one sentence.
    """

    profile_name: str
    profile_digest: str
    source: str
    is_demo: bool
    command: str
    created_at: str
    versions: Mapping[str, Any]
    machine: Mapping[str, Any]
    statuses: Mapping[str, str]
    reasons: Mapping[str, str]


def read_run_facts(run: Mapping[str, Any]) -> RunFacts:
    """Read the content of `run.json`.

    Raises:
        ArtifactError: If a key is missing or of another kind.
    """
    where = "run.json"
    states = _read(run, "series", dict, where=where)
    statuses = {name: _read(state, "status", str, where=f"{where}, {name}") for name, state in states.items()}
    failed = [name for name, status in statuses.items() if status == "failed"]
    return RunFacts(
        profile_name=_read(run, "profile.name", str, where=where),
        profile_digest=_read(run, "profile_digest", str, where=where),
        source=_read(run, "source", str, where=where),
        is_demo=not _read(run, "is_publishable", bool, where=where),
        command=_read(run, "command", str, where=where),
        created_at=_read(run, "created_at", str, where=where),
        versions=_read(run, "versions", dict, where=where),
        machine=_read(run, "machine", dict, where=where),
        statuses=statuses,
        reasons={name: _read(states[name], "reason", str, where=f"{where}, {name}") for name in failed},
    )


def read_results(metadata: Iterable[Mapping[str, Any]]) -> list[SeriesResult]:
    """Read the metadata of finished series.

    Args:
        metadata: One mapping per series, as `metadata.json` holds it.

    Returns:
        Results in the order given.

    Raises:
        ArtifactError: If a key is missing or of another kind, or a series comes twice.
    """
    results = [_read_result(content) for content in metadata]
    names = [result.series for result in results]
    for name in names:
        if names.count(name) > 1:
            raise ArtifactError(
                where=f"metadata of {name}",
                rule="a run has each series once",
                got=f"{names.count(name)} of them",
                fix="Report on the folders of one run",
            )
    return results


def read_history(file: Path) -> list[dict[str, float]]:
    """Read the `history.csv` of a series for its learning curve.

    Args:
        file: Written by `v8.artifacts.series_artifact`.

    Returns:
        One record per epoch: `epoch`, and the unitless scaled losses `train_loss`, `validation_loss`.

    Raises:
        ArtifactError: If the file is missing, lacks a column or holds anything but finite numbers.
    """
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            rows = [{name: float(row[name]) for name in _HISTORY_COLUMNS} for row in csv.DictReader(stream)]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise _bad_history(file, f"{type(error).__name__}: {error}") from error
    if not all(math.isfinite(value) for row in rows for value in row.values()):
        raise _bad_history(file, "a number that is not finite")
    return rows


def _read_result(content: Mapping[str, Any]) -> SeriesResult:
    series = _read(content, "series", str, where="metadata of a series")
    where = f"metadata of {series}"
    return SeriesResult(
        series=series,
        source=_read(content, "candles.source", str, where=where),
        is_demo=_read(content, "is_demo_market", bool, where=where),
        best_epoch=_read(content, "training.best_epoch", int, where=where),
        epochs_run=_read(content, "training.epochs_run", int, where=where),
        seconds=_read_seconds(content, where),
        judgement=Judgement.from_json(
            _read(content, "judgement", dict, where=where), where=f"{where}, key judgement"
        ),
        split=_read(content, "split", dict, where=where),
        candle_report=_read(content, "candles.report", dict, where=where),
    )


def _read_seconds(content: Mapping[str, Any], where: str) -> dict[str, float]:
    seconds = _read(content, "seconds", dict, where=where)
    for stage, value in seconds.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < math.inf:
            raise ArtifactError(
                where=f"{where}, key seconds.{stage}",
                rule="must be a number of seconds, 0 or above",
                got=repr(value),
                fix="Restore the file or train the series again",
            )
    return {str(stage): float(value) for stage, value in seconds.items()}


def _read(content: Mapping[str, Any], key: str, kind: type, *, where: str) -> Any:
    value: Any = content
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    # bool is an int to Python, but true is no number of epochs.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ArtifactError(
            where=f"{where}, key {key}",
            rule=f"must be of the kind {kind.__name__}",
            got="no such key" if value is None else repr(value)[:120],
            fix="Restore the file or train the series again",
        )
    return value


def _bad_history(file: Path, got: str) -> ArtifactError:
    return ArtifactError(
        where=str(file),
        rule=f"must be CSV with the numbers {', '.join(_HISTORY_COLUMNS)}",
        got=got,
        fix="Restore the file or train the series again",
    )
