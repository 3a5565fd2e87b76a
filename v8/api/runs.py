"""The API of runs: train in a process of its own, read their tables, open their forecasters."""

import html
import io
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pandas as pd

from v8.api.arguments import (
    PublicNames,
    RawCandles,
    checked_options,
    further_options,
    in_python,
    profile_file,
    require_no_profile,
    series_list,
    source_of,
    stored_tables,
    with_others,
)
from v8.api.export import folds_of
from v8.api.forecaster import Forecaster, publish_folder, sureness, tidy
from v8.api.results import train_for_python
from v8.base.child import run_in_child
from v8.base.errors import ArtifactError, listed, shown
from v8.base.hardware import replacement_notice
from v8.base.process import command
from v8.base.records import read_plain
from v8.base.registry import load_plugins, require_no_own_entries
from v8.data.market.companions import Companions
from v8.data.market.series import TIMEFRAME_S, series_advice
from v8.forecaster.metadata import HISTORY_FILE, PLAN_FILE, Metadata, not_evaluated, read_metadata
from v8.forecaster.shared_models import SharedModels
from v8.model.evaluation.leaderboard import HISTORY_COLUMNS, LEADERBOARD_FILE, read_history
from v8.profile.profile import Profile, key_places
from v8.profile.tasks import TASKS
from v8.publish.report.outputs import REPORT_FILE
from v8.runs.options import RunOptions
from v8.runs.run_folder import RUN_FILE, read_run
from v8.runs.serving import served_folder


class TrainedSeries(PublicNames):
    """One finished series of a run, whose model is in `folder`; those of one run share `models`."""

    def __init__(self, folder: Path, models: SharedModels | None = None) -> None:
        self.folder = folder
        self.name = folder.name
        self._models = models

    @cached_property
    def about(self) -> Metadata:
        """The metadata of the model, checked."""
        return read_metadata(self.folder, series=self.name)

    @property
    def metadata(self) -> dict[str, Any]:
        """All metadata of the model."""
        return dict(self.about.content)

    @cached_property
    def evaluation(self) -> pd.DataFrame:
        """Errors of the model and of every baseline on the test span, see `tidy`."""
        return tidy(self.about.evaluation)

    @cached_property
    def history(self) -> pd.DataFrame:
        """Losses in scaled units, a row for each epoch; a formula has none."""
        epochs = read_history(self.folder / HISTORY_FILE)
        return pd.DataFrame(epochs, columns=HISTORY_COLUMNS).set_index("epoch")

    @cached_property
    def forecaster(self) -> Forecaster:
        """The model, ready to forecast."""
        return Forecaster.load(self.folder, models=self._models)

    def __repr__(self) -> str:
        return f"<{self.name}, trained, in {self.folder}>"


class _NoSeriesError(ArtifactError, KeyError):
    """The error for a series that is not in a run; a `KeyError`, so that `in` and `get` work."""

    __str__ = Exception.__str__


class Run(PublicNames, Mapping[str, TrainedSeries]):
    """A run folder as a mapping from the names of its finished series to `TrainedSeries`.

    Args:
        path: Such as "runs/aligned".

    Raises:
        ArtifactError: If it is no run folder, or damaged.

    >>> import v8
    >>> run = v8.Run("runs/tiny")
    >>> run["BTCUSDT-15m"].evaluation.columns[:4].tolist()
    ['forecaster', 'task', 'column', 'step']
    """

    @in_python
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()  # a notebook may change its folder
        self.record = read_run(self.path)
        self._models = SharedModels()
        self._refused: Mapping[str, str] = {}

    @property
    def series(self) -> tuple[str, ...]:
        """Names of the finished series."""
        return tuple(self.record.done)

    @property
    def failures(self) -> dict[str, str]:
        """Why the others failed, by series; after `train` also why some were refused by the source."""
        return {**self.record.reasons, **self._refused}

    @property
    def report(self) -> Path:
        """The page to open in a browser."""
        return self.path / REPORT_FILE

    @property
    def leaderboard(self) -> pd.DataFrame:
        """A row for each finished series, best first: errors relative to naive and to the best baseline."""
        if not self.record.is_evaluated:
            raise not_evaluated(str(self.path))
        fix = f"Draw it again: {command('report', str(self.path))}"
        content = read_plain(self.path / LEADERBOARD_FILE, fix=fix)
        return pd.read_csv(io.BytesIO(content), index_col="series")

    @property
    def quantiles(self) -> pd.DataFrame:
        """How good the quantiles of each finished series were, see `sureness`; empty where there are none."""
        tables = {}
        for name in self:
            evaluated = self[name].about.quantiles
            if evaluated:
                tables[name] = sureness(evaluated)
        return pd.concat(tables, names=["series"]) if tables else pd.DataFrame()

    @in_python
    def __getitem__(self, series: object) -> TrainedSeries:
        if not isinstance(series, str) or series not in self.series:
            advice = series_advice(str(series), self.series, "Choose one of these")
            raise _NoSeriesError(
                where=f"{self.path}, series {shown(repr(series), 60)}",
                rule="must be finished in this run",
                got=listed(self.series) or "no finished series",
                fix=advice if self.series else "Train it first",
            )
        return TrainedSeries(served_folder(self.path, series), self._models)

    def __iter__(self) -> Iterator[str]:
        return iter(self.series)

    def __len__(self) -> int:
        return len(self.series)

    @in_python
    def publish(self, repo: str, *, private: bool = False) -> str:
        """Publish the finished models in one commit and return its address on the Hugging Face Hub.

        The repository "user/name" is created if it is missing, private with `private`. Raises `PublishError`
        if the models may not or cannot be published.
        """
        return publish_folder(self.path, repo, is_private=private)

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        evaluated = "" if self.record.is_evaluated else ", not evaluated"
        return f"<Run of {self.record.profile_name} in {self.path}: {len(self)} series{failed}{evaluated}>"

    def _repr_html_(self) -> str:
        """Show the leaderboard in a notebook."""
        tables = [self.leaderboard, self.quantiles] if len(self) and self.record.is_evaluated else []
        markup = "".join(table.to_html() for table in tables if not table.empty)
        return f"<p>{html.escape(repr(self))}</p>{markup}"


_OF_PROFILE: Final = {"bars": "newest_bars", "epochs": "epochs", "precision": "precision"}
"""Options that are keys of a profile, too; a smoke run has its own values where they are left out."""


@in_python
def plugin(file: str | Path) -> None:
    """Load a file of your own that registers a baseline, a feature, a network family, a task or a source.

    It stays loaded for this process and for all that it starts. Raises `ProfileError` if it cannot be loaded,
    registers nothing, or what it registers has a name that is taken.

    >>> import v8
    >>> v8.plugin("halfway.py")
    """
    load_plugins([file])


@in_python
def train(
    candles: RawCandles = "vision",
    profile: str | Path | Profile = "frontier",
    *,
    series: str | Sequence[str] | None = None,
    covariates: Mapping[str, Any] | None = None,
    runs: str | Path = "runs",
    fresh: bool = False,
    evaluate: bool = True,
    progress: bool = True,
    **options: Any,
) -> Run:
    """Train, evaluate and save a model for every series; the same call again continues an interrupted run.

    Args:
        candles: The name of a source ("vision", "demo"), a folder of candle files, a frame of candles (then
            `series` names it), or a mapping of frames by series.
        profile: A shipped name, a YAML file, or a `Profile`.
        series: Such as "BTCUSDT-15m", or several; None for all there are.
        covariates: What the profile reads besides frames of candles: candles by symbol, tables by the name of
            their file; tables that are left out are read from the folder that `V8_TABLES` names. A source or
            a folder of candles has the other symbols itself.
        runs: Folder of all run folders.
        fresh: Whether to start a new run; the old ones stay.
        evaluate: Whether to evaluate models on the test span, compared with the baselines. Models that are
            not evaluated forecast like others; they are not in the leaderboard and cannot be published.
        progress: Whether to print the progress.
        options: Keys of the profile, such as learning_rate, which make another profile with a run of its own
            (`Profile.but`), or options of the command `run`, see `OPTIONS`: device, workers, plugin ...

    Returns:
        The run; series that failed are in its `failures`.

    Raises:
        V8Error: If nothing could be trained; the sentence says why.

    >>> import v8
    >>> run = v8.train("demo", "frontier", series="BTCUSDT-1h", smoke=True, progress=False)
    >>> run.series
    ('BTCUSDT-1h',)
    """
    require_no_profile(candles)
    run_options, keys = _divided(options)
    load_plugins(run_options.get("plugin", ()))
    require_no_own_entries("v8.train")
    names = series_list(series)
    loaded = Profile.of(profile) if isinstance(profile, str | Path) else profile
    if keys:
        profile = loaded = loaded.but(**keys)
    companions = Companions.of(loaded, covariates)
    candles = with_others(candles, names, loaded, covariates or {})
    if covariates and loaded.covariates:
        run_options["tables"] = stored_tables(companions.tables)
    run_options |= source_of(candles, names)
    complete_options = RunOptions(
        **run_options,
        profile=str(profile_file(profile)),
        runs=Path(runs),
        series=tuple(names),
        fresh=fresh,
        evaluate=evaluate,
    )
    notice = replacement_notice(complete_options.device)
    if notice and progress:
        print(notice)  # noqa: T201 - as the messages of the child
    trained = run_in_child(
        train_for_python,
        complete_options,
        where="v8.train",
        on_message=print if progress else None,
    )
    run = Run(trained.path)
    run._refused = trained.refused
    return run


OPTIONS: Final[Mapping[str, Any]] = further_options(RunOptions, train)
"""Other options of `train`: those of the command `run`, which its help explains; None is the default."""


def _divided(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide the other arguments of `train` into options of a run and keys of its profile.

    Raises:
        ArgumentError: If a name is neither, or an option does not fit its kind.
    """
    run_options = checked_options("v8.train", train, options, OPTIONS, others=key_places())
    keys = {}
    if not run_options.get("smoke"):
        for name, key in _OF_PROFILE.items():
            if name in run_options:
                keys[key] = run_options.pop(name)
    keys |= {name: value for name, value in options.items() if name not in OPTIONS}
    return run_options, keys


@in_python
def leaderboard(runs: str | Path | Sequence[str | Path]) -> pd.DataFrame:
    """Return the errors of every finished series of runs and back-tests in one frame, the lowest first.

    Args:
        runs: Folders of runs or of back-tests, or one of them; of a folder that holds such folders, all of
            them that were evaluated.

    Returns:
        A row for each folder, fold, series and task, ordered by task, timeframe and relative MAE:

        * `run`: the folder as it was named, text; `profile`: its name, text.
        * `fold`: of a back-test, from 1; 0 for a run, int64.
        * `series`, `timeframe`, `task`: text.
        * `relative_mae`: mean absolute error divided by the naive forecast's, unitless; below 1 is better.
        * `p_value`: of the difference from naive, corrected for the series of that run, 0 to 1.
        * `best_baseline`: the run's best baseline of the task and timeframe, text.
        * `relative_mae_to_best`, `p_value_to_best`: the same, compared with it.
        * `verdict`: its comparison with that baseline in words.

        A number is NaN where it does not exist. Test spans of runs differ unless their candles are the same:
        `newest_candle` (datetime64 in UTC) shows the last one that a run knew.

    Raises:
        ArtifactError: If a folder is neither, is damaged, or was not evaluated.

    >>> import v8
    >>> v8.leaderboard(["runs/tiny"])[["series", "task", "best_baseline"]].shape
    (3, 3)
    """
    named = [Path(place) for place in ([runs] if isinstance(runs, str | Path) else runs)]
    folders = list(dict.fromkeys(folder for place in named for folder in _result_folders(place)))
    rows: list[dict[str, Any]] = []
    for folder in folders:
        for fold, run, _ in folds_of(folder):
            if fold and not (run / RUN_FILE).exists():
                continue
            record = read_run(run)
            if not record.is_evaluated:
                if folder in named:
                    raise not_evaluated(str(run))
                continue
            for name in record.done:
                metadata = read_metadata(served_folder(run, name), series=name)
                rows += _rows({"run": str(folder), "profile": record.profile_name, "fold": fold}, metadata)
    if not rows:
        raise ArtifactError(
            where="runs=",
            rule="needs one run with a finished series at least",
            got=listed([str(folder) for folder in folders]) or "no folder",
            fix="Train it first",
        )
    numbers = ("relative_mae", "p_value", "relative_mae_to_best", "p_value_to_best")
    table = pd.DataFrame(rows).astype(dict.fromkeys(numbers, float))
    order = {task: position for position, task in enumerate(TASKS)}
    keys = pd.DataFrame(
        {
            "task": table["task"].map(order),
            "bar_s": table["timeframe"].map(TIMEFRAME_S),
            "relative_mae": table["relative_mae"],
        }
    )
    positions = keys.sort_values(["task", "bar_s", "relative_mae"], kind="stable").index
    return table.loc[positions].reset_index(drop=True)


def _result_folders(place: Path) -> list[Path]:
    """Return a run or a back-test, or those that a folder holds, by name; itself where it holds none."""

    def has_results(folder: Path) -> bool:
        return (folder / RUN_FILE).exists() or (folder / PLAN_FILE).exists()

    if has_results(place) or not place.is_dir():
        return [place]
    return sorted(filter(has_results, place.iterdir())) or [place]


def _rows(keys: dict[str, Any], metadata: Metadata) -> Iterator[dict[str, Any]]:
    """Yield the rows of a series, one a task."""
    series = metadata.series
    for task, verdict in metadata.verdicts.items():
        yield {
            **keys,
            "series": series,
            "timeframe": series.rpartition("-")[2],
            "task": task,
            "relative_mae": verdict.naive.relative_mae,
            "p_value": verdict.naive.corrected_p_value,
            "best_baseline": verdict.best.name,
            "relative_mae_to_best": verdict.best.relative_mae,
            "p_value_to_best": verdict.best.corrected_p_value,
            "verdict": verdict.best.verdict,
            "newest_candle": pd.Timestamp(metadata.candles.last_open),
        }
