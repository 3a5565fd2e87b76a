"""Compares profiles by their run folders: runs trained for it in turns, or runs that are there.

Candles are read first, and each run folder pins its series to them, so every run trains on exactly the same
ones or fails. Then each profile is run once per repeat in a process of its own (`v8.runs.measuring`), one
process at a time; each repeat starts with another profile. A profile that fails is named, and others go on.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from v8.artifacts.metadata import HISTORY_FILE, Metadata, read_metadata
from v8.artifacts.nested_runs import served_folder
from v8.artifacts.run_folder import CandlePin, RunFolder, RunRecord, locate_run, pin_of, read_run
from v8.comparison.page import Comparison
from v8.errors import ArtifactError, ProfileError, listed
from v8.machine.processes import Answer, Order, Wanted, ask
from v8.market.companions import Companions
from v8.market.series import Series
from v8.market.sources.source import CandleSource
from v8.networks.cost import training_flop_per_window
from v8.profile import Profile, recorded_profile
from v8.wording import duration


def compare(
    planned: Comparison,
    profiles: Sequence[Profile],
    *,
    source: CandleSource,
    out: Path,
    training: Wanted,
    tell: Callable[[str], None],
) -> Comparison:
    """Run every profile in every repeat, and compare the runs.

    Args:
        planned: What is to be compared, and how; nothing is measured in it.
        profiles: The profiles without its budget, in the order of the tables.
        out: Folder of the comparison; `runs` in it keeps every run folder.
        training: Options of `v8.runs.measuring.measure_training`, without `run`.
        tell: Told one sentence at a time what happens.

    Raises:
        ProfileError: If profiles share a name, the baseline is none of them, or the budget is out of range.
        DataError: If the candles of a series cannot be read.
        KeyboardInterrupt: When interrupted; the measuring process is stopped first.
    """
    _check_names([profile.name for profile in profiles], planned.baseline)
    budgeted = {
        one.name: one.with_budget(newest_bars=planned.num_bars[one.name], epochs=planned.epochs)
        for one in profiles
    }
    pins, download_s = _read_candles(budgeted.values(), planned.series, source, tell)
    measurements: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    for repeat in range(1, planned.num_repeats + 1):
        for profile in turns(profiles, repeat):
            name = profile.name
            if name in failures and not any(one["profile"] == name for one in measurements):
                continue  # it failed altogether; another try would cost as much and say the same
            tell(f"repeat {repeat} of {planned.num_repeats}: {name}")
            run = locate_run(out / "runs", name, is_fresh=True)
            begun = RunRecord.begin(budgeted[name], source.name, source.is_publishable, planned.command)
            with RunFolder(run, begun) as folder:
                for series, pin in pins[name].items():
                    folder.pin(series, pin)
            wanted = {"measure": "training", **training, "run": str(run)}
            order = Order(profile=budgeted[name], measurements=[wanted])
            (answer,) = ask([order], tell=lambda said: tell(f"  {said}"))
            known = {"repeat": repeat, "import_s": round(answer.start_s, 4)}
            known["own_epochs"] = profile.training.epochs
            measurements += [{**found, **known} for found in answer.measured if found]
            reason = _why_failed(answer, run)
            if reason:
                failures[name] = reason
                tell(f"{name}: failed: {reason}")
    return replace(planned, download_s=download_s, measurements=tuple(measurements), failures=failures)


def turns(profiles: Sequence[Profile], repeat: int) -> list[Profile]:
    """Return the order of a repeat, from 1: each starts one profile later than the one before."""
    first = (repeat - 1) % len(profiles)
    return [*profiles[first:], *profiles[:first]]


def compare_runs(runs: Sequence[Path], *, baseline: str | None, command: str) -> Comparison:
    """Compare run folders that are there, on the series that all of them have finished.

    Raises:
        ProfileError: If they are of one profile's name, or the baseline is none of theirs.
        ArtifactError: If one is damaged, or they have no series in common, or of other candles.
    """
    records = [read_run(run) for run in runs]
    first = records[0]
    names = [record.profile_name for record in records]
    _check_names(names, baseline := baseline or names[-1])
    common = [name for name in first.done if all(name in record.done for record in records)]
    pins = [(record.source, name, record.series[name].candles) for record in records for name in common]
    if not common or len({(*which, pin and pin.last_open) for *which, pin in pins}) > len(common):
        told = zip(runs, records, strict=True)
        rule = "compares runs of one source that have finished the same series, up to the same candle"
        got = listed([f"{run} of {each.source}, {listed(list(each.series))}" for run, each in told])
        fix = "Name runs of the same series and day, or profiles, which are trained on the same candles"
        raise ArtifactError(where="param:profiles", rule=rule, got=got, fix=fix)
    return Comparison(
        command=command,
        source=first.source,
        is_demo=not first.is_publishable,
        series=tuple(common),
        num_bars={name: int(one.profile["newest_bars"]) for name, one in zip(names, records, strict=True)},
        epochs=None,
        baseline=baseline,
        num_workers=int(first.machine["num_cores"]),
        machine=first.machine,
        versions=first.versions,
        measurements=tuple(measurement_of(run, common) for run in runs),
        failures={one.profile_name: "; ".join(one.reasons.values()) for one in records if one.reasons},
    )


def measurement_of(run: Path, series: Iterable[str]) -> dict[str, Any]:
    """Read from a run folder what finished series of it, at least one, cost and are worth, as JSON values.

    No folder tells the seconds from the start of the process until it could train, `import_s`, and the matmul
    rate of that process right after training.
    """
    profile = recorded_profile(read_run(run).profile, where=f"profile of {run}")
    folders = [served_folder(run, name) for name in series]
    found = [read_metadata(folder) for folder in folders]
    first = found[0]
    training = [about.training for about in found]
    return {
        "profile": profile.name,
        "repeat": 1,
        "import_s": None,
        "models": [*map(_model, folders, found)],
        "horizon_bars": first.horizon_bars,
        "num_parameters": first.num_parameters,
        "flop_per_window": training_flop_per_window(profile),
        "own_epochs": profile.training.epochs,  # its most, whatever the budget of the comparison
        "precision": first.training.precision,
        "device": first.training.device,
        "fleet_size": max(one.fleet_size or 1 for one in training),  # models that trained as one program
        "peak_process_bytes": max(one.peak_process_bytes or 0 for one in training) or None,
        "peak_device_bytes": max(one.peak_memory_bytes or 0 for one in training),
        "matmul_gflop_per_s": None,
    }


def _model(folder: Path, about: Metadata) -> dict[str, Any]:
    """Tell of one model; times and speeds of a model in a fleet are its share."""
    evaluated = about.evaluation
    training = about.training
    epochs_s = pd.read_csv(folder / HISTORY_FILE)["seconds"]
    fleet_epoch_s = float(epochs_s.median()) if len(epochs_s) else 0.0  # a formula has no epochs
    best = {
        task: evaluated.multiple(task, baseline=evaluated.best_baseline(task)) for task in evaluated.tasks
    }
    return {
        "series": about.series,
        "seconds": {**about.seconds},
        "epoch_s": round(fleet_epoch_s / (training.fleet_size or 1), 6),
        "windows_per_s": training.windows_per_s,
        "epochs_run": training.epochs_run,
        "best_epoch": training.best_epoch,
        "multiples": {task: evaluated.multiple(task) for task in evaluated.tasks},
        "multiples_of_best": best,
    }


def _check_names(names: Sequence[str], baseline: str) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        rule = "compares profiles of different names"
        got = f"{twice} {names.count(twice)} times"
        raise ProfileError(where="param:profiles", rule=rule, got=got, fix="Give each file its own name: key")
    if baseline not in names:
        rule = f"is one of the compared profiles ({', '.join(names)})"
        fix = "Add it to param:profiles or choose another"
        raise ProfileError(where="param:baseline_profile", rule=rule, got=repr(baseline), fix=fix)


def _read_candles(
    profiles: Iterable[Profile], names: Sequence[str], source: CandleSource, tell: Callable[[str], None]
) -> tuple[dict[str, dict[Series, CandlePin]], dict[str, float]]:
    """Read the candles of every series once, as long as the longest profile wants them, and pin them."""
    pins: dict[str, dict[Series, CandlePin]] = {one.name: {} for one in profiles}
    seconds: dict[str, float] = {}
    for series in map(Series.parse, names):
        tell(f"{series}: reading candles")
        started = time.perf_counter()
        candles = source.candles(series, max(one.newest_bars for one in profiles))
        seconds[str(series)] = round(time.perf_counter() - started, 4)
        tell(f"{series}: {len(candles):,} candles, read in {duration(seconds[str(series)])}")
        for profile in profiles:
            own = candles.newest(profile.newest_bars)
            beside = Companions.of(profile)
            if beside:
                own = beside.candles(source, series, profile.newest_bars, int(own.open_time_s[-1]))
            pins[profile.name][series] = pin_of(own)
    return pins, seconds


def _why_failed(answer: Answer, run: Path) -> str | None:
    """Return why a process measured nothing, or why series of its run failed; None if all went well."""
    if answer.refusal or answer.measured:
        return answer.refusal or "; ".join(read_run(run).reasons.values()) or None
    words = " ".join(answer.errors.split())[-600:]
    return f"its process ended with exit code {answer.exit_code}; last words: {words or 'none'}"
