"""The API of runs: train in a process of its own, read its tables, open its forecasters.

Frames are stored as Parquet under `V8_HOME` in a folder named by their content, so that the same call
continues an interrupted run.
"""

import html
import io
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias, get_origin

import pandas as pd
import yaml

from v8.api.arguments import PublicNames, argument_kind, checked_argument, in_python, unknown_argument
from v8.api.forecaster import Forecaster, publish_folder, sureness, tidy
from v8.api.training import TrainRequest
from v8.api.training import train as train_in_child
from v8.base.child import run_in_child
from v8.base.errors import ArtifactError, ProfileError, listed, shown
from v8.base.hardware import replacement_notice
from v8.base.process import command
from v8.base.reading import read_plain
from v8.base.registry import load_plugins, require_no_own_entries
from v8.base.storage import digest_json, home, write_bytes, write_text
from v8.data.market.checks import check_candles
from v8.data.market.companions import Companions, UserTable
from v8.data.market.series import Series, series_advice
from v8.data.market.sources.source import SOURCES
from v8.forecaster.metadata import HISTORY_FILE, Metadata, not_evaluated, read_metadata
from v8.forecaster.shared_models import SharedModels
from v8.model.evaluation.leaderboard import HISTORY_COLUMNS, LEADERBOARD_FILE, read_history
from v8.profile.profile import Profile, key_places, profile_names
from v8.publish.report.outputs import REPORT_FILE
from v8.runs.options import RunOptions
from v8.runs.run_folder import read_run
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


RawCandles: TypeAlias = str | Path | pd.DataFrame | Mapping[str, pd.DataFrame]

TABLES: Final = "tables"  # folder under `V8_HOME` for tables that a call has in memory
FRAMES: Final = (
    "frames"  # source name under which frames are evaluated and recorded: they are files of the user
)


_SPELT_OUT: Final = {"profile", "series", "runs", "fresh", "evaluate"}
"""Options of a run that are arguments of `train` by themselves."""

_OF_THE_CALL: Final = {"source", "data_dir"}
"""Options of a run that follow from other arguments."""

OPTIONS: Final[Mapping[str, Any]] = {
    name: argument_kind(field.annotation)
    for name, field in RunOptions.model_fields.items()
    if name not in _SPELT_OUT | _OF_THE_CALL
}
"""Other options of `train`: those of the command `run`, which its help explains; None is the default."""

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
    _require_no_profile(candles)
    run_options, keys = _divided(options)
    load_plugins(run_options.get("plugin", ()))
    require_no_own_entries("v8.train")
    names = [series] if isinstance(series, str) else list(series or ())
    loaded = Profile.of(profile) if isinstance(profile, str | Path) else profile
    if keys:
        profile = loaded = loaded.but(**keys)
    companions = Companions.of(loaded, covariates)
    candles = _with_others(candles, names, loaded, covariates or {})
    if covariates and loaded.covariates:
        run_options["tables"] = _stored_tables(companions.tables)
    run_options |= source_of(candles, names)
    complete_options = RunOptions(
        **run_options,
        profile=str(profile_file(profile)),
        runs=Path(runs),
        series=tuple(names),
        fresh=fresh,
        evaluate=evaluate,
    )
    continuing = command("run", *complete_options.words())
    notice = replacement_notice(complete_options.device)
    if notice and progress:
        print(notice)  # noqa: T201 - as the messages of the child
    trained = run_in_child(
        train_in_child,
        TrainRequest(complete_options, continuing),
        where="v8.train",
        on_message=print if progress else None,
    )
    run = Run(trained.path)
    run._refused = trained.refused
    return run


def _divided(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide the other arguments of `train` into options of a run and keys of its profile.

    Raises:
        ArgumentError: If a name is neither, or an option does not fit its kind.
    """
    profile_keys = key_places()
    unknown = next((name for name in options if name not in OPTIONS and name not in profile_keys), None)
    if unknown:
        arguments = [*train.__annotations__, *OPTIONS]
        raise unknown_argument("v8.train", unknown, arguments, profile_keys)
    run_options = {
        name: checked_argument("v8.train", name, options[name], kind)
        for name, kind in OPTIONS.items()
        if options.get(name) is not None
    }
    keys = {}
    if not run_options.get("smoke"):
        for name, key in _OF_PROFILE.items():
            if name in run_options:
                keys[key] = run_options.pop(name)
    for name, value in run_options.items():
        if get_origin(RunOptions.model_fields[name].annotation) is tuple:
            run_options[name] = (value,) if isinstance(value, str | Path) else tuple(value)
    keys |= {name: value for name, value in options.items() if name not in OPTIONS}
    return run_options, keys


def _with_others(
    candles: RawCandles, names: list[str], profile: Profile, covariates: Mapping[str, Any]
) -> RawCandles:
    """Add frames of other symbols to those of the series, and add the trained series to `names`.

    Raises:
        ProfileError: If the candles are no frames, or of several timeframes.
    """
    files = {covariate.file for covariate in profile.covariates}
    others = {symbol: frame for symbol, frame in covariates.items() if symbol not in files}
    if not others:
        return candles
    frames = _frames(candles, names) if not isinstance(candles, str | Path) else {}
    timeframes = {Series.parse(name).timeframe for name in frames}
    if len(timeframes) != 1:
        rule = "holds candles of other symbols only together with frames of candles of one timeframe"
        got = f"{listed(list(others))} together with {'several' if frames else repr(str(candles))}"
        fix = "Leave them out where the source has them, or put them among the frames and name yours: series="
        raise ProfileError(where="covariates=", rule=rule, got=got, fix=fix)
    (timeframe,) = timeframes
    return dict(frames) | {f"{symbol}-{timeframe}": frame for symbol, frame in others.items()}


def source_of(candles: RawCandles, names: list[str]) -> dict[str, Any]:
    """Return the candle source of a call as options of a run; frames are stored first."""
    _require_no_profile(candles)
    if isinstance(candles, str) and candles in SOURCES:
        return {"source": candles}
    if isinstance(candles, str | Path):
        if not Path(candles).is_dir():
            SOURCES.find(str(candles), where="candles=")  # suggests the nearest
        return {"source": "files", "data_dir": candles}
    return {"source": "files", "data_dir": _stored(_frames(candles, names))}


def _require_no_profile(candles: RawCandles) -> None:
    """Refuse the name of a profile where candles belong: the order of two arguments is easily confused."""
    if isinstance(candles, str) and candles in profile_names():
        rule = "comes first and says where candles come from; the profile comes second"
        fix = f'Write ("vision", "{candles}")'
        raise ProfileError(where="candles=", rule=rule, got=f"the profile {candles}", fix=fix)


def _frames(
    candles: pd.DataFrame | Mapping[str, pd.DataFrame], names: list[str]
) -> Mapping[str, pd.DataFrame]:
    """Return frames by series, and add all of these to `names` if it is empty.

    Raises:
        ProfileError: If it is not known which series a frame holds.
    """
    frames = candles if isinstance(candles, Mapping) else dict.fromkeys(names[:1], candles)
    if not frames or (len(names) != 1 and not isinstance(candles, Mapping)):
        rule = "names the one series that a frame holds"
        fix = 'Write for example series="BTCUSDT-15m", or give a mapping of frames by series'
        raise ProfileError(where="series=", rule=rule, got=repr(names), fix=fix)
    names[:] = names or list(frames)
    return frames


def _stored(frames: Mapping[str, pd.DataFrame]) -> Path:
    """Write checked frames as Parquet under `V8_HOME`, in a folder named by their content.

    A file that was cut or holds something else since is written again.
    """
    checked = {
        name: check_candles(frame, Series.parse(name), source=FRAMES) for name, frame in frames.items()
    }
    digests = {name: candles.digest for name, candles in checked.items()}
    folder = home() / FRAMES / digest_json(digests)[:16]
    for name, candles in checked.items():
        buffer = io.BytesIO()
        candles.to_frame().to_parquet(buffer)
        write_bytes(folder / f"{name}.parquet", buffer.getvalue())
    return folder


def _stored_tables(tables: Sequence[UserTable]) -> Path:
    """Write checked tables as CSV under `V8_HOME`, in a folder named by their content; see `_stored`."""
    texts = {table.settings.file: table.to_csv() for table in tables}
    folder = home() / TABLES / digest_json(texts)[:16]
    for file, text in texts.items():
        write_text(folder / file, text)
    return folder


def profile_file(profile: str | Path | Profile) -> str | Path:
    """Return the name or file of a profile; a `Profile` is written to a file under `V8_HOME`."""
    if not isinstance(profile, Profile):
        return profile
    file = home() / "profiles" / f"{profile.digest[:16]}.yaml"
    write_text(file, yaml.safe_dump(profile.model_dump(mode="json"), sort_keys=False))
    return file
