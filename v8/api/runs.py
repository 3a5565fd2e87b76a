"""A run and its series as a notebook wants them: tables to look at, forecasters to use."""

from __future__ import annotations

import html
import io
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from v8.api.arguments import in_python
from v8.api.forecaster import Forecaster
from v8.api.tidy import sureness, tidy
from v8.artifacts.generations import served_folder
from v8.artifacts.metadata import HISTORY_FILE, Metadata, read_metadata
from v8.artifacts.run_folder import read_run
from v8.errors import ArtifactError, listed
from v8.invocation import command
from v8.losses.leaderboard import LEADERBOARD_FILE, read_history
from v8.market.series import series_advice
from v8.records import read_plain
from v8.redaction import shown
from v8.runs.outputs import REPORT_FILE
from v8.wording import plural


class TrainedSeries:
    """One finished series of a run.

    Args:
        folder: Its artefact.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name

    @cached_property
    def about(self) -> Metadata:
        """What is recorded about the model, checked."""
        return read_metadata(self.folder, series=self.name)

    @property
    def metadata(self) -> dict[str, Any]:
        """All that is recorded about the model."""
        return dict(self.about.content)

    @cached_property
    def judgement(self) -> pd.DataFrame:
        """Errors on the test span beside every baseline's, see `tidy`."""
        return tidy(self.about.judgement)

    @cached_property
    def history(self) -> pd.DataFrame:
        """Unitless scaled losses, one row an epoch."""
        return pd.DataFrame(read_history(self.folder / HISTORY_FILE)).set_index("epoch")

    @cached_property
    def forecaster(self) -> Forecaster:
        """The model, ready to forecast."""
        return Forecaster.load(self.folder)

    def __repr__(self) -> str:
        return f"<{self.name}, trained, in {self.folder}>"


class _NoSeriesError(ArtifactError, KeyError):
    """What is not in a run, so that `in` and `get` work as for every mapping."""

    __str__ = Exception.__str__


class Run(Mapping[str, TrainedSeries]):
    """A run folder: a mapping from the names of its finished series to what was made of them.

    Args:
        path: Such as "runs/aligned".

    Raises:
        ArtifactError: If it is no run folder, or damaged.

    >>> import v8
    >>> run = v8.Run("runs/tiny")
    >>> run["BTCUSDT-15m"].judgement.columns[:4].tolist()
    ['forecaster', 'task', 'column', 'step']
    """

    @in_python
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()  # a notebook may change its folder
        self.record = read_run(self.path)

    @property
    def series(self) -> tuple[str, ...]:
        """Names of the finished series."""
        return tuple(name for name, state in self.record.series.items() if state.status == "done")

    @property
    def failures(self) -> dict[str, str]:
        """Why the others failed, by series."""
        return self.record.reasons

    @property
    def report(self) -> Path:
        """The page to open in a browser."""
        return self.path / REPORT_FILE

    @property
    def leaderboard(self) -> pd.DataFrame:
        """One row a finished series, best first: errors beside naive and the best baseline."""
        content = read_plain(
            self.path / LEADERBOARD_FILE, fix=f"Draw it again: {command('report', str(self.path))}"
        )
        return pd.read_csv(io.BytesIO(content), index_col="series")

    @property
    def quantiles(self) -> pd.DataFrame:
        """How good the quantiles of each finished series were, see `sureness`; empty where there are none."""
        found = {name: sureness(judged) for name in self if (judged := self[name].about.quantiles)}
        return pd.concat(found, names=["series"]) if found else pd.DataFrame()

    @in_python
    def __getitem__(self, series: object) -> TrainedSeries:
        if not isinstance(series, str) or series not in self.series:
            raise _NoSeriesError(
                where=f"{self.path}, series {shown(repr(series), 60)}",
                rule="must be finished in this run",
                got=f"{listed(self.series) or 'no finished series'}",
                fix=series_advice(str(series), self.series, "Choose one of these")
                if self.series
                else "Train it first",
            )
        return TrainedSeries(served_folder(self.path, series))

    def __iter__(self) -> Iterator[str]:
        return iter(self.series)

    def __len__(self) -> int:
        return len(self.series)

    @in_python
    def publish(self, repo: str, *, private: bool = False) -> str:
        """Publish the finished models in one commit and return its address on the Hugging Face Hub.

        Args:
            repo: "user/name"; made when missing.
            private: Whether a repository that is made is hidden from others.

        Raises:
            PublishError: If they may not or cannot be published.
        """
        from v8.api.publishing import publish_folder  # noqa: PLC0415

        return publish_folder(self.path, repo, is_private=private)

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"<Run of {self.record.profile_name} in {self.path}: {plural(len(self), 'series')}{failed}>"

    def _repr_html_(self) -> str:
        """Show the leaderboard in a notebook."""
        shown = f"<p>{html.escape(repr(self))}</p>{self.leaderboard.to_html() if len(self) else ''}"
        return shown if self.quantiles.empty else shown + self.quantiles.to_html()
