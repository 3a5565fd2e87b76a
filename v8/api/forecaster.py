"""The forecaster of a notebook: what every forecaster can, and to be judged and drawn, fetched and shared."""

from __future__ import annotations

import html
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast

import numpy as np
import pandas as pd

from v8.api.arguments import in_python
from v8.api.tidy import sureness, tidy
from v8.artifacts import forecaster as artifacts
from v8.artifacts.forecaster import seconds_of
from v8.artifacts.run_folder import RUN_FILE
from v8.artifacts.shared_models import SharedModels
from v8.errors import DataError, PublishError
from v8.features.table import compute_table
from v8.hub.opening import open_forecaster
from v8.hub.pull import pull
from v8.losses.judgement import Judgement, judge_span
from v8.machine.starting import quiet_start
from v8.market.candles import Candles
from v8.market.frames import GivenCandles
from v8.market.open_times import iso
from v8.windows.dataset import table_columns
from v8.windows.span import Span
from v8.windows.splits import window_anchors

if TYPE_CHECKING:
    import plotly.graph_objects as go

FEWEST_FITTED_WINDOWS: Final = 200
"""Windows before the judged ones: baselines fitted to fewer are no opponents."""


@in_python
def load(source: str | Path, series: str | None = None, *, revision: str | None = None) -> Forecaster:
    """Load a forecaster from a run of this machine or from the Hugging Face Hub.

    Args:
        source: A run folder such as "runs/aligned", the folder of one series, or "user/name" on the
            Hub. A folder that exists is taken before a repository of the same name.
        series: Such as "BTCUSDT-15m"; may be left out where the folder holds one only.
        revision: Branch, tag or commit on the Hub; the newest commit when None.

    Returns:
        The forecaster; its `revision` is the commit that was used, None for a local one.

    Raises:
        v8.errors.V8Error: If it does not exist or cannot be trusted; the sentence says what to do.

    >>> import v8
    >>> v8.load("runs/tiny", "BTCUSDT-15m").horizon_bars
    3
    """
    return cast(Forecaster, open_forecaster(source, series, revision=revision, kind=Forecaster))


class Forecaster(artifacts.Forecaster):
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
        """Load the artefact in `folder` as every forecaster is loaded; TensorFlow starts without chatter."""
        with quiet_start(is_passing=True):
            return super().load(folder, revision=revision, models=models)

    __init__ = in_python(artifacts.Forecaster.__init__)
    predict = in_python(artifacts.Forecaster.predict)
    forecast_history = in_python(artifacts.Forecaster.forecast_history)
    forecast = in_python(artifacts.Forecaster.forecast)
    forecast_all = in_python(artifacts.Forecaster.forecast_all)
    companions = in_python(artifacts.Forecaster.companions)
    joined = in_python(artifacts.Forecaster.joined)

    @classmethod
    @in_python
    def from_pretrained(cls, repo: str, series: str, *, revision: str | None = None) -> Forecaster:
        """Load a forecaster that was published on the Hugging Face Hub.

        Args:
            repo: "user/name".
            series: Such as "BTCUSDT-15m".
            revision: Branch, tag or commit; the newest commit when None.

        Raises:
            PullError: If the Hub does not hand it out.
            ArtifactError: If it cannot be trusted.
        """
        pulled = pull(repo, [series], revision=revision)
        return cls.load(pulled.artifact(series), revision=pulled.revision)

    @in_python
    def push_to_hub(self, repo: str, *, private: bool = False) -> str:
        """Publish this model beside those that the repository has, in one commit; return its address.

        Args:
            repo: "user/name"; made when missing.
            private: Whether a repository that is made is hidden from others.

        Raises:
            PublishError: If it may not or cannot be published.
        """
        from v8.api.publishing import publish_folder  # noqa: PLC0415

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
        candles: Candles | GivenCandles,
        *,
        start: str | datetime | None = None,
        covariates: Mapping[str, Any] | None = None,
    ) -> pd.DataFrame:
        """Judge the model on candles it has not seen, beside every baseline.

        Args:
            candles: As for `predict`; they should begin long before `start`, because the baselines are fitted
                to what lies before it.
            start: Judge forecasts issued from then on; without a zone it is UTC. None begins behind all that
                training and early stopping have seen.
            covariates: As for `predict`.

        Returns:
            One row a forecaster, task, column and step, see `v8.api.tidy.tidy`.

        Raises:
            DataError: If no window lies behind `start`, or too few before it.

        >>> import v8
        >>> forecaster = v8.load("runs/tiny", "BTCUSDT-15m")
        >>> errors = forecaster.evaluate(candles)
        >>> bool((errors.groupby("forecaster")["mae_return"].mean() > 0).all())
        True
        """
        return tidy(self.judge(candles, start=start, covariates=covariates))

    @in_python
    def judge(
        self,
        candles: Candles | GivenCandles,
        *,
        start: str | datetime | None = None,
        covariates: Mapping[str, Any] | None = None,
    ) -> Judgement:
        """Do the same and return the judgement, which knows skills, verdicts and p-values."""
        known = self.joined(candles, covariates, reaches=False)
        profile = self.about.trained_profile
        table = compute_table(known, table_columns(profile))
        anchors = window_anchors(table.segment, (0, len(table)), self.lookback_bars, self.horizon_bars)
        start_s = seconds_of(start, self.seen_until_s)
        is_later = table.open_time_s[anchors] + self.series.bar_s >= start_s
        is_before = table.open_time_s[anchors + self.horizon_bars] < start_s
        self._require_windows(int(is_before.sum()), int(is_later.sum()), start_s)
        span = Span(table, profile, anchors[is_later])
        fitted = Span(table, profile, anchors[is_before])
        forecasts = {
            task: values.astype(np.float64) for task, values in self.forecast(span.raw_windows()).items()
        }
        return judge_span(span, forecasts, train=fitted, scaling=self.about.scaling)[0]

    @in_python
    def plot(
        self, candles: Candles | GivenCandles, *, covariates: Mapping[str, Any] | None = None
    ) -> go.Figure:
        """Draw the forecast after the newest candle beside the candles before it.

        Args:
            candles: As for `predict`.
            covariates: As for `predict`.

        >>> import v8
        >>> forecaster = v8.load("runs/tiny", "BTCUSDT-15m")
        >>> forecaster.plot(candles).data[0].name
        'known'
        """
        from v8.views.charts import notebook_figure  # noqa: PLC0415
        from v8.views.figures import issued_figure  # noqa: PLC0415

        known = self.joined(candles, covariates)
        figure = notebook_figure(issued_figure(known, self.predict(known)))
        return figure.update_layout(title=f"{self.series}, forecast of profile {self.profile_name}")

    @property
    def profile_name(self) -> str:
        """Name of the profile it was trained with."""
        return self.about.profile.name

    def __repr__(self) -> str:
        return (
            f"<Forecaster of {self.series}: the next {self.horizon_bars} candles from the last "
            f"{self.needed_bars}, profile {self.profile_name}, trained up to {iso(self.seen_until_s)}>"
        )

    def _repr_html_(self) -> str:
        """Show what it is and how good it was, in a notebook."""
        judgement = self.about.judgement
        table = pd.DataFrame(
            {task: [judgement.multiple(task), judgement.verdict(task)] for task in judgement.tasks},
            index=["error / naive", "verdict"],
        )
        if judged := self.about.quantiles:
            table = pd.concat([table, sureness(judged)])
        return f"<p>{html.escape(repr(self))}</p>{table.to_html()}"

    def _require_windows(self, num_before: int, num_later: int, start_s: int) -> None:
        if num_later and num_before >= FEWEST_FITTED_WINDOWS:
            return
        raise DataError(
            where=f"{self.series}, evaluate",
            rule=f"needs a window that is issued at or after {iso(start_s)}, with its {self.horizon_bars} "
            f"candles, and {FEWEST_FITTED_WINDOWS} before it, to which the baselines are fitted",
            got=f"{num_later} after it and {num_before} before it",
            fix="Give a longer history, or choose another start",
        )
