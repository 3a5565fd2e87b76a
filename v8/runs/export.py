"""Every forecast of test spans in one table: what was forecast, when it could be used first, and what came.

A run keeps a sample of them only. So its models forecast anew, from candles with the digest that they were
made from, in the batches in which they were judged: to the same bits on the same machine. A back-test gives
the test spans of all folds, which overlap, any other place the test span of each model that serves.

A row is one bar ahead. Its `issued_at` is the close of the newest candle that the forecast knows: nobody can
use it before, and whoever joins it to what comes from then on sees no future. Beside each column, such as
`close`, stand its quantiles (`close_q5`), what came (`close_truth`) and the naive forecast (`close_naive`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from v8.artifacts.forecaster import Forecaster
from v8.artifacts.nested_runs import PLAN_FILE, read_plan
from v8.artifacts.run_folder import pin_of
from v8.errors import ArtifactError, DataError, listed
from v8.features.table import compute_table
from v8.hub.opening import open_place
from v8.market.candles import Candles
from v8.market.companions import Companions
from v8.market.sources.source import CandleSource
from v8.net import counted
from v8.own_files import FORECASTS_KEY
from v8.storage import write_with
from v8.tasks import TASKS
from v8.windows.dataset import split_rows, table_columns, window_anchors
from v8.windows.span import Span


def write_forecasts(
    place: Path,
    file: Path,
    *,
    form: str,
    open_source: Callable[[str], CandleSource],
    names: Sequence[str] = (),
) -> int:
    """Write every forecast of the test spans of a place into a file, and return how many rows that are.

    Args:
        place: A folder of a run, of a back-test, or of models that were pulled.
        file: Where to; it is replaced.
        form: `parquet` or `csv`.
        open_source: Opens the source of candles that a model tells by name.
        names: Series that are meant; all of the place when there are none.

    Raises:
        ArtifactError: If a model is not there or cannot be trusted.
        DataError: If the source has other candles than those that a model was made from.
    """
    num_rows = 0

    def write(aside: Path) -> None:
        nonlocal num_rows
        writer: Any = None
        with ExitStack() as opened:
            for fold, forecaster, candles in opened_models(place, open_source, names):
                frame = forecast_test_span(forecaster, candles)
                frame.insert(0, "series", str(forecaster.series))
                frame.insert(1, "fold", fold)
                if form == "csv":
                    frame.to_csv(aside, mode="a", header=not num_rows, index=False, lineterminator="\n")
                else:
                    table = pa.Table.from_pandas(frame, preserve_index=False)
                    table = table.replace_schema_metadata({**table.schema.metadata, FORECASTS_KEY: "1"})
                    writer = writer or opened.enter_context(parquet.ParquetWriter(aside, table.schema))
                    writer.write_table(table)
                num_rows += len(frame)

    write_with(file, write)
    return num_rows


def opened_models(
    place: Path, open_source: Callable[[str], CandleSource], names: Sequence[str] = ()
) -> Iterator[tuple[int, Forecaster, Candles]]:
    """Open the models of a place, or of some series of it, with the candles that they were made from.

    The folds of a back-test count from 1, any other place is 0; `open_source` opens a source by its name.

    Raises:
        ArtifactError: If a model is not there or cannot be trusted.
        DataError: If the source has other candles than those that a model was made from.
    """
    opened = cache(open_source)
    folders = {0: place}
    if (place / PLAN_FILE).exists():
        folders = {fold.number: place / fold.folder for fold in read_plan(place).folds}
    places = {number: open_place(folder) for number, folder in folders.items()}
    found = [(number, models, name) for number, models in places.items() for name in models.series]
    if missing := {*names} - {name for *_, name in found}:
        rule, fix = "must have a finished model of every series that is named", "Train it first"
        raise ArtifactError(where=str(place), rule=rule, got=f"none of {listed(sorted(missing))}", fix=fix)
    wanted = [one for one in found if not names or one[2] in names]
    for number, models, name in counted(wanted, "Forecasting test spans"):
        forecaster = models.open(name)
        yield number, forecaster, _candles_of(forecaster, opened(forecaster.about.candles.source))


def _candles_of(forecaster: Forecaster, source: CandleSource) -> Candles:
    about, profile = forecaster.about, forecaster.about.trained_profile
    last_s = about.candles.last_open_s
    candles = Companions.of(profile).candles(source, forecaster.series, profile.newest_bars, last_s)
    if (found := pin_of(candles)).digest != about.candles.digest:
        where, rule = str(forecaster.series), f"its model was made from {about.candles}"
        fix = "Name where these are: param:source, param:data_dir, param:tables"
        raise DataError(where=where, rule=rule, got=str(found), fix=fix)
    return candles


def forecast_test_span(forecaster: Forecaster, candles: Candles) -> pd.DataFrame:
    """Return what a model forecasts of its test span, as the module says, without series and fold."""
    about, profile = forecaster.about, forecaster.about.trained_profile
    table = compute_table(candles, table_columns(profile))
    rows = split_rows(len(table), profile, where=about.series)["test"]
    anchors = window_anchors(table.segment, rows, profile.lookback_bars, profile.horizon_bars)
    frame, span = forecaster.forecast_after(table, anchors), Span(table, profile, anchors)
    for kind, values in {"truth": span.truth, "naive": span.rolled}.items():
        for task in profile.tasks:
            for at, name in enumerate(TASKS[task].columns):
                frame[f"{name}_{kind}"] = values[task][..., at].ravel()
    return frame.reset_index()
