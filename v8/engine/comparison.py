"""Measures profiles side by side: the same candles, fresh processes, turns in a rotating order.

Candles are read first and pinned, so every measurement trains on exactly the same ones or fails. Then
each profile runs once per repeat in a process of its own (`v8.engine.measuring`), one process at a
time; each repeat starts with another profile. A profile that fails is named and the others go on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from v8.artifacts.run_folder import locate_run, now_iso, pin_of
from v8.errors import ProfileError
from v8.machine import describe_machine, versions
from v8.market.series import Series
from v8.market.sources.source import CandleSource
from v8.profile import Profile
from v8.reports.comparison_results import Comparison, Measurement

RUNS_FOLDER = "runs"
"""Where the run folder of every measurement is kept, beside the comparison."""

STOP_S = 30.0
"""How long a measuring process may take to stop after its batch before it is killed."""

LAST_WORDS_CHARACTERS = 600

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Order:
    """What a measuring process is asked to do; it travels as JSON.

    Args:
        profile: The profile with its budget.
        repeat: From 1.
        own_epochs: Most epochs of the profile without the budget.
        source: Name of the candle source.
        data_dir: Its folder, or None.
        pins: Per series, the `CandlePin` it must be trained on.
        run: Run folder to make.
        command: The command line, for the run's record.
        fleet_size: Models of one program; None: all on a GPU, one on a CPU.
        needs_gpu: Whether to refuse to run without a GPU.
        matmul_seconds: About how long to measure the matmul ceiling.
    """

    profile: dict[str, Any]
    repeat: int
    own_epochs: int
    source: str
    data_dir: str | None
    pins: dict[str, dict[str, Any]]
    run: str
    command: str
    fleet_size: int | None
    needs_gpu: bool
    matmul_seconds: float


@dataclass(frozen=True)
class Setting:
    """What is compared, and how.

    Args:
        profiles: Profiles with their budget, in the order of the tables.
        own_epochs: Per name, most epochs without the budget.
        series: What to train on.
        source: Where candles come from.
        data_dir: Folder of the source "files", or None.
        epochs: Epochs of the budget; None when each profile runs its own.
        num_repeats: How often each profile is measured.
        baseline: Name of the profile that ratios refer to.
        out: Folder of the comparison.
        command: The command line.
        fleet_size: See `Order`.
        needs_gpu: See `Order`.
        num_workers: Processes that a run on this machine has at work side by side.
        matmul_seconds: See `Order`.
    """

    profiles: tuple[Profile, ...]
    own_epochs: dict[str, int]
    series: tuple[Series, ...]
    source: CandleSource
    data_dir: Path | None
    epochs: int | None
    num_repeats: int
    baseline: str
    out: Path
    command: str
    fleet_size: int | None
    needs_gpu: bool
    num_workers: int
    matmul_seconds: float = 1.0

    def __post_init__(self) -> None:
        names = [profile.name for profile in self.profiles]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise ProfileError(
                where="--profiles",
                rule="compares profiles of different names",
                got=f"{twice} {names.count(twice)} times",
                fix="Give each file its own name: key",
            )
        if self.baseline not in names:
            raise ProfileError(
                where="--baseline-profile",
                rule=f"is one of the compared profiles ({', '.join(names)})",
                got=repr(self.baseline),
                fix="Add it to --profiles or choose another",
            )


def compare(setting: Setting, tell: Tell) -> Comparison:
    """Measure every profile in every repeat.

    Args:
        setting: What to do.
        tell: Told one sentence at a time what happens.

    Returns:
        What was measured and what failed.

    Raises:
        DataError: If the candles of a series cannot be read.
        KeyboardInterrupt: When interrupted; the measuring process is stopped first.
    """
    created_at = now_iso()
    pins, download_s = _read_candles(setting, tell)
    measurements: list[Measurement] = []
    failures: dict[str, str] = {}
    for repeat in range(1, setting.num_repeats + 1):
        for profile in turns(setting.profiles, repeat):
            if profile.name in failures and not any(one.profile == profile.name for one in measurements):
                continue  # it failed altogether; another try would cost as much and say the same
            tell(f"repeat {repeat} of {setting.num_repeats}: {profile.name}")
            found, reason = _measure(_order(setting, profile, repeat, pins[profile.name]), tell)
            if found:
                measurements.append(found)
            if reason:
                failures[profile.name] = reason
                tell(f"{profile.name}: failed: {reason}")
    return Comparison(
        command=setting.command,
        created_at=created_at,
        source=setting.source.name,
        is_demo=not setting.source.is_publishable,
        series=tuple(str(series) for series in setting.series),
        num_bars={profile.name: profile.newest_bars for profile in setting.profiles},
        epochs=setting.epochs,
        num_repeats=setting.num_repeats,
        baseline=setting.baseline,
        num_workers=setting.num_workers,
        download_s=download_s,
        machine=describe_machine(),
        versions=versions(),
        measurements=tuple(measurements),
        failures=failures,
    )


def turns(profiles: Sequence[Profile], repeat: int) -> list[Profile]:
    """Return the order of a repeat: each starts one profile later than the one before.

    Args:
        profiles: At least one.
        repeat: From 1.
    """
    first = (repeat - 1) % len(profiles)
    return [*profiles[first:], *profiles[:first]]


def _read_candles(
    setting: Setting, tell: Tell
) -> tuple[dict[str, dict[str, dict[str, Any]]], dict[str, float]]:
    """Read the candles of every series once, as long as the longest profile wants them, and pin them."""
    most_bars = max(profile.newest_bars for profile in setting.profiles)
    pins: dict[str, dict[str, dict[str, Any]]] = {profile.name: {} for profile in setting.profiles}
    seconds = {}
    for series in setting.series:
        tell(f"{series}: reading candles")
        started = time.perf_counter()
        candles = setting.source.candles(series, most_bars)
        seconds[str(series)] = round(time.perf_counter() - started, 4)
        for profile in setting.profiles:
            pins[profile.name][str(series)] = asdict(pin_of(candles.newest(profile.newest_bars)))
    return pins, seconds


def _order(setting: Setting, profile: Profile, repeat: int, pins: dict[str, dict[str, Any]]) -> Order:
    return Order(
        profile=profile.model_dump(mode="json"),
        repeat=repeat,
        own_epochs=setting.own_epochs[profile.name],
        source=setting.source.name,
        data_dir=str(setting.data_dir) if setting.data_dir else None,
        pins=pins,
        run=str(locate_run(setting.out / RUNS_FOLDER, profile.name, is_fresh=True)),
        command=setting.command,
        fleet_size=setting.fleet_size,
        needs_gpu=setting.needs_gpu,
        matmul_seconds=setting.matmul_seconds,
    )


def _measure(order: Order, tell: Tell) -> tuple[Measurement | None, str | None]:
    """Let a fresh process carry out an order; return what it measured, and why something failed."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        started = time.perf_counter()
        # A session of its own: Ctrl-C reaches this process alone, which then tells the other to stop.
        process = subprocess.Popen(
            [sys.executable, "-m", "v8.engine.measuring"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            return _listen(process, order, started, tell) or (None, _cause(process, errors))
        finally:
            _stop(process)


def _listen(
    process: subprocess.Popen[str], order: Order, started: float, tell: Tell
) -> tuple[Measurement | None, str | None] | None:
    """Give the order when the process is ready and wait for its answer; None when it died without."""
    assert process.stdin  # noqa: S101 - it was started with pipes
    assert process.stdout  # noqa: S101
    import_s = 0.0
    for line in process.stdout:
        content = json.loads(line) if line.startswith("{") else {}
        if "ready" in content:
            import_s = time.perf_counter() - started
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(asdict(order)) + "\n")
                process.stdin.flush()
        elif "said" in content:
            tell(f"  {content['said']}")
        elif "failed" in content:
            return None, content["failed"]
        elif "measured" in content:
            return _answer(content, import_s)
    return None


def _answer(content: dict[str, Any], import_s: float) -> tuple[Measurement | None, str | None]:
    reasons = "; ".join(content["failures"].values()) or None
    if content["measured"] is None:
        return None, reasons
    return Measurement.from_json({**content["measured"], "import_s": round(import_s, 4)}), reasons


def _cause(process: subprocess.Popen[str], errors: IO[str]) -> str:
    process.wait()
    errors.seek(0)
    words = " ".join(errors.read().split())[-LAST_WORDS_CHARACTERS:]
    return f"its process ended with exit code {process.returncode}; last words: {words or 'none'}"


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            with suppress(BrokenPipeError):
                pipe.close()
