"""Run folders: the folder of one profile over one universe, and `run.json`, the record of the run.

    runs/aligned/       run.json, leaderboard.csv, report.html, timing.json, features.py, report/*,
                        .lock, .lock-holder
      BTCUSDT-15m/      model.keras, metadata.json, history.csv, forecasts.json  (or error.txt)
      BTCUSDT-15m.replaced-1/   files that `--redo` set aside
      BTCUSD-15m.dropped-1/     files of a series that `--drop` took out of the run
      serving.json, generations/    models that were trained later, see `v8.runs.serving`

A run records what it was started with: profile, source, and per series the newest candle and the digest of
all candles. It can only be continued with the same. Otherwise `--fresh` starts another run; a fold of a
back-test is a run, too, and there `--out` starts another back-test. As long as no series is finished or in
training, the run may start again with other values. Nothing here deletes a run.

Every file is written to a temporary name and renamed. One process at a time may write; reading needs no lock,
so a finished run may be on a read-only disk.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool

from v8.base import records
from v8.base.errors import ArtifactError, DataError, ProfileError, StorageError, V8Error, listed, shown
from v8.base.hardware import describe_machine, versions
from v8.base.process import command
from v8.base.records import AS_WRITTEN, Sha256, Text, parse_json, read_json_object, read_plain
from v8.base.registry import loaded_plugins, nearest, other_plugins
from v8.base.storage import FolderLock, Pace, sweep, write_json
from v8.base.wording import capitalized
from v8.data.market.candles import CandlePin
from v8.data.market.series import Series, by_series, is_series_like
from v8.forecaster.metadata import ERROR_FILE
from v8.profile.profile import Profile, ProfileName, is_digest_of, profile_names, tables_folder
from v8.runs.machine import Loops

RUN_FORMAT = 3  # version of the keys of `run.json`
RUN_FILE = "run.json"
_MOST_NEIGHBOURS = 10_000  # most entries of a folder that are searched for a similar name
RUNS = Path("runs")  # folder of all run folders, unless a command names another
FRESH = "param:fresh"  # the parameter that starts another run
_MOST_RUNS = 100  # most runs that are listed when a folder of runs is named instead of a run

Status = Literal["pending", "running", "done", "failed"]


@dataclass(frozen=True)
class SeriesState:
    """The state of one series of a run."""

    status: Status = "pending"
    reason: str | None = None  # why it failed, one sentence; None if it did not
    candles: CandlePin | None = None  # the candles that it is pinned to; None until they are read first
    seconds: float | None = None  # wall time from features to saving, in seconds; None until it is done

    def __post_init__(self) -> None:
        if self.status == "failed" and not self.reason:
            raise ValueError("a failed series must have a reason")


@dataclass(frozen=True)
class RunStart:
    """What a run or a back-test was started with, and must be continued with."""

    format: int  # version of the keys of the record
    profile: dict[str, Any]  # the profile as JSON values
    profile_digest: str  # sha256 of the profile, 64 hex digits
    source: str  # name of the candle source
    is_publishable: bool  # false for the demo market
    command: str  # the command line
    created_at: str  # time of the start, ISO 8601 in UTC


def start_fields(
    profile: Profile, source: str, is_publishable: bool, command: str, version: int
) -> dict[str, Any]:
    """Return the fields of `RunStart` for a start now; `version` is the format of the record."""
    start = RunStart(
        format=version,
        profile=profile.model_dump(mode="json"),
        profile_digest=profile.digest,
        source=source,
        is_publishable=is_publishable,
        command=command,
        created_at=now_iso(),
    )
    return vars(start)


@dataclass(frozen=True)
class RunRecord(RunStart):
    """The content of `run.json`."""

    versions: dict[str, str]  # of Python, v8 and packages
    machine: dict[str, Any]  # see `v8.base.hardware.describe_machine`
    series: dict[str, SeriesState]  # by the name of the series
    precision: str | None = None  # Keras dtype policy of the training; None before anything is trained
    num_micro_batches: Annotated[int, Field(strict=True, ge=1, le=65_536)] | None = None
    """Micro-batches per optimiser step; None where that does not depend on the device, or before training."""
    loops: Loops | None = None
    """How loops over time are compiled, which changes the last bits; None before anything is trained."""
    is_evaluated: StrictBool = True  # whether the models are evaluated on the test span
    plugins: Mapping[Text, Sha256] = field(default_factory=dict)
    """Digests of the loaded plug-ins by name: what they register may change every result."""
    data_dir: Text | None = None
    """Folder that the candles were read from last, absolute; None if the source reads no folder."""
    tables: Text | None = None
    """Folder of the user's tables that the profile reads, absolute; None if it reads none."""

    @classmethod
    def begin(
        cls,
        profile: Profile,
        source: str,
        is_publishable: bool,
        command: str,
        *,
        data_dir: Path | None = None,
        tables: Path | None = None,
        is_evaluated: bool = True,
    ) -> "RunRecord":
        """Make the record of a run that starts now in this process.

        Args:
            profile: The profile.
            source: Name of the candle source.
            is_publishable: Whether models of this source may be published.
            command: The command line.
            data_dir: Folder that the source reads, if any; the folder may move before the run is continued.
            tables: Folder of the user's tables; that of `V8_TABLES` when None.
            is_evaluated: Whether the models are evaluated on the test span.
        """
        return cls(
            **start_fields(profile, source, is_publishable, command, RUN_FORMAT),
            versions=versions(),
            machine=describe_machine(),
            series={},
            plugins=dict(loaded_plugins),
            data_dir=None if data_dir is None else str(data_dir.absolute()),
            tables=str(tables_folder(tables)) if profile.covariates else None,
            is_evaluated=is_evaluated,
        )

    @property
    def profile_name(self) -> str:
        """Name of the profile."""
        return str(self.profile["name"])

    @property
    def done(self) -> list[str]:
        """Names of the finished series."""
        return [name for name, state in self.series.items() if state.status == "done"]

    @property
    def reasons(self) -> dict[str, str]:
        """The reason per series that failed."""
        return {name: str(state.reason) for name, state in self.series.items() if state.status == "failed"}


@dataclass(frozen=True)
class _Names:
    """The texts of `run.json` that become parts of a path."""

    profile: Annotated[ProfileName, records.at_keys("profile", "name")]
    series: Annotated[Mapping[str, Any], BeforeValidator(by_series)]


class RunFolder(FolderLock):
    """An open run folder, which this process holds until it is released; it is created if it does not exist.

    Its `record` is the content of `run.json`. A run on a read-only disk can be opened, too; only changes of
    it are refused.

    Args:
        path: The folder.
        start: What the run is started or continued with.
        starts_another: The parameter by which the command of this run starts another, for messages.

    Raises:
        ProfileError: If the folder belongs to another profile.
        ArtifactError: If it belongs to another source, is damaged or no run's, or another process writes it.
        StorageError: If there is no run and none can be written.
    """

    def __init__(self, path: Path, start: RunRecord, starts_another: str = FRESH) -> None:
        require_own_files(path)
        self.path = path
        self.record = start
        self._start = start
        self._starts_another = starts_another
        self.note: str | None = None
        """A message for the user about the opening of the run; None if there is none."""
        self._write_error: StorageError | None = None
        self._pace = Pace()
        try:
            super().__init__(path, starts_another)
        except StorageError as error:
            if not (path / RUN_FILE).is_file():
                raise
            self._write_error = error
        try:
            self._open(start)
        except BaseException:
            self.release()
            raise

    def require_writable(self) -> None:
        """Raise a `StorageError` if the folder cannot be written."""
        if self._write_error:
            raise self._write_error

    def state(self, series: Series) -> SeriesState:
        """Return the state of a series; `pending` if the run does not list it yet."""
        return self.record.series.get(str(series), SeriesState())

    def set_state(self, series: Series, **changes: Any) -> None:
        """Change fields of the state of a series and save `run.json`.

        With very many series the file is saved less often, see `Pace`. A process that was killed before it
        saved repeats the same work when it is continued, with the same results.
        """
        self.record.series[str(series)] = replace(self.state(series), **changes)
        self.require_writable()
        if self._pace.is_due(len(self.record.series)):
            self.save_record()

    def save_record(self) -> None:
        """Save `run.json` now, before any file is written that depends on its content."""
        self.require_writable()
        with self._pace.timed():
            write_json(self.path / RUN_FILE, asdict(self.record))

    def add_series(self, chosen: Iterable[Series]) -> None:
        """Record series that will be trained, and save `run.json` once."""
        for series in chosen:
            self.record.series[str(series)] = self.state(series)
        self.save_record()

    def reset_running(self) -> None:
        """Set series whose training was interrupted to `pending`; checkpoints keep the finished epochs."""
        for name, state in self.record.series.items():
            if state.status == "running":
                self.record.series[name] = replace(state, status="pending")
        if not self._write_error:
            self.save_record()

    def set_aside(self, series: Series) -> None:
        """Rename the folder of a series, and set the series to `pending`, so that it is trained again."""
        if self._moved_aside(series, "replaced"):
            self.set_state(series, status="pending", reason=None, seconds=None)

    def drop(self, series: Series) -> Path | None:
        """Remove a series from the run, and return the new folder of its files; None if it had none.

        If the process is killed during this call, the same call again completes it.
        """
        folder = self._moved_aside(series, "dropped")
        self.record.series.pop(str(series), None)
        self.save_record()
        return folder

    def _moved_aside(self, series: Series, reason: str) -> Path | None:
        """Rename the folder of a series by a reason; return the new folder, None if there was none."""
        old = self.series_folder(series)
        if not old.exists():
            return None
        self.require_writable()
        candidates = (old.with_name(f"{old.name}.{reason}-{number}") for number in count(1))
        new = next(folder for folder in candidates if not folder.exists())
        try:
            old.rename(new)
        except OSError as error:
            raise StorageError.of(new, error) from error
        return new

    def choose_once(
        self, name: Literal["precision", "loops", "num_micro_batches"], choose: Callable[[], Any]
    ) -> Any:
        """Return a setting of the training, which is chosen once and recorded.

        A run that is continued, maybe on another machine, uses the same setting and gets the same weights.
        """
        if getattr(self.record, name) is None:
            self.record = replace(self.record, **{name: choose()})
            self.save_record()
        return getattr(self.record, name)

    def pin(self, series: Series, candles: CandlePin) -> None:
        """Pin a series to its candles.

        Raises:
            DataError: If it is already pinned to other candles.
        """
        pinned = self.state(series).candles
        if not pinned:
            self.set_state(series, candles=candles)
        elif pinned.digest != candles.digest:
            raise DataError(
                where=str(series),
                rule=f"{self.path} was started with {pinned}",
                got=str(candles),
                fix=f"Bring back the same candles, or start another run with {self._starts_another}",
            )
        # These are the candles of the run, so they and its tables are now in these folders.
        if self._start.data_dir:
            self.record = replace(self.record, data_dir=self._start.data_dir)
        if self._start.tables:
            self.record = replace(self.record, tables=self._start.tables)

    def series_folder(self, series: Series) -> Path:
        """Return the folder of the artefact of a series; it need not exist."""
        return self.path / str(series)

    def _open(self, start: RunRecord) -> None:
        if not (self.path / RUN_FILE).exists():
            _require_empty_start(self.path, self._starts_another)
            self.save_record()
            return
        self.record = read_run(self.path, self._starts_another)
        if not self._write_error:
            for folder, _, _ in os.walk(self.path):
                sweep(Path(folder))
        error = _start_error(self.path, self.record, start, self._starts_another)
        if error:
            if not _is_without_results(self.path, self.record):
                raise error
            self.note = f"{self.path}: nothing of this run was finished or in training; it starts again."
            self.record = start
            self.save_record()
        self.reset_running()


def require_startable(path: Path, start: RunRecord, starts_another: str = FRESH) -> None:
    """Raise the error that `RunFolder` would raise for what a folder holds; nothing is written.

    Args:
        path: The run folder; it need not exist.
        start: What the run would be started or continued with.
        starts_another: As for `RunFolder`.

    Raises:
        ProfileError: If the folder belongs to another profile.
        ArtifactError: If it belongs to another source, is damaged or no run's.
    """
    require_own_files(path)
    if (path / RUN_FILE).exists():
        record = read_run(path, starts_another)
        error = _start_error(path, record, start, starts_another)
        if error and not _is_without_results(path, record):
            raise error
    elif path.is_dir():
        _require_empty_start(path, starts_another)


def _require_empty_start(path: Path, starts_another: str) -> None:
    require_empty(
        path,
        rule=f"a run starts in an empty folder; without {RUN_FILE} these files belong to no run",
        fix=f"Restore {RUN_FILE} to continue, or start another run with {starts_another}",
    )


def _is_without_results(path: Path, record: RunRecord) -> bool:
    """Return whether a run has no results: no series is done, and the only files are of errors."""
    if record.done:
        return False
    files = (file for name in record.series for file in (path / name).rglob("*"))
    return all(file.name == ERROR_FILE or file.is_dir() for file in files)


def _start_error(path: Path, record: RunRecord, start: RunRecord, starts_another: str) -> V8Error | None:
    """Return the error if the run at `path` cannot be continued with `start`; None if it can."""
    otherwise = f"or start another run with {starts_another}"
    if record.profile_digest != start.profile_digest:
        changes = changed_keys(record.profile, start.profile)
        return ProfileError(
            where=str(path),
            rule="a run is continued with the profile and budget it was started with",
            got=f"other values: {listed(changes)}" if changes else "a profile of another format",
            fix=f"Undo the change, {otherwise}",
        )
    if record.source != start.source:
        return ArtifactError(
            where=str(path),
            rule=f"the run was started with param:source {record.source} and is continued with it",
            got=f"param:source {start.source}",
            fix=f"Use the same source, {otherwise}",
        )
    fix = f"Name the same with param:plugin, {otherwise}"
    return other_plugins(record.plugins, where=str(path), fix=fix)


def changed_keys(old_profile: Mapping[str, Any], new_profile: Mapping[str, Any]) -> list[str]:
    """Return which keys of a profile changed, such as `newest_bars 3000 -> 8000`; both are JSON values."""
    old = flat_keys(old_profile)
    new = flat_keys(new_profile)
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return [f"{key} {old.get(key)!r} -> {new.get(key)!r}" for key in keys]


def require_empty(path: Path, *, rule: str, fix: str) -> None:
    """Raise an `ArtifactError` if a folder holds other than hidden files: models, or the user's own files."""
    names = sorted(file.name for file in path.iterdir() if not file.name.startswith("."))
    if names:
        raise ArtifactError(where=str(path), rule=rule, got=listed(names), fix=fix)


def start_another(parameter: str | None = None) -> str:
    """Say how another run is started: by a parameter of this command, or else by the command `run`."""
    return f"start another run with {parameter or '`' + command('run', '--fresh') + '`'}"


def read_run(path: Path, starts_another: str | None = None) -> RunRecord:
    """Read and check `run.json` of a run folder, without holding the folder.

    Messages offer the parameter `starts_another`, if this command has one that starts another run.

    Raises:
        ArtifactError: If there is none, it is damaged, has an unknown format or an impossible name, its
            profile does not match its digest, or the folder holds links.
    """
    require_own_files(path)
    file = path / RUN_FILE
    if not file.exists() and not path.is_symlink():
        raise _no_run_error(path)
    start_new = start_another(starts_another)
    content = read_json_object(file, fix=capitalized(start_new))
    format_fix = f"Use the v8 that wrote it, or {start_new}"
    records.check_format(content, RUN_FORMAT, kind="run", where=str(file), fix=format_fix)
    fix = f"Restore the file, or {start_new}"
    record = records.checked(RunRecord, content, where=str(file), fix=fix, rule=AS_WRITTEN)
    records.checked(_Names, content, where=str(file), fix=fix)
    require_own_profile(file, fix=fix)
    for name in record.series:
        require_own_files(path / name)
    return record


def folder_advice(path: Path, otherwise: str = "Check the path") -> str:
    """Say what a path that does not exist is probably meant to be.

    That is the folder next to it with the most similar name, the run of a profile of that name, or a series;
    `otherwise` if it is like none of these.
    """
    name = path.name if path.parent == Path.cwd() else str(path)
    if is_series_like(name):
        return f"Name the run first, such as runs/frontier, and then param:series {name}"
    try:
        names = [file.name for file in islice(path.parent.iterdir(), _MOST_NEIGHBOURS) if file.is_dir()]
    except OSError:
        names = []
    suggestion = nearest(path.name, names)
    if suggestion:
        return f"Did you mean {path.parent / suggestion}"
    if (RUNS / name / RUN_FILE).is_file():
        return f"Did you mean {RUNS / name}"
    if name in profile_names():
        return (
            f"That is a profile: train it with `{command('run', '--profile', name)}`, and name {RUNS / name}"
        )
    return otherwise


def _no_run_error(path: Path) -> ArtifactError:
    runs = sorted(str(file.parent) for file in islice(path.glob(f"*/{RUN_FILE}"), _MOST_RUNS))
    if not path.is_dir():
        got = "a file" if path.exists() else "no such folder"
    elif runs:
        got = f"a folder of runs: {listed(runs)}"
    else:
        got = "a folder without one"
    fix = f"Name one of its runs, such as {runs[0]}" if runs else f"Train one with `{command('run')}`"
    if not path.is_dir():
        fix = folder_advice(path, fix)
    return ArtifactError(
        where=str(path), rule=f"must be the folder of one run, which holds {RUN_FILE}", got=got, fix=fix
    )


def require_own_profile(file: Path, *, fix: str) -> None:
    """Raise an `ArtifactError` if the profile of a checked record was edited without changing its digest.

    Runs are distinguished by this digest.
    """
    # Read again: `read_json_object` changes texts so that they can be printed, but the digest is of the
    # original texts.
    content = parse_json(read_plain(file, fix=fix))
    digest = str(content["profile_digest"])
    if not is_digest_of(digest, content["profile"]):
        raise ArtifactError(
            where=f"{file}, key profile",
            rule=f"must be the profile whose digest stands in profile_digest ({shown(digest)[:12]})",
            got="another one, edited since",
            fix=fix,
        )


def require_own_files(folder: Path) -> None:
    """Raise an `ArtifactError` if the folder of a run, or of a series in it, holds links.

    The files that links lead to do not belong to the run. The run folder itself may be a link, because the
    user named it.
    """
    if not folder.is_dir():
        return
    linked = sorted(file.name for file in folder.iterdir() if file.is_symlink())
    if linked:
        raise ArtifactError(
            where=str(folder),
            rule="a run holds its files itself; what a link leads to is neither read nor published",
            got=f"links named {listed(linked)}",
            fix="Put the files in their place, or remove the links",
        )


def locate_run(runs: Path, profile: str, kind: str = "", *, is_fresh: bool) -> Path:
    """Return the run folder that a command works in.

    Runs of the same profile and kind (such as `-smoke`) are named `name`, `name-2`, `name-3` ... A command
    continues the newest of them; with `is_fresh` it takes the next free number.
    """
    name = f"{profile}{kind}"
    existing = {1: runs / name} if (runs / name).exists() else {}
    for path in runs.glob(f"{name}-*"):
        number = re.fullmatch(r"[1-9][0-9]*", path.name.removeprefix(f"{name}-"))
        if not number or int(number[0]) < 2:
            continue
        # A profile may itself be called aligned-2: its runs are not continued, but their names are taken.
        if is_fresh or ((path / RUN_FILE).exists() and read_run(path, FRESH).profile_name == profile):
            existing[int(number[0])] = path
    if not existing:
        return runs / name
    newest = max(existing)
    return runs / f"{name}-{newest + 1}" if is_fresh else existing[newest]


def now_iso() -> str:
    """Return the current time, ISO 8601 in UTC, in whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def flat_keys(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, with keys such as `training.epochs`."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            flat |= flat_keys(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
