"""Measures profiles side by side: the same candles, fresh processes, turns in a rotating order.

Candles are read first and pinned, so every measurement trains on exactly the same ones or fails. Then
each profile runs once per repeat in a process of its own (`v8.machine.measurements`), one process at a time;
each repeat starts with another profile. A profile that fails is named and the others go on.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import TypeAdapter

from v8.artifacts.run_folder import locate_run, pin_of
from v8.errors import ProfileError
from v8.machine.measurements import Answer, Order, Wanted, ask
from v8.market.companions import Companions
from v8.market.series import Series
from v8.market.sources.source import CandleSource
from v8.profile import Profile
from v8.views.comparison_results import Comparison, Measurement


def compare(
    planned: Comparison,
    profiles: Sequence[Profile],
    *,
    source: CandleSource,
    out: Path,
    training: Wanted,
    tell: Callable[[str], None],
) -> Comparison:
    """Measure every profile in every repeat.

    Args:
        planned: What is to be compared, and how; nothing is measured in it.
        profiles: The profiles by themselves, in the order of the tables.
        source: Where candles come from.
        out: Folder of the comparison; `runs` in it keeps the run folder of every measurement.
        training: Options of `v8.runs.measuring.measure_training`, without `pins` and `run`.
        tell: Told one sentence at a time what happens.

    Returns:
        What was measured and what failed.

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
            run = str(locate_run(out / "runs", name, is_fresh=True))
            wanted = {"measure": "training", **training, "pins": pins[name], "run": run}
            order = Order(profile=budgeted[name], measurements=[wanted])
            (answer,) = ask([order], tell=lambda said: tell(f"  {said}"))
            found, reason = _heard(answer, profile, repeat)
            measurements += [found] if found else []
            if reason:
                failures[name] = reason
                tell(f"{name}: failed: {reason}")
    return replace(planned, download_s=download_s, measurements=tuple(measurements), failures=failures)


def turns(profiles: Sequence[Profile], repeat: int) -> list[Profile]:
    """Return the order of a repeat: each starts one profile later than the one before.

    Args:
        profiles: At least one.
        repeat: From 1.
    """
    first = (repeat - 1) % len(profiles)
    return [*profiles[first:], *profiles[:first]]


def _check_names(names: Sequence[str], baseline: str) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ProfileError(
            where="param:profiles",
            rule="compares profiles of different names",
            got=f"{twice} {names.count(twice)} times",
            fix="Give each file its own name: key",
        )
    if baseline not in names:
        raise ProfileError(
            where="param:baseline_profile",
            rule=f"is one of the compared profiles ({', '.join(names)})",
            got=repr(baseline),
            fix="Add it to param:profiles or choose another",
        )


def _read_candles(
    planned: Comparison, profiles: Sequence[Profile], source: CandleSource, tell: Callable[[str], None]
) -> tuple[dict[str, dict[str, Wanted]], dict[str, float]]:
    """Read the candles of every series once, as long as the longest profile wants them, and pin them."""
    pins: dict[str, dict[str, Wanted]] = {name: {} for name in planned.num_bars}
    seconds, companions = {}, {one.name: Companions.of(one) for one in profiles}
    for series in planned.series:
        tell(f"{series}: reading candles")
        started = time.perf_counter()
        candles = source.candles(Series.parse(series), max(planned.num_bars.values()))
        seconds[series] = round(time.perf_counter() - started, 4)
        for name, num_bars in planned.num_bars.items():
            own = candles.newest(num_bars)
            if beside := companions[name]:
                own = beside.candles(source, own.series, num_bars, int(own.open_time_s[-1]))
            pins[name][series] = asdict(pin_of(own))
    return pins, seconds


def _heard(answer: Answer, profile: Profile, repeat: int) -> tuple[Measurement | None, str | None]:
    """Return what a process measured, beside what is known without it, and why something failed."""
    if answer.refusal:
        return None, answer.refusal
    if not answer.measured:
        words = " ".join(answer.errors.split())[-600:]
        return None, f"its process ended with exit code {answer.exit_code}; last words: {words or 'none'}"
    (trained,) = answer.measured
    reasons = "; ".join(trained["failures"].values()) or None
    if trained["measurement"] is None:
        return None, reasons
    known = {"profile": profile.name, "repeat": repeat, "import_s": round(answer.start_s, 4)}
    known |= {"horizon_bars": profile.horizon_bars, "own_epochs": profile.training.epochs}
    return TypeAdapter(Measurement).validate_python(known | trained["measurement"]), reasons
