"""The API of features, windows and forecasters: compute, load, evaluate, draw, publish."""

import html
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, cast

import numpy as np
import pandas as pd
from pydantic import Field

from v8.api.arguments import PublicNames, in_python
from v8.base.errors import ArgumentError, DataError, PublishError
from v8.base.process import quiet_start
from v8.base.storage import passing_folder
from v8.base.wording import for_terminal
from v8.data.features import compute_table
from v8.data.market.candles import Candles
from v8.data.market.companions import Companions
from v8.data.market.frames import RawCandles, candle_table, read_open_times
from v8.data.market.series import TIMEFRAME_S, TIMEFRAMES, Series, iso
from v8.data.windows import (
    FEWEST_FITTED_WINDOWS,
    SPANS,
    FleetWindows,
    SeriesData,
    gathered,
    prepare_series,
    table_columns,
    whole_span,
)
from v8.forecaster import forecaster as artifacts
from v8.forecaster.history import seconds_of
from v8.forecaster.shared_models import AUTO, SharedModels
from v8.model.evaluation.evaluation import Evaluation, QuantileEvaluation, evaluate_windows
from v8.profile.columns import OPEN_TIME
from v8.profile.profile import Profile, load_profile
from v8.publish.hub.places import open_place
from v8.runs.run_folder import RUN_FILE

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import tensorflow as tf

    from v8.publish.hub.client import HubRetryPolicy


DEFAULT_SEED: Final = 0
UNNAMED: Final = "CANDLES"  # symbol of candles without a name


@in_python
def features(
    candles: Candles | RawCandles,
    profile: str | Path | Profile,
    *,
    series: str | None = None,
    covariates: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Return the features of a profile as its models read them, one row for each candle.

    Args:
        candles: A frame of raw candles, the list that an exchange library returns, or checked `Candles`;
            without gaps, because indicators need a warm-up again after each gap.
        profile: A shipped name, a path to a YAML file, or a profile.
        series: Their series, such as "BTCUSDT-15m"; None finds the timeframe by the steps between them.
        covariates: What the profile reads besides these candles: candles by symbol, tables by the name of
            their file; tables that are left out are read from the folder that `V8_TABLES` names.

    Returns:
        Float32 columns in the order of the profile, index `open_time` (UTC); without the warm-up.

    Raises:
        DataError: If the candles cannot be read, or none is left after the warm-up.

    >>> import v8
    >>> window = v8.features(candles, "aligned").tail(60)
    >>> window.shape, window.columns[:4].tolist()
    ((60, 12), ['open', 'high', 'low', 'close'])
    """
    loaded = profile if isinstance(profile, Profile) else load_profile(str(profile))
    names = loaded.features
    table = compute_table(joined_candles(candles, loaded, series, covariates), names)
    index = pd.DatetimeIndex(pd.to_datetime(table.open_time_s, unit="s", utc=True), name=OPEN_TIME)
    return pd.DataFrame(table.select(names).astype(np.float32), index=index, columns=list(names))


@in_python
def windows(
    candles: Candles | RawCandles,
    profile: str | Path | Profile,
    *,
    span: str = "train",
    batch_size: Annotated[int, Field(ge=1)] | None = None,
    seed: Annotated[int, Field(ge=0)] | None = None,
    series: str | None = None,
    covariates: Mapping[str, Any] | None = None,
) -> "tf.data.Dataset":
    """Return the windows and targets of a span, scaled as in training, for `keras.Model.fit` of any model.

    The candles are divided into train, validation and test span by the shares of the profile, with its
    embargo between them; scaling is fitted to the train span alone. One pass holds every window of the span
    once: for "train" shuffled again in each pass, for the others in time order.

    Args:
        candles: A frame of raw candles, the list that an exchange library returns, or checked `Candles`.
        profile: A shipped name, a path to a YAML file, or a profile.
        span: "train", "validation" or "test".
        batch_size: Windows in a batch, the last one may hold fewer; None takes the profile's.
        seed: Seed of the shuffle of "train"; None takes 0.
        series: Such as "BTCUSDT-15m"; None finds the timeframe by the steps between candles.
        covariates: What the profile reads besides these candles, as in `v8.features`.

    Returns:
        A `tf.data.Dataset` of pairs, all float32 and unitless: windows (batch, lookback, features), and
        targets by task, each (batch, horizon, columns of the task). Features are in the order of the profile.
        Keras matches targets with outputs of a model by their names. Every window counts the same; with
        `scaling: ranged` our own training weighs them by their recent range.

    Raises:
        ArgumentError: If there is no such span.
        DataError: If the candles cannot be read, or a span of them does not hold one window.

    >>> import v8
    >>> train = v8.windows(candles, "frontier")
    >>> window, targets = train.element_spec
    >>> window.shape.as_list(), {task: each.shape[-1] for task, each in targets.items()}
    ([None, 20, 74], {'ohlc': 4, 'bands': 2, 'volatility': 1, 'range': 2})
    """
    if span not in SPANS:
        raise ArgumentError(
            where="v8.windows, span=",
            rule=f"is one of {', '.join(SPANS)}",
            got=repr(span)[:60],
            fix="help(v8.windows) says what each holds",
        )
    loaded = profile if isinstance(profile, Profile) else load_profile(str(profile))
    table = compute_table(joined_candles(candles, loaded, series, covariates), table_columns(loaded))
    return span_dataset(prepare_series(table, loaded), span, batch_size=batch_size, seed=seed)


def span_dataset(
    data: SeriesData, span: str, *, batch_size: int | None = None, seed: int | None = None
) -> "tf.data.Dataset":
    """Return the windows and targets of a span as `windows` does; it says what `batch_size` and `seed` do."""
    fleet = FleetWindows([data])
    indices = fleet.span_indices(span, 1)[:, 0, 0]
    with quiet_start():
        import tensorflow as tf  # noqa: PLC0415 - seconds of start-up, paid only by those who train

    with tf.device("CPU:0"):
        tables = fleet.tables(tf.constant)
        dataset = tf.data.Dataset.from_tensor_slices(indices)

    def cut(indices_B: Any) -> tuple[Any, dict[str, Any]]:
        """Cut windows and targets out of the tables of the only series."""
        batch = gathered(tf.experimental.numpy, tables, indices_B[:, None])
        return batch.x_BMTF[:, 0], {task: targets[:, 0] for task, targets in batch.y_BMHC.items()}

    if span == "train":
        first_seed = DEFAULT_SEED if seed is None else seed
        dataset = dataset.shuffle(len(indices), seed=first_seed, reshuffle_each_iteration=True)
    size = batch_size or data.profile.training.batch_size
    # AutoGraph has nothing to convert here, and would leave compiled files in the temporary folder.
    cut_unconverted = tf.autograph.experimental.do_not_convert(cut)
    return dataset.batch(size).map(cut_unconverted).prefetch(tf.data.AUTOTUNE)


def joined_candles(
    candles: Candles | RawCandles,
    profile: Profile,
    series: str | None,
    covariates: Mapping[str, Any] | None,
) -> Candles:
    """Return checked candles joined with the covariates of the profile; arguments are those of `features`."""
    named = Series.parse(series) if series else _series_of(candles)
    own = artifacts.checked_candles(candles, named, None)
    return own if own.covariates else Companions.of(profile, covariates).joined(own)


def _series_of(candles: Candles | RawCandles) -> Series:
    """Return the series of candles; for a frame, one without a name and with the timeframe of its steps."""
    if isinstance(candles, Candles):
        return candles.series
    table = candle_table(candles, Series(UNNAMED, "1h"), "candles=")
    steps_s = read_open_times(table[OPEN_TIME]).steps_s
    step_s = float(np.median(steps_s)) if len(steps_s) else 0.0
    if step_s not in TIMEFRAMES:
        raise DataError(
            where="candles=",
            rule=f"open apart by one of {', '.join(TIMEFRAME_S)}",
            got=f"mostly {step_s:,.10g} s",
            fix='Name the series, for example series="BTCUSDT-15m"',
        )
    return Series(UNNAMED, TIMEFRAMES[step_s])


def publish_folder(
    run: Path,
    repo: str,
    *,
    series: Sequence[str] = (),
    is_private: bool = False,
    retries: "HubRetryPolicy | None" = None,
) -> str:
    """Publish finished models of a run and return the address of the commit.

    Models that the repository has already stay. Without names of series the run must be complete. A missing
    repository is created, private with `is_private`. Raises `PublishError` if a model may not or cannot be
    published, `ArtifactError` if the run is damaged.
    """
    from v8.publish.hub import client  # noqa: PLC0415 - only publishing needs these
    from v8.publish.hub.publish import publish  # noqa: PLC0415
    from v8.publish.hub.staging import stage_run  # noqa: PLC0415

    retries = retries or client.HubRetryPolicy(
        report=lambda text: print(for_terminal(text), file=sys.stderr)  # noqa: T201 - the notebook waits
    )
    with passing_folder("v8-publish") as folder:
        staged = stage_run(run, folder, repo, series=series, is_partial=bool(series))
        return publish(staged, repo, is_private=is_private, retries=retries).url


def sureness(evaluated: QuantileEvaluation) -> pd.DataFrame:
    """Return how good quantiles were on the test span, a column for each task.

    Rows: the CRPS relative to that of each baseline with quantiles, and the coverage of each interval.
    """
    columns = {}
    for task, summary in evaluated.summary().items():
        crps = {f"CRPS / {name}": multiple for name, multiple in summary["relative_crps"].items()}
        coverage = {f"within {name}": share for name, share in summary["coverage"].items()}
        columns[task] = crps | coverage
    return pd.DataFrame(columns)


def tidy(evaluation: Evaluation) -> pd.DataFrame:
    """Return the errors of an evaluation, a row for each forecaster, task, column and step.

    Returns:
        Columns `forecaster` ("model" or a baseline's name), `task`, `column`, `step` (bars ahead, from 1) and
        errors: `mae_return`, `rmse_return` as a share of the last close (volatility and range: as they are),
        `mae_price`, `rmse_price` in the unit of the column; and `qlike`, the QLIKE loss of squared volatility
        and range, which prices have none of.
    """
    kinds = ("mae_return", "rmse_return", "mae_price", "rmse_price")
    rows = []
    for task, evaluated in evaluation.tasks.items():
        for name, errors in evaluated.errors.items():
            for step in range(evaluation.horizon_bars):
                for place, column in enumerate(evaluated.columns):
                    row: dict[str, Any] = {
                        "forecaster": name,
                        "task": task,
                        "column": column,
                        "step": step + 1,
                    }
                    for kind in kinds:
                        row[kind] = getattr(errors, kind).cells[step][place]
                    row["qlike"] = errors.qlike.cells[step][place] if errors.qlike else None
                    rows.append(row)
    return pd.DataFrame(rows)


@in_python
def load(
    source: str | Path, series: str | None = None, *, revision: str | None = None, runtime: str = AUTO
) -> "Forecaster":
    """Load a forecaster from a run of this machine or from the Hugging Face Hub.

    Args:
        source: A run folder such as "runs/aligned", the folder of one series, or "user/name" on the
            Hub. A folder that exists is taken before a repository of the same name.
        series: Such as "BTCUSDT-15m"; may be left out where the folder holds one only.
        revision: Branch, tag or commit on the Hub; the newest commit when None.
        runtime: What computes the forecasts: "onnx", without TensorFlow, "keras", or "auto", which takes
            ONNX if the model has a file model.onnx and onnxruntime is installed.

    Returns:
        The forecaster; its `revision` is the commit that was used, None for a local one.

    Raises:
        v8.base.errors.V8Error: If it does not exist or cannot be trusted; the sentence says what to do.

    >>> import v8
    >>> v8.load("runs/tiny", "BTCUSDT-15m").horizon_bars
    3
    """
    place = open_place(source, revision=revision, models=SharedModels(runtime))
    return cast(Forecaster, place.open(series, Forecaster))


class Forecaster(PublicNames, artifacts.Forecaster):
    """A trained model: `predict`, `forecast_history`, `evaluate`, `plot`, `push_to_hub`.

    >>> import v8
    >>> forecaster = v8.load("runs/tiny", "BTCUSDT-15m")
    >>> forecaster.predict(candles).columns.tolist()
    ['open', 'high', 'low', 'close', 'bb_upper', 'bb_lower', 'volatility']
    """

    _stacklevel = artifacts.Forecaster._stacklevel + 1

    @classmethod
    @in_python
    def load(
        cls, folder: Path | str, *, revision: str | None = None, models: SharedModels | None = None
    ) -> Self:
        """Load the model in `folder`; TensorFlow starts without its messages."""
        with quiet_start(is_temporary=True):
            return super().load(folder, revision=revision, models=models)

    __init__ = in_python(artifacts.Forecaster.__init__)
    predict = in_python(artifacts.Forecaster.predict)
    predict_joined = in_python(artifacts.Forecaster.predict_joined)
    outlook = in_python(artifacts.Forecaster.outlook)
    outlook_joined = in_python(artifacts.Forecaster.outlook_joined)
    paths = in_python(artifacts.Forecaster.paths)
    out_of_range_features = in_python(artifacts.Forecaster.out_of_range_features)
    forecast_history = in_python(artifacts.Forecaster.forecast_history)
    forecast = in_python(artifacts.Forecaster.forecast)
    forecast_all = in_python(artifacts.Forecaster.forecast_all)
    forecast_after = in_python(artifacts.Forecaster.forecast_after)
    forecast_usable = in_python(artifacts.Forecaster.forecast_usable)
    companions = in_python(artifacts.Forecaster.companions)
    joined = in_python(artifacts.Forecaster.joined)

    @classmethod
    @in_python
    def from_pretrained(cls, repo: str, series: str, *, revision: str | None = None) -> "Forecaster":
        """Load a forecaster that was published on the Hugging Face Hub as "user/name".

        The revision is a branch, tag or commit; the newest commit when None. Raises `PullError` if it cannot
        be downloaded, `ArtifactError` if it cannot be trusted.
        """
        from v8.publish.hub.pull import pull  # noqa: PLC0415 - a folder needs no client of the Hub

        pulled = pull(repo, [series], revision=revision)
        return cls.load(pulled.artifact(series), revision=pulled.revision, models=SharedModels(AUTO))

    @in_python
    def push_to_hub(self, repo: str, *, private: bool = False) -> str:
        """Publish this model in one commit and return its address; the repository's other models stay.

        The repository "user/name" is created if it is missing, private with `private`. Raises `PublishError`
        if the model may not or cannot be published.
        """
        if self.folder is None or not (self.folder.parent / RUN_FILE).exists():
            raise PublishError(
                where=str(self.series),
                rule="a model is published from the run that trained it",
                got="one that was loaded from elsewhere",
                fix='Load it from its run: v8.load("runs/aligned", "BTCUSDT-15m")',
            )
        return publish_folder(self.folder.parent, repo, series=[str(self.series)], is_private=private)

    @in_python
    def evaluate(
        self,
        candles: Candles | RawCandles,
        *,
        start: str | datetime | None = None,
        covariates: Mapping[str, Any] | None = None,
    ) -> pd.DataFrame:
        """Evaluate the model on candles it has not seen, compared with every baseline.

        Args:
            candles: As for `predict`; they should begin long before `start`, because the baselines are fitted
                to the candles before it.
            start: Forecasts issued from then on are evaluated; without a time zone it is UTC. None starts
                after all candles of training and early stopping.
            covariates: As for `predict`.

        Returns:
            A row for each forecaster, task, column and step, see `v8.api.forecaster.tidy`.

        Raises:
            DataError: If no window is after `start`, or too few are before it.

        >>> import v8
        >>> forecaster = v8.load("runs/tiny", "BTCUSDT-15m")
        >>> errors = forecaster.evaluate(candles)
        >>> bool((errors.groupby("forecaster")["mae_return"].mean() > 0).all())
        True
        """
        return tidy(self.evaluation(candles, start=start, covariates=covariates))

    @in_python
    def evaluation(
        self,
        candles: Candles | RawCandles,
        *,
        start: str | datetime | None = None,
        covariates: Mapping[str, Any] | None = None,
    ) -> Evaluation:
        """Do what `evaluate` does, and return the evaluation, which has skills, verdicts and p-values."""
        joined = self.joined(candles, covariates, reaches=False)
        profile = self.about.trained_profile
        start_s = seconds_of(start, self.trained_until_s)
        before, since = whole_span(joined, profile).split_at(start_s)
        if not len(since) or len(before) < FEWEST_FITTED_WINDOWS:
            evaluated = (
                f"a window that is issued at or after {iso(start_s)}, with its {self.horizon_bars} candles"
            )
            fitted = f"{FEWEST_FITTED_WINDOWS} before it, to which the baselines are fitted"
            raise DataError(
                where=f"{self.series}, evaluate",
                rule=f"needs {evaluated}, and {fitted}",
                got=f"{len(since)} after it and {len(before)} before it",
                fix="Give a longer history, or choose another start",
            )
        forecasts = {
            task: values.astype(np.float64) for task, values in self.forecast(since.raw_windows()).items()
        }
        return evaluate_windows(since, forecasts, train=before, scaling=self.about.scaling)[0]

    @in_python
    def plot(
        self, candles: Candles | RawCandles, *, covariates: Mapping[str, Any] | None = None
    ) -> "go.Figure":
        """Draw the forecast after the newest candle, and the candles before it; arguments as for `predict`.

        >>> import v8
        >>> forecaster = v8.load("runs/tiny", "BTCUSDT-15m")
        >>> forecaster.plot(candles).data[0].name
        'known'
        """
        from v8.publish.report.charts import notebook_figure  # noqa: PLC0415
        from v8.publish.report.figures import issued_figure  # noqa: PLC0415

        joined = self.joined(candles, covariates)
        figure = notebook_figure(issued_figure(joined, self.predict(joined)))
        return figure.update_layout(title=f"{self.series}, forecast of profile {self.profile_name}")

    @property
    def profile_name(self) -> str:
        """Name of the profile it was trained with."""
        return self.about.profile.name

    def __repr__(self) -> str:
        until = iso(self.trained_until_s) + ("" if self.about.is_evaluated else ", not evaluated")
        return (
            f"<Forecaster of {self.series}: the next {self.horizon_bars} candles from the last "
            f"{self.needed_bars}, profile {self.profile_name}, trained up to {until}>"
        )

    def _repr_html_(self) -> str:
        """Show the model and its errors in a notebook."""
        if not self.about.is_evaluated:
            return f"<p>{html.escape(repr(self))}</p>"
        evaluation = self.about.evaluation
        table = pd.DataFrame(
            {
                task: [evaluation.relative_error(task), evaluation.against(task).verdict]
                for task in evaluation.tasks
            },
            index=["error / naive", "verdict"],
        )
        evaluated = self.about.quantiles
        if evaluated:
            table = pd.concat([table, sureness(evaluated)])
        return f"<p>{html.escape(repr(self))}</p>{table.to_html()}"
