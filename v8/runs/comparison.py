"""Compares profiles by their run folders: runs trained for it in turns, or runs that are there.

Candles are read first, and each run folder pins its series to them, so every run trains on exactly the same
ones or fails. Then each profile is run once per repeat in a process of its own (`v8.runs.measuring`), one
process at a time; each repeat starts with another profile. A profile that fails is named, and others go on.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from v8.artifacts.metadata import HISTORY_FILE, Metadata, read_metadata
from v8.artifacts.nested_runs import served_folder
from v8.artifacts.run_folder import CandlePin, RunFolder, RunRecord, locate_run, now_iso, pin_of, read_run
from v8.errors import ArtifactError, ProfileError, listed
from v8.machine.processes import Answer, Order, Wanted, ask
from v8.market.companions import Companions
from v8.market.series import Series
from v8.market.sources.source import CandleSource
from v8.networks.cost import training_flop_per_window
from v8.profile import Profile, recorded_profile
from v8.views.comparison import WARM, Comparison, Measurement, ModelMeasurement


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
    pins, download_s = _read_candles(planned, profiles, source, tell)
    measurements: list[Measurement] = []
    failures: dict[str, str] = {}
    for repeat in range(1, planned.num_repeats + 1):
        for profile in turns(profiles, repeat):
            name = profile.name
            if name in failures and not any(one.profile == name for one in measurements):
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
            found, reason = _heard(answer, run, profile, repeat)
            measurements += [found] if found else []
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
    first, names = records[0], [record.profile_name for record in records]
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
        created_at=now_iso(),
        source=first.source,
        is_demo=not first.is_publishable,
        series=tuple(common),
        num_bars={name: int(one.profile["newest_bars"]) for name, one in zip(names, records, strict=True)},
        epochs=None,
        num_repeats=1,
        baseline=baseline,
        num_workers=int(first.machine["num_cores"]),
        machine=first.machine,
        versions=first.versions,
        measurements=tuple(measurement_of(run, common) for run in runs),
        failures={one.profile_name: "; ".join(one.reasons.values()) for one in records if one.reasons},
    )


def measurement_of(
    run: Path, series: Sequence[str], *, warm_s: Mapping[str, float] | None = None, **known: Any
) -> Measurement:
    """Read from a run folder what finished series of it, at least one, cost and are worth.

    `warm_s` are seconds of reading features again, by series; `known` are fields that no folder tells.
    """
    profile = recorded_profile(read_run(run).profile, where=f"profile of {run}")
    found = {folder: read_metadata(folder) for folder in (served_folder(run, name) for name in series)}
    first, training = next(iter(found.values())), [about.training for about in found.values()]
    return Measurement(
        profile=profile.name,
        horizon_bars=first.horizon_bars,
        num_parameters=first.num_parameters,
        precision=first.training.precision,
        device=first.training.device,
        models=tuple(_model(folder, about, warm_s or {}) for folder, about in found.items()),
        flop_per_window=training_flop_per_window(profile),
        fleet_size=max(one.fleet_size or 1 for one in training),
        peak_process_bytes=max(one.peak_process_bytes or 0 for one in training) or None,
        peak_device_bytes=max(one.peak_memory_bytes or 0 for one in training),
        **{"own_epochs": profile.training.epochs, **known},
    )


def _model(folder: Path, about: Metadata, warm_s: Mapping[str, float]) -> ModelMeasurement:
    judgement, training = about.judgement, about.training
    epochs_s = pd.read_csv(folder / HISTORY_FILE)["seconds"]
    fleet_epoch_s = float(epochs_s.median()) if len(epochs_s) else 0.0  # a formula has no epochs
    return ModelMeasurement(
        series=about.series,
        seconds={**about.seconds, **({WARM: warm_s[about.series]} if about.series in warm_s else {})},
        epoch_s=round(fleet_epoch_s / (training.fleet_size or 1), 6),
        windows_per_s=training.windows_per_s or 0.0,
        epochs_run=training.epochs_run,
        best_epoch=training.best_epoch,
        multiples={task: judgement.multiple(task) for task in judgement.tasks},
        multiples_of_best={
            task: judgement.multiple(task, baseline=judgement.best_baseline(task)) for task in judgement.tasks
        },
    )


def _check_names(names: Sequence[str], baseline: str) -> None:
    if twice := next((name for name in names if names.count(name) > 1), None):
        rule, got = "compares profiles of different names", f"{twice} {names.count(twice)} times"
        raise ProfileError(where="param:profiles", rule=rule, got=got, fix="Give each file its own name: key")
    if baseline not in names:
        rule = f"is one of the compared profiles ({', '.join(names)})"
        fix = "Add it to param:profiles or choose another"
        raise ProfileError(where="param:baseline_profile", rule=rule, got=repr(baseline), fix=fix)


def _read_candles(
    planned: Comparison, profiles: Sequence[Profile], source: CandleSource, tell: Callable[[str], None]
) -> tuple[dict[str, dict[Series, CandlePin]], dict[str, float]]:
    """Read the candles of every series once, as long as the longest profile wants them, and pin them."""
    pins: dict[str, dict[Series, CandlePin]] = {name: {} for name in planned.num_bars}
    seconds, companions = {}, {one.name: Companions.of(one) for one in profiles}
    for series in map(Series.parse, planned.series):
        tell(f"{series}: reading candles")
        started = time.perf_counter()
        candles = source.candles(series, max(planned.num_bars.values()))
        seconds[str(series)] = round(time.perf_counter() - started, 4)
        for name, num_bars in planned.num_bars.items():
            own = candles.newest(num_bars)
            if beside := companions[name]:
                own = beside.candles(source, series, num_bars, int(own.open_time_s[-1]))
            pins[name][series] = pin_of(own)
    return pins, seconds


def _heard(answer: Answer, run: Path, profile: Profile, repeat: int) -> tuple[Measurement | None, str | None]:
    """Return what a run cost, beside what is known without its folder, and why something failed."""
    if answer.refusal:
        return None, answer.refusal
    if not answer.measured:
        words = " ".join(answer.errors.split())[-600:]
        return None, f"its process ended with exit code {answer.exit_code}; last words: {words or 'none'}"
    record, (beside,) = read_run(run), answer.measured
    reasons = "; ".join(record.reasons.values()) or None
    if not (warm_s := beside["features_warm_s"]):
        return None, reasons
    found = measurement_of(
        run,
        [*warm_s],
        warm_s=warm_s,
        repeat=repeat,
        import_s=round(answer.start_s, 4),
        own_epochs=profile.training.epochs,
        matmul_gflop_per_s=beside["matmul_gflop_per_s"],
    )
    return found, reasons
