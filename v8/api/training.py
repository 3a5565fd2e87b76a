"""Training from Python: the same command in a process of its own, its lines in the notebook.

A process of its own starts TensorFlow as v8 wants it, whatever the notebook has done to it, needs no
`if __name__ == "__main__"`, and gives the same weights as the command line. Frames lie as Parquet under
`V8_HOME` meanwhile, by their content, so the same call continues an interrupted run.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO, TypeAlias, TypedDict, Unpack

import pandas as pd
import yaml

from v8.api.arguments import in_python
from v8.api.runs import Run
from v8.artifacts.run_folder import locate_run
from v8.errors import (
    DataError,
    ProfileError,
    PublishError,
    SeriesError,
    StorageError,
    V8Error,
    listed,
)
from v8.market.checks import check_candles
from v8.market.companions import Companions, UserTable
from v8.market.frames import candle_table
from v8.market.series import Series
from v8.market.sources.source import SOURCES
from v8.profile import Profile, load_profile
from v8.storage import digest_json, home, write_text, write_with

GivenCandles: TypeAlias = str | Path | pd.DataFrame | Mapping[str, pd.DataFrame]

TABLES: Final = "tables"
"""Folder under `V8_HOME` for tables that were given in memory."""

FRAMES: Final = "frames"
"""Source name under which frames are judged and recorded: they are files of the user."""

_INTERRUPT: Final = getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM)
"""Obeyed as Ctrl-C is, also where that is ignored; Windows has a signal of its own for it."""

_SENTENCE: Final = re.compile(r"(?P<where>.*?): (?P<rule>.*); got (?P<got>.*)\. (?P<fix>.*)\.")
_BY_EXIT_CODE: Final[dict[int, type[V8Error]]] = {
    kind.exit_code: kind
    for kind in (V8Error, ProfileError, DataError, SeriesError, PublishError, StorageError)
}


class Flags(TypedDict, total=False):
    """What else `train` takes: options of the command `run`, which its help explains; None is its default."""

    bars: int | None
    epochs: int | None
    precision: str | None
    no_mixed_precision: bool | None
    device: str | None
    workers: int | str | None
    fleet_size: int | str | None
    engine: str | None
    address: str | None
    universe: str | Path | None
    tables: str | Path | None
    redo: str | Sequence[str] | None
    track: str | Sequence[str] | None
    publish: str | None
    smoke: bool | None
    resume: bool | None


@in_python
def train(
    candles: GivenCandles = "vision",
    profile: str | Path | Profile = "aligned",
    *,
    series: str | Sequence[str] | None = None,
    covariates: Mapping[str, Any] | None = None,
    runs: str | Path = "runs",
    fresh: bool = False,
    progress: bool = True,
    **flags: Unpack[Flags],
) -> Run:
    """Train, judge and save a model for every series; the same call again continues or skips.

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
        progress: Whether to print what happens.
        flags: Other options of `run`, see `Flags`: bars, epochs, precision, device, workers, smoke ... What
            else there is to change is a key of the profile.

    Returns:
        The run; series that failed are in its `failures`.

    Raises:
        V8Error: If nothing could be trained; the sentence says why.

    >>> import v8
    >>> run = v8.train("demo", "frontier", series="BTCUSDT-1h", smoke=True, progress=False)
    >>> run.series
    ('BTCUSDT-1h',)
    """
    names = [series] if isinstance(series, str) else list(series or ())
    file = _profile_file(profile)
    loaded = load_profile(str(file))
    name = f"{loaded.name}-smoke" if flags.get("smoke") else loaded.name
    path = locate_run(Path(runs), name, is_fresh=fresh)
    given = Companions.of(loaded, covariates)
    candles = _with_others(candles, names, loaded, covariates or {})
    words = ["--profile", str(file), "--runs", str(runs), *_source_words(candles, names)]
    words += ["--tables", str(_kept_tables(given.tables()))] if covariates and loaded.covariates else []
    words += [word for one in names for word in ("--series", one)]
    words += [word for flag, value in {"fresh": fresh, **flags}.items() for word in _words(flag, value)]
    exit_code, errors = _call(["run", *words], shows=progress)
    if exit_code not in (0, SeriesError.exit_code) and not (path / "run.json").exists():
        raise _told(exit_code, errors)
    run = Run(path)
    if exit_code not in (0, SeriesError.exit_code) or not len(run):
        raise _told(exit_code, errors, run.failures)
    return run


def _with_others(
    candles: GivenCandles, names: list[str], profile: Profile, covariates: Mapping[str, Any]
) -> GivenCandles:
    """Put frames of other symbols to those of the series, and name the series that are trained.

    Raises:
        ProfileError: If candles are no frames, or of several timeframes.
    """
    files = {each.file for each in profile.covariates}
    others = {symbol: frame for symbol, frame in covariates.items() if symbol not in files}
    if not others:
        return candles
    frames = _frames(candles, names) if not isinstance(candles, str | Path) else {}
    names[:] = names or list(frames)
    timeframes = {Series.parse(name).timeframe for name in frames}
    if len(timeframes) != 1:
        raise ProfileError(
            where="covariates=",
            rule="holds candles of other symbols only beside frames of candles of one timeframe",
            got=f"{listed(list(others))} beside {'several' if frames else repr(str(candles))}",
            fix="Leave them out, where the source has them, or put their frames to those of the series and "
            "name the ones to train with series=",
        )
    return dict(frames) | {f"{symbol}-{next(iter(timeframes))}": frame for symbol, frame in others.items()}


def _source_words(candles: GivenCandles, names: list[str]) -> list[str]:
    """Say where the candles of a call come from, in words of the command line; frames are kept first."""
    if isinstance(candles, str) and candles in SOURCES:
        return ["--source", candles]
    if isinstance(candles, str | Path):
        if not Path(candles).is_dir():
            SOURCES.find(str(candles), where="candles=")  # suggests the nearest
        return ["--source", "files", "--data-dir", str(candles)]
    frames = _frames(candles, names)
    names[:] = names or list(frames)
    return ["--source", "files", "--data-dir", str(_kept(frames))]


def _frames(
    candles: pd.DataFrame | Mapping[str, pd.DataFrame], names: Sequence[str]
) -> Mapping[str, pd.DataFrame]:
    """Return frames by series.

    Raises:
        ProfileError: If a frame is of nobody knows which.
    """
    frames = candles if isinstance(candles, Mapping) else dict.fromkeys(names[:1], candles)
    if not frames or (len(names) != 1 and not isinstance(candles, Mapping)):
        raise ProfileError(
            where="series=",
            rule="names the one series that a frame holds",
            got=repr(names),
            fix='Write for example series="BTCUSDT-15m", or give a mapping of frames by series',
        )
    return frames


def _kept(frames: Mapping[str, pd.DataFrame]) -> Path:
    """Write checked frames as Parquet under `V8_HOME`, in a folder named by their content."""
    checked = {
        name: check_candles(candle_table(frame, Series.parse(name), name), Series.parse(name), source=FRAMES)
        for name, frame in frames.items()
    }
    folder = home() / FRAMES / digest_json({name: each.digest for name, each in checked.items()})[:16]
    for name, each in checked.items():
        if not (file := folder / f"{name}.parquet").exists():
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


def _words(flag: str, value: Any) -> list[str]:
    """Write an argument as a flag: nothing for what is left out or off.

    >>> _words("fleet_size", 4), _words("smoke", True), _words("fresh", False), _words("bars", None)
    (['--fleet-size', '4'], ['--smoke'], [], [])
    """
    name = f"--{flag.replace('_', '-')}"
    if value is None or isinstance(value, bool):
        return [name] if value else []
    values = [value] if isinstance(value, str | Path | int) else value
    return [word for one in values for word in (name, str(one))]


def _call(words: Sequence[str], *, shows: bool) -> tuple[int, str]:
    """Run a command of v8 in a process of its own; return its exit code and what it wrote to stderr."""
    # A group of its own: Ctrl-C reaches this process, which passes it on exactly once.
    apart: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        apart = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-m", "v8", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        **apart,
    ) as process:
        return _heard(process, sys.stdout.write if shows else None)


def _heard(process: subprocess.Popen[str], tell: Callable[[str], object] | None) -> tuple[int, str]:
    errors: list[str] = []
    readers = [
        threading.Thread(target=_follow, args=(process.stdout, tell)),
        threading.Thread(target=_follow, args=(process.stderr, errors.append)),
    ]
    for reader in readers:
        reader.start()
    try:
        process.wait()
    except KeyboardInterrupt:
        process.send_signal(_INTERRUPT)
        process.wait()
        raise
    finally:
        for reader in readers:
            reader.join()
    return process.returncode, "".join(errors)


def _follow(lines: TextIO | None, tell: Callable[[str], object] | None) -> None:
    for line in lines or ():
        if tell:
            tell(line)


def _told(exit_code: int, errors: str, failures: Mapping[str, str] | None = None) -> V8Error:
    """Turn how the process ended into the error that it printed, or into its first failure."""
    kind = _BY_EXIT_CODE.get(exit_code, V8Error)
    printed = next((line for line in errors.splitlines() if line.startswith("error: ")), "")
    reason = printed.removeprefix("error: ") or next(iter((failures or {}).values()), "")
    if found := _SENTENCE.fullmatch(reason):
        return kind(**found.groupdict())
    told = reason or " ".join(errors.split()[-60:]) or f"exit code {exit_code}"
    return kind(where="v8.train", rule="must end with a trained series", got=told, fix="Mend that and repeat")
