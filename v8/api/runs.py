"""A run and its series as a notebook wants them: trained by a process of its own, tables, forecasters.

Frames lie as Parquet under `V8_HOME` while they are trained on, by their content, so the same call continues
an interrupted run.
"""

import html
import io
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import pandas as pd
import yaml

from v8.api.arguments import Shown, in_python, taken, unknown_argument
from v8.api.forecaster import Forecaster, publish_folder, sureness, tidy
from v8.artifacts.metadata import HISTORY_FILE, Metadata, not_evaluated, read_metadata
from v8.artifacts.nested_runs import served_folder
from v8.artifacts.run_folder import read_run
from v8.artifacts.shared_models import SharedModels
from v8.errors import ArtifactError, ProfileError, V8Error, as_flag, listed, shown
from v8.evaluation.leaderboard import HISTORY_COLUMNS, LEADERBOARD_FILE, read_history
from v8.invocation import command
from v8.machine.processes import run_processes
from v8.market.checks import check_candles
from v8.market.companions import Companions, UserTable
from v8.market.series import Series, series_advice
from v8.market.sources.source import SOURCES
from v8.plugins import load_plugins, require_no_own_entries
from v8.profile import Profile, key_places
from v8.records import read_plain
from v8.runs.options import RunOptions
from v8.runs.outputs import REPORT_FILE
from v8.storage import digest_json, home, write_text, write_with


class TrainedSeries(Shown):
    """One finished series of a run, whose artefact lies in `folder`; those of one run share `models`."""

    def __init__(self, folder: Path, models: SharedModels | None = None) -> None:
        self.folder = folder
        self.name = folder.name
        self._models = models

    @cached_property
    def about(self) -> Metadata:
        """What is recorded about the model, checked."""
        return read_metadata(self.folder, series=self.name)

    @property
    def metadata(self) -> dict[str, Any]:
        """All that is recorded about the model."""
        return dict(self.about.content)

    @cached_property
    def evaluation(self) -> pd.DataFrame:
        """Errors on the test span beside every baseline's, see `tidy`."""
        return tidy(self.about.evaluation)

    @cached_property
    def history(self) -> pd.DataFrame:
        """Unitless scaled losses, one row an epoch; none of a formula."""
        epochs = read_history(self.folder / HISTORY_FILE)
        return pd.DataFrame(epochs, columns=HISTORY_COLUMNS).set_index("epoch")

    @cached_property
    def forecaster(self) -> Forecaster:
        """The model, ready to forecast."""
        return Forecaster.load(self.folder, models=self._models)

    def __repr__(self) -> str:
        return f"<{self.name}, trained, in {self.folder}>"


class _NoSeriesError(ArtifactError, KeyError):
    """What is not in a run, so that `in` and `get` work as for every mapping."""

    __str__ = Exception.__str__


class Run(Shown, Mapping[str, TrainedSeries]):
    """A run folder: a mapping from the names of its finished series to what was made of them.

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
        """One row a finished series, best first: errors beside naive and the best baseline."""
        if not self.record.is_evaluated:
            raise not_evaluated(str(self.path))
        fix = f"Draw it again: {command('report', str(self.path))}"
        content = read_plain(self.path / LEADERBOARD_FILE, fix=fix)
        return pd.read_csv(io.BytesIO(content), index_col="series")

    @property
    def quantiles(self) -> pd.DataFrame:
        """How good the quantiles of each finished series were, see `sureness`; empty where there are none."""
        found = {name: sureness(evaluated) for name in self if (evaluated := self[name].about.quantiles)}
        return pd.concat(found, names=["series"]) if found else pd.DataFrame()

    @in_python
    def __getitem__(self, series: object) -> TrainedSeries:
        if not isinstance(series, str) or series not in self.series:
            advice = series_advice(str(series), self.series, "Choose one of these")
            where = f"{self.path}, series {shown(repr(series), 60)}"
            got = listed(self.series) or "no finished series"
            fix = advice if self.series else "Train it first"
            raise _NoSeriesError(where=where, rule="must be finished in this run", got=got, fix=fix)
        return TrainedSeries(served_folder(self.path, series), self._models)

    def __iter__(self) -> Iterator[str]:
        return iter(self.series)

    def __len__(self) -> int:
        return len(self.series)

    @in_python
    def publish(self, repo: str, *, private: bool = False) -> str:
        """Publish the finished models in one commit and return its address on the Hugging Face Hub.

        The repository "user/name" is made when it is missing, hidden from others with `private`. Raises
        `PublishError` if they may not or cannot be published.
        """
        return publish_folder(self.path, repo, is_private=private)

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        evaluated = "" if self.record.is_evaluated else ", not evaluated"
        return f"<Run of {self.record.profile_name} in {self.path}: {len(self)} series{failed}{evaluated}>"

    def _repr_html_(self) -> str:
        """Show the leaderboard in a notebook."""
        tables = [self.leaderboard, self.quantiles] if len(self) and self.record.is_evaluated else []
        shown = "".join(table.to_html() for table in tables if not table.empty)
        return f"<p>{html.escape(repr(self))}</p>{shown}"


RawCandles: TypeAlias = str | Path | pd.DataFrame | Mapping[str, pd.DataFrame]

TABLES: Final = "tables"  # folder under `V8_HOME` for tables that were given in memory
FRAMES: Final = (
    "frames"  # source name under which frames are evaluated and recorded: they are files of the user
)


OPTIONS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("bars", "epochs"), int | None),
    **dict.fromkeys(("smoke", "resume", "importance", "no_mixed_precision"), bool | None),
    **dict.fromkeys(("precision", "device", "engine", "address", "publish"), str | None),
    **dict.fromkeys(("workers", "fleet_size"), int | str | None),
    **dict.fromkeys(("universe", "tables"), str | Path | None),
    **dict.fromkeys(("redo", "drop", "track"), str | Sequence[str] | None),
    "plugin": str | Path | Sequence[str | Path] | None,
}
"""What else `train` takes: options of the command `run`, which its help explains; None is its default."""

_OF_PROFILE: Final = {"bars": "newest_bars", "epochs": "epochs", "precision": "precision"}
"""Options that are keys of a profile, too; a smoke run has its own where they are not given."""


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
    """Train, evaluate and save a model for every series; the same call again continues or skips.

    Args:
        candles: The name of a source ("vision", "demo"), a folder of candle files, a frame of candles (then
            `series` names it), or a mapping of frames by series.
        profile: A shipped name, a YAML file, or a `Profile`.
        series: Such as "BTCUSDT-15m", or several; None for all there are.
        covariates: What the profile reads beside frames of candles: candles by symbol, tables by the name of
            their file; tables that are left out are read from the folder that `V8_TABLES` names. A source
            or a folder of candles brings the other symbols itself.
        runs: Folder of all run folders.
        fresh: Whether to start a new run beside the old ones.
        evaluate: Whether to evaluate models on the test span, beside the baselines. Those that are not evaluated
            forecast as others do; they have no leaderboard, and are not published.
        progress: Whether to print what happens.
        options: Keys of the profile, such as learning_rate, which make it another with a run of its own
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
    wanted, keys = _parted(options)
    load_plugins(wanted.get("plugin", ()))
    require_no_own_entries("v8.train")
    names = [series] if isinstance(series, str) else list(series or ())
    loaded = Profile.of(profile) if isinstance(profile, str | Path) else profile
    if keys:
        profile = loaded = loaded.but(**keys)
    given = Companions.of(loaded, covariates)
    candles = _with_others(candles, names, loaded, covariates or {})
    wanted |= {"tables": _kept_tables(given.tables)} if covariates and loaded.covariates else {}
    wanted |= {"profile": str(_profile_file(profile)), "runs": runs, **_source_of(candles, names)}
    asked = RunOptions(**wanted, series=tuple(names), fresh=fresh, evaluate=evaluate)
    order = asked.model_copy(update={"command": command("run", *_words(asked))})
    # A process of our own trains, which a Ctrl-C here stops after its batch.
    (answer,) = run_processes(
        [order], program="v8.cli.runs", on_message=print if progress else lambda line: None
    )
    if answer.error:
        raise answer.error
    if not answer.measured:
        told = " ".join(answer.errors.split()[-60:]) or f"exit code {answer.exit_code}"
        rule = "must end with a trained series"
        fix = "Mend that and repeat"
        raise V8Error(where="v8.train", rule=rule, got=told, fix=fix)
    run = Run(answer.measured[0]["path"])
    run._refused = answer.measured[0]["refused"]
    return run


def _parted(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part what `train` is given beside its own arguments into options of a run and keys of its profile.

    Raises:
        ArgumentError: If a name is neither, or an option not of its kind.
    """
    known = key_places()
    unknown = next((name for name in given if name not in OPTIONS and name not in known), None)
    if unknown:
        arguments = [*train.__annotations__, *OPTIONS]
        raise unknown_argument("v8.train", unknown, arguments, known)
    chosen = [name for name in OPTIONS if given.get(name) is not None]
    options = {name: taken("v8.train", name, given[name], OPTIONS[name]) for name in chosen}
    named = {} if options.get("smoke") else _OF_PROFILE
    keys = {key: options.pop(name) for name, key in named.items() if name in options}
    for name in {"redo", "drop", "track", "plugin"} & options.keys():
        value = options[name]
        options[name] = (value,) if isinstance(value, str | Path) else tuple(value)
    return options, keys | {name: value for name, value in given.items() if name not in OPTIONS}


def _words(options: RunOptions) -> list[str]:
    """Write options as words of the command line that continues the run.

    >>> _words(RunOptions(fleet_size=4, smoke=True, fresh=True, series=("A-1h", "B-1h")))
    ['--series', 'A-1h', '--series', 'B-1h', '--fleet-size', '4', '--smoke']
    """
    given = options.model_dump(exclude_defaults=True, exclude={"fresh", "redo", "drop", "command"})
    words = []
    for name, value in given.items():
        for one in value if isinstance(value, tuple) else (value,):
            flag = as_flag(name if one is not False else f"no_{name}")
            words += [flag] if isinstance(one, bool) else [flag, str(one)]
    return words


def _with_others(
    candles: RawCandles, names: list[str], profile: Profile, covariates: Mapping[str, Any]
) -> RawCandles:
    """Put frames of other symbols to those of the series, and name the series that are trained.

    Raises:
        ProfileError: If candles are no frames, or of several timeframes.
    """
    files = {each.file for each in profile.covariates}
    others = {symbol: frame for symbol, frame in covariates.items() if symbol not in files}
    if not others:
        return candles
    frames = _frames(candles, names) if not isinstance(candles, str | Path) else {}
    timeframes = {Series.parse(name).timeframe for name in frames}
    if len(timeframes) != 1:
        rule = "holds candles of other symbols only beside frames of candles of one timeframe"
        got = f"{listed(list(others))} beside {'several' if frames else repr(str(candles))}"
        fix = "Leave them out where the source has them, or put them among the frames and name yours: series="
        raise ProfileError(where="covariates=", rule=rule, got=got, fix=fix)
    return dict(frames) | {f"{symbol}-{next(iter(timeframes))}": frame for symbol, frame in others.items()}


def _source_of(candles: RawCandles, names: list[str]) -> dict[str, Any]:
    """Say where the candles of a call come from, as options of a run; frames are kept first."""
    if isinstance(candles, str) and candles in SOURCES:
        return {"source": candles}
    if isinstance(candles, str | Path):
        if not Path(candles).is_dir():
            SOURCES.find(str(candles), where="candles=")  # suggests the nearest
        return {"source": "files", "data_dir": candles}
    return {"source": "files", "data_dir": _kept(_frames(candles, names))}


def _frames(
    candles: pd.DataFrame | Mapping[str, pd.DataFrame], names: list[str]
) -> Mapping[str, pd.DataFrame]:
    """Return frames by series, and name the series that are trained: all, unless some are named already.

    Raises:
        ProfileError: If a frame is of nobody knows which.
    """
    frames = candles if isinstance(candles, Mapping) else dict.fromkeys(names[:1], candles)
    if not frames or (len(names) != 1 and not isinstance(candles, Mapping)):
        rule = "names the one series that a frame holds"
        fix = 'Write for example series="BTCUSDT-15m", or give a mapping of frames by series'
        raise ProfileError(where="series=", rule=rule, got=repr(names), fix=fix)
    names[:] = names or list(frames)
    return frames


def _kept(frames: Mapping[str, pd.DataFrame]) -> Path:
    """Write checked frames as Parquet under `V8_HOME`, in a folder named by their content."""
    checked = {name: check_candles(each, Series.parse(name), source=FRAMES) for name, each in frames.items()}
    folder = home() / FRAMES / digest_json({name: each.digest for name, each in checked.items()})[:16]
    for name, each in checked.items():
        file = folder / f"{name}.parquet"
        if not file.exists():
            write_with(file, each.to_frame().to_parquet)
    return folder


def _kept_tables(tables: Sequence[UserTable]) -> Path:
    """Write checked tables as CSV under `V8_HOME`, in a folder named by their content."""
    texts = {table.settings.file: table.to_csv() for table in tables}
    folder = home() / TABLES / digest_json(texts)[:16]
    for file, text in texts.items():
        if not (folder / file).exists():
            write_text(folder / file, text)
    return folder


def _profile_file(profile: str | Path | Profile) -> str | Path:
    if not isinstance(profile, Profile):
        return profile
    file = home() / "profiles" / f"{profile.digest[:16]}.yaml"
    write_text(file, yaml.safe_dump(profile.model_dump(mode="json"), sort_keys=False))
    return file
