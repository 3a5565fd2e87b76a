"""What reports read from the `metadata.json` of a finished series, checked once and named.

Reports need these keys; others may stand beside them:

    series                              "BTCUSDT-15m"
    is_demo_market                      true when the candles were simulated
    candles.source                      name of the candle source
    candles.report                      counts of what was read, repaired and dropped
    split                               train, validation, test: rows, first_open, last_open, num_windows
    training.best_epoch, .epochs_run    epochs; best epoch 0 is the untrained network
    seconds                             wall time per stage, in seconds
    judgement                           `v8.losses.judgement.Judgement.to_json`
    quantiles                           `v8.losses.quantile_judgement.QuantileJudgement.to_json`, or none
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AliasPath, Field, StrictBool, TypeAdapter

from v8.errors import ArtifactError
from v8.losses.judgement import Judgement
from v8.losses.quantile_judgement import QuantileJudgement
from v8.records import MAX_SIZE, Count, Seconds, Text, checked, read_plain

History = Sequence[Mapping[str, float]]
"""One record per epoch with at least `epoch`, `train_loss` and `validation_loss`."""

_HISTORY_COLUMNS = ("epoch", "train_loss", "validation_loss")
_FIX: Final = "Restore the file or train the series again"


def _at(*path: str) -> Any:
    """Say under which keys, one within the other, a value stands in its file."""
    return Field(validation_alias=AliasPath(*path))


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
        quantiles: How its quantiles did; None where it has none.
    """

    series: Text
    source: Annotated[Text, _at("candles", "source")]
    is_demo: Annotated[StrictBool, _at("is_demo_market")]
    best_epoch: Annotated[Count, _at("training", "best_epoch")]
    epochs_run: Annotated[Count, _at("training", "epochs_run")]
    seconds: Mapping[str, Seconds]
    judgement: Judgement
    split: Mapping[str, Any]
    candle_report: Annotated[Mapping[str, Any], _at("candles", "report")]
    quantiles: QuantileJudgement | None = None

    @property
    def total_seconds(self) -> float:
        """Wall time over all stages, in seconds."""
        return math.fsum(self.seconds.values())


_RESULT: Final = TypeAdapter(SeriesResult)


def read_results(metadata: Iterable[Mapping[str, Any]]) -> list[SeriesResult]:
    """Read the metadata of finished series, each as `metadata.json` holds it, in the order given.

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
    """Read the `history.csv` of a series, as `v8.artifacts.series_artifact` writes it.

    Returns:
        One record per epoch: `epoch`, and the unitless scaled losses `train_loss`, `validation_loss`.

    Raises:
        ArtifactError: If the file is missing, lacks a column or holds anything but finite numbers.
    """
    try:
        lines = io.StringIO(read_plain(file, fix=_FIX).decode("utf-8"), newline="")
        table = csv.DictReader(lines)
        if missing := [name for name in _HISTORY_COLUMNS if name not in (table.fieldnames or ())]:
            raise KeyError(missing[0])
        rows = [{name: float(row[name]) for name in _HISTORY_COLUMNS} for row in table]
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        raise _bad_history(file, f"{type(error).__name__}: {error}") from error
    if not all(math.isfinite(value) for row in rows for value in row.values()):
        raise _bad_history(file, "a number that is not finite")
    if not all(abs(value) <= MAX_SIZE for row in rows for value in row.values()):
        raise _bad_history(file, f"a number beyond {MAX_SIZE:g}")
    return rows


def _read_result(content: Mapping[str, Any]) -> SeriesResult:
    where = f"metadata of {content.get('series', 'a series')}"
    if "judgement" in content:
        judged = Judgement.from_json(content["judgement"], where=f"{where}, key judgement")
        content = {**content, "judgement": judged}
    if "quantiles" in content:
        spread = QuantileJudgement.from_json(content["quantiles"], where=f"{where}, key quantiles")
        content = {**content, "quantiles": spread}
    return checked(_RESULT, content, where=where, fix=_FIX)


def _bad_history(file: Path, got: str) -> ArtifactError:
    rule = f"must be CSV with the numbers {', '.join(_HISTORY_COLUMNS)}"
    return ArtifactError(where=str(file), rule=rule, got=got, fix=_FIX)
