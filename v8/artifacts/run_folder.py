"""Run folders: the folder of one profile over one universe, and `run.json`, its memory.

    runs/aligned/       run.json, leaderboard.csv, report.html, timing.json, report/*.png, .lock, .lock-holder
      BTCUSDT-15m/      model.keras, metadata.json, history.csv, forecasts.json  (or error.txt)
      BTCUSDT-15m.replaced-1/   what `--redo` set aside
      BTCUSD-15m.dropped-1/     what `--drop` took out of the run
      serving.json, generations/    models that were trained later, see `v8.artifacts.nested_runs`

A run pins what it was started with: profile, source, and per series the newest candle and the digest
of all of them. Whoever continues it must bring the same, or start another folder beside it with
`--fresh`; while nothing of it is finished or in training, it simply begins anew. Nothing here deletes a run.
Every file is written aside and renamed, and one process at a time may write. Who only reads needs no lock,
so a finished run may lie where nothing can be written.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool

from v8 import records
from v8.errors import ArtifactError, DataError, ProfileError, StorageError, V8Error, listed, shown
from v8.hardware import describe_machine, versions
from v8.invocation import command
from v8.market.candles import Candles
from v8.market.series import Series, by_series, is_series_name
from v8.plugins import loaded, other_plugins
from v8.profile import TABLES_PLACE, Profile, ProfileName, is_digest_of
from v8.records import AS_WRITTEN, Count, Moment, Sha256, Text
from v8.storage import FolderLock, Pace, expanded, sweep, write_json

RUN_FORMAT = 1  # version of the keys of `run.json`
RUN_FILE = "run.json"
ERROR_FILE = "error.txt"  # full traceback of a failed series, beside where its model would be (G10)
GENERATIONS_FOLDER = "generations"  # holds the run folders of models that were trained later
_MOST_RUNS = 100  # runs of a folder of runs that are looked for, to name some

Status = Literal["pending", "running", "done", "failed"]


SeriesName = Annotated[
    str,
    Field(strict=True),
    records.refusing(lambda name: None if is_series_name(name) else "names a series such as BTCUSDT-15m"),
]
"""Such as "BTCUSDT-15m"; safe as the name of a folder."""

Loops = Literal[
    "stepwise",
    "whole",
    "whole_of_16",
    "gpu",
    "gpu_trips_of_4",
    "gpu_trips_of_10",
    "gpu_trips_of_60",
    "gpu_command_buffers",
    "gpu_unrolled_command_buffers",
    "gpu_small_command_buffers",
    "gpu_double_buffering",
]
"""On a CPU whether XLA runs each operation of a loop as a task, or the loop as one kernel, in which tiles:
`v8.machine.choices.FLAGS`; on a GPU how kernels are launched: `v8.machine.choices.GPU_LOOPS`."""


@dataclass(frozen=True)
class CandlePin:
    """Which candles a series of a run was started with, or a model made from."""

    first_open: Moment  # open time of the oldest candle, ISO 8601 in UTC
    last_open: Moment  # open time of the newest candle, ISO 8601 in UTC; continuing never reads past it
    num_bars: Count  # number of candles
    digest: Sha256  # of the candles, 64 hex digits

    @property
    def last_open_s(self) -> int:
        """Open time of the newest candle in UTC seconds since the epoch."""
        return int(datetime.fromisoformat(self.last_open).timestamp())

    def __str__(self) -> str:
        span = f"{self.num_bars:,} candles from {self.first_open} to {self.last_open}"
        return f"{span} with digest {self.digest[:12]}"


@dataclass(frozen=True)
class SeriesState:
    """How far one series is."""

    status: Status = "pending"  # `pending`, `running`, `done` or `failed`
    reason: str | None = None  # why it failed, one sentence; None otherwise
    candles: CandlePin | None = None  # the candles it is pinned to; None before they were first read
    seconds: float | None = None  # wall time of the series from features to saving; None before it is done

    def __post_init__(self) -> None:
        if self.status == "failed" and not self.reason:
            raise ValueError("a failed series must tell its reason")


@dataclass(frozen=True)
class Begun:
    """What every record says of what was begun, and must be gone on with."""

    format: int
    profile: dict[str, Any]  # what is trained
    profile_digest: str
    source: str  # name of the candle source
    is_publishable: bool  # false for the demo market
    command: str  # the command line
    created_at: str  # when, ISO 8601 in UTC


def begun(profile: Profile, source: str, is_publishable: bool, command: str, version: int) -> dict[str, Any]:
    """Return the fields of `Begun` for what begins here and now, in a format of some version."""
    content = profile.model_dump(mode="json")
    return vars(Begun(version, content, profile.digest, source, is_publishable, command, now_iso()))


@dataclass(frozen=True)
class RunRecord(Begun):
    """The content of `run.json`."""

    versions: dict[str, str]
    machine: dict[str, Any]
    series: dict[str, SeriesState]
    precision: str | None = None  # Keras dtype policy it trains in; None before anything was trained
    num_parts: Annotated[int, Field(strict=True, ge=1, le=65_536)] | None = None
    """Batches that make one optimiser step; None where that does not depend on the device, or before."""
    loops: Loops | None = None
    """How loops over time were compiled, which decides the last bits; None before anything was trained."""
    is_evaluated: StrictBool = True  # whether its models are evaluated on the test span, beside the baselines
    plugins: Mapping[Text, Sha256] = field(default_factory=dict)
    """Digests of the plug-ins of its process, by name: what they register may decide all that is here."""
    data_dir: Text | None = None
    """Folder that its candles were read from last, absolute; None where the source reads no folder."""
    tables: Text | None = None
    """Folder of the user's tables that its profile reads, absolute; None where it reads none."""

    @classmethod
    def begin(
        cls,
        profile: Profile,
        source: str,
        is_publishable: bool,
        command: str,
        *,
        data_dir: Path | None = None,
    ) -> "RunRecord":
        """Record what a run is started with, and must be continued with, here and now.

        The source reads `data_dir`, if it reads a folder; it may move until the run is continued.
        """
        common = begun(profile, source, is_publishable, command, RUN_FORMAT)
        tables = expanded(os.environ.get(TABLES_PLACE) or ".", variable=TABLES_PLACE).absolute()
        return cls(
            **common,
            versions=versions(),
            machine=describe_machine(),
            series={},
            plugins=dict(loaded),
            data_dir=None if data_dir is None else str(data_dir.absolute()),
            tables=str(tables) if profile.covariates else None,
        )

    @property
    def profile_name(self) -> str:
        """Name of the profile."""
        return str(self.profile["name"])

    @property
    def done(self) -> list[str]:
        """Names of the finished series."""
        return [name for name, one in self.series.items() if one.status == "done"]

    @property
    def reasons(self) -> dict[str, str]:
        """Why series failed."""
        return {name: str(one.reason) for name, one in self.series.items() if one.status == "failed"}


@dataclass(frozen=True)
class _Names:
    """What of `run.json` becomes part of a path."""

    profile: Annotated[ProfileName, records.at_keys("profile", "name")]
    series: Annotated[Mapping[str, Any], BeforeValidator(by_series)]


class RunFolder(FolderLock):
    """An open run folder, made when missing, and held by this process until it is closed.

    Its `record` is what `run.json` holds; the run is started or continued with what `begun` records. A run
    that lies where nothing can be written is opened all the same; only changing it is then refused.

    Raises:
        ProfileError: If the folder belongs to another profile.
        ArtifactError: If it belongs to another source, is damaged or no run's, or another process writes it.
        StorageError: If there is no run and none can be written.
    """

    def __init__(self, path: Path, begun: RunRecord) -> None:
        require_own_files(path)
        self.path = path
        self.record = begun
        self._begun = begun
        self.note: str | None = None
        """What happened to the run when it was opened and the user should know."""
        self._refusal: StorageError | None = None
        self._pace = Pace()
        try:
            super().__init__(path)
        except StorageError as refusal:
            if not (path / RUN_FILE).is_file():
                raise
            self._refusal = refusal
        try:
            self._open(begun)
        except BaseException:
            self.release()
            raise

    def require_writable(self) -> None:
        """Refuse a place that cannot be written, by `StorageError`."""
        if self._refusal:
            raise self._refusal

    def state(self, series: Series) -> SeriesState:
        """Return how far a series is; `pending` when the run has not met it yet."""
        return self.record.series.get(str(series), SeriesState())

    def set_state(self, series: Series, **changes: Any) -> None:
        """Change fields of one series' state and save `run.json`, with very many series when `Pace` says so.

        A process that is killed before does again what it did meanwhile, to the same bits.
        """
        self.record.series[str(series)] = replace(self.state(series), **changes)
        self.require_writable()
        if self._pace.is_due(len(self.record.series)):
            self.keep()

    def keep(self) -> None:
        """Save `run.json` now: before anything is made that rests on it."""
        self.require_writable()
        with self._pace.timed():
            write_json(self.path / RUN_FILE, asdict(self.record))

    def expect(self, chosen: Iterable[Series]) -> None:
        """List series that are to be trained, all in one write."""
        for series in chosen:
            self.record.series[str(series)] = self.state(series)
        self.keep()

    def release_running(self) -> None:
        """Say of series that were cut off that they wait again; their checkpoints keep their epochs."""
        for name, state in self.record.series.items():
            if state.status == "running":
                self.record.series[name] = replace(state, status="pending")
        if not self._refusal:
            self.keep()

    def set_aside(self, series: Series) -> None:
        """Move all that is there of a series out of the way and let it wait to be trained anew."""
        if self._moved_aside(series, "replaced"):
            self.set_state(series, status="pending", reason=None, seconds=None)

    def drop(self, series: Series) -> Path | None:
        """Take a series out of the run, and return where its files lie now; None where it had none.

        Killed in between, the same call again ends it.
        """
        place = self._moved_aside(series, "dropped")
        self.record.series.pop(str(series), None)
        self.keep()
        return place

    def _moved_aside(self, series: Series, why: str) -> Path | None:
        """Rename the folder of a series by why it goes; return its new place, None where there is none."""
        old = self.series_folder(series)
        if not old.exists():
            return None
        self.require_writable()
        places = (old.with_name(f"{old.name}.{why}-{number}") for number in count(1))
        new = next(place for place in places if not place.exists())
        try:
            old.rename(new)
        except OSError as error:
            raise StorageError.of(new, error) from error
        return new

    def settle(self, name: Literal["precision", "loops", "num_parts"], choose: Callable[[], Any]) -> Any:
        """Return how this run trains, chosen once: whoever continues it gets the same weights."""
        if getattr(self.record, name) is None:
            self.record = replace(self.record, **{name: choose()})
            self.keep()
        return getattr(self.record, name)

    def pin(self, series: Series, candles: CandlePin) -> None:
        """Pin a series to its candles, or refuse others than it is pinned to, by `DataError`."""
        pinned = self.state(series).candles
        if not pinned:
            self.set_state(series, candles=candles)
        elif pinned.digest != candles.digest:
            rule = f"{self.path} was started with {pinned}"
            fix = "Bring back the same candles, or start a new run beside it with param:fresh"
            raise DataError(where=str(series), rule=rule, got=str(candles), fix=fix)
        # They are the run's own: so this is where these lie now.
        if self._begun.data_dir:
            self.record = replace(self.record, data_dir=self._begun.data_dir)
        if self._begun.tables:
            self.record = replace(self.record, tables=self._begun.tables)

    def series_folder(self, series: Series) -> Path:
        """Return the folder of one series' artefact; it need not exist."""
        return self.path / str(series)

    def _open(self, begun: RunRecord) -> None:
        if not (self.path / RUN_FILE).exists():
            require_empty(
                self.path,
                rule=f"a run starts in a folder of its own; without {RUN_FILE} nobody knows whose these are",
                fix=f"Restore {RUN_FILE} to continue, or start a new run beside it with param:fresh",
            )
            self.keep()
            return
        self.record = read_run(self.path)
        if not self._refusal:
            for folder, _, _ in os.walk(self.path):
                sweep(Path(folder))
        refusal = self._other_start(begun)
        if refusal:
            if not self._is_bare():
                raise refusal
            self.note = f"{self.path}: nothing of this run was finished or in training; it begins anew."
            self.record = begun
            self.keep()
        self.release_running()

    def _is_bare(self) -> bool:
        """Tell whether the run made nothing yet: no series is done, and none left more than why it failed."""
        left = (file for name in self.record.series for file in (self.path / name).rglob("*"))
        is_any_done = any(state.status == "done" for state in self.record.series.values())
        return not is_any_done and all(file.name == ERROR_FILE or file.is_dir() for file in left)

    def _other_start(self, begun: RunRecord) -> V8Error | None:
        """Return why the run cannot go on with what is begun now; None when it can."""
        record = self.record
        if record.profile_digest != begun.profile_digest:
            old = _flat(record.profile)
            new = _flat(begun.profile)
            keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
            changes = [f"{key} {old.get(key)!r} -> {new.get(key)!r}" for key in keys]
            rule = "a run is continued with the profile and budget it was started with"
            got = f"other values: {listed(changes)}" if changes else "a profile of another format"
            fix = "Undo the change, or start a new run beside it with param:fresh"
            return ProfileError(where=str(self.path), rule=rule, got=got, fix=fix)
        if record.source != begun.source:
            rule = f"the run was started with param:source {record.source} and is continued with it"
            fix = "Use the same source, or start a new run beside it with param:fresh"
            return ArtifactError(where=str(self.path), rule=rule, got=f"param:source {begun.source}", fix=fix)
        fix = "Name the same with param:plugin, or start a new run beside it with param:fresh"
        return other_plugins(record.plugins, where=str(self.path), fix=fix)


def require_empty(path: Path, *, rule: str, fix: str) -> None:
    """Refuse to begin where something but hidden files lies: models, or a user's own files."""
    found = sorted(each.name for each in path.iterdir() if not each.name.startswith("."))
    if found:
        raise ArtifactError(where=str(path), rule=rule, got=listed(found), fix=fix)


def read_run(path: Path) -> RunRecord:
    """Read and check `run.json` of a run folder, without holding the folder.

    Raises `ArtifactError` if there is none, it is damaged, of an unknown format, or names what no run
    holds, or a file of the folder lies elsewhere, or its profile is not that of its digest.
    """
    require_own_files(path)
    file = path / RUN_FILE
    other = "start a new run beside it with param:fresh"
    if not file.exists() and not path.is_symlink():
        runs = sorted(str(each.parent) for each in islice(path.glob(f"*/{RUN_FILE}"), _MOST_RUNS))
        kind = f"a folder of runs: {listed(runs)}" if runs else "a folder without one"
        where = str(path)
        rule = f"must be the folder of one run, which holds {RUN_FILE}"
        fix = f"Name one of its runs, such as {runs[0]}" if runs else f"Train one with `{command('run')}`"
        raise ArtifactError(where=where, rule=rule, got=kind if path.is_dir() else "no such folder", fix=fix)
    content = records.read_json_object(file, fix=other.capitalize())
    fix = f"Use the v8 that wrote it, or {other}"
    records.check_format(content, (RUN_FORMAT,), what="run", where=str(file), fix=fix)
    fix = f"Restore the file, or {other}"
    record = records.checked(RunRecord, content, where=str(file), fix=fix, rule=AS_WRITTEN)
    records.checked(_Names, content, where=str(file), fix=fix)
    require_own_profile(file, fix=fix)
    for name in record.series:
        require_own_files(path / name)
    return record


def require_own_profile(file: Path, *, fix: str) -> None:
    """Refuse a checked record whose profile was edited under its old digest, by which runs are told apart."""
    # Digests are of texts as they are, not as they are shown.
    content = json.loads(records.read_plain(file, fix=fix))
    digest = str(content["profile_digest"])
    if not is_digest_of(digest, content["profile"]):
        rule = f"must be the profile whose digest stands in profile_digest ({shown(digest)[:12]})"
        raise ArtifactError(where=f"{file}, key profile", rule=rule, got="another one, edited since", fix=fix)


def require_own_files(folder: Path) -> None:
    """Refuse a folder of a run, or of a series in it, that holds links: what they lead to is not the run's.

    The run folder itself may be a link, because the user named it.
    """
    if not folder.is_dir():
        return
    linked = sorted(part.name for part in folder.iterdir() if part.is_symlink())
    if linked:
        rule = "a run holds its files itself; what a link leads to is neither read nor published"
        fix = "Put the files in their place, or remove the links"
        raise ArtifactError(where=str(folder), rule=rule, got=f"links named {listed(linked)}", fix=fix)


def locate_run(runs: Path, profile: str, kind: str = "", *, is_fresh: bool) -> Path:
    """Return the folder that a call works in.

    The runs of one name, that of the profile and their kind, such as `-smoke`, are `name`, `name-2`,
    `name-3` ... A call continues the newest of them, and a fresh one takes the next free number.
    """
    name = f"{profile}{kind}"
    taken = {1: runs / name} if (runs / name).exists() else {}
    for path in runs.glob(f"{name}-*"):
        number = re.fullmatch(r"[1-9][0-9]*", path.name.removeprefix(f"{name}-"))
        if not number or int(number[0]) < 2:
            continue
        # A profile may itself be called aligned-2; its runs are not ours. A new folder takes nobody's name.
        if is_fresh or ((path / RUN_FILE).exists() and read_run(path).profile_name == profile):
            taken[int(number[0])] = path
    if is_fresh:
        return runs / (f"{name}-{max(taken) + 1}" if taken else name)
    return taken[max(taken)] if taken else runs / name


def pin_of(candles: Candles) -> CandlePin:
    """Describe candles so that they can be recognised later."""
    first, last = (datetime.fromtimestamp(int(time_s), UTC) for time_s in candles.open_time_s[[0, -1]])
    return CandlePin(first.isoformat(), last.isoformat(), len(candles), candles.digest)


def now_iso() -> str:
    """Return the time now, ISO 8601 in UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat
