"""What `data`, `features` and `doctor` print: candles, features and this machine, with the flags for it."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from v8.base.errors import DataError, UnknownSeriesError, V8Error, listed
from v8.base.hardware import replacement_notice, replacing_variables
from v8.base.storage import packaged_yaml
from v8.base.terminal import print_all_lines, print_json, print_lines, print_table
from v8.base.wording import Table, duration
from v8.cli.shared import settle_process
from v8.data.feature_store import FeatureStore
from v8.data.market.series import Series, iso, load_universe
from v8.data.market.sources import CandleSource, candles_of, with_nearest
from v8.data.market.sources.live import LiveSource
from v8.data.windows import fewest_bars
from v8.profile.columns import USER, split_origin
from v8.profile.indicators import FEATURES, warmup_bars
from v8.profile.profile import Profile, load_profile
from v8.runs.doctor import examine, report_of
from v8.runs.engines import local_placement
from v8.runs.options import RunOptions
from v8.runs.reading import candle_findings

MOST_SKEW_S: Final = 5.0
"""Largest error of the clock, in seconds, that is not reported."""


def check_candles(source: CandleSource, chosen: Sequence[Series], bars: int) -> list[tuple[str, str]]:
    """Print a summary of the candles of each series; return the series without usable candles and why.

    What a run of the default profile would say of them follows: too few candles or windows, leaps of prices,
    old candles.
    """
    failures = []
    usable = []
    for series in chosen:
        try:
            candles = candles_of(source, series, bars)
            print_lines(f"{series}: {candles.report.summary()}")
            usable.append(candles)
        except UnknownSeriesError as error:
            advised = with_nearest(error, series, source.name, load_universe())
            failures.append((str(series), str(advised)))
        except DataError as error:
            failures.append((str(series), str(error)))
    profile = load_profile(RunOptions.model_fields["profile"].default)
    needed = fewest_bars(profile)
    short = [str(candles.series) for candles in usable if len(candles) < needed]
    if short:
        print_lines(f"Too short for a model of profile {profile.name}, {needed:,} candles: {listed(short)}.")
    for candles in usable:
        late_s = (int(candles.open_time_s[0]) - candles.series.phase_s) % candles.series.bar_s
        if late_s:
            print_lines(
                f"{candles.series}: bars open {duration(late_s)} after those of the exchange. Another market "
                "hour, or a clock that is wrong?"
            )
    is_demo = not source.is_publishable
    print_all_lines(candle_findings(profile, usable, time.time(), has_own_end=is_demo))
    return failures


def update_store(
    source: LiveSource, chosen: Sequence[Series], bars: int, *, accept_revisions: bool
) -> list[tuple[str, str]]:
    """Update the store and print what was done; return the series that are not up to date and why.

    `accept_revisions` takes revised candles over, see `LiveSource.update`.

    Raises:
        StorageError: If the store cannot be written: other commands need no store, this one fills it.
    """
    source.store.require_writable()
    updates = source.update(chosen, bars, accept_revisions=accept_revisions)
    rows = []
    failures = []
    for update in updates:
        if isinstance(update.result, DataError):
            failures.append((str(update.series), str(update.result)))
            continue
        history = update.result.candles
        row = (
            update.series,
            f"{len(history):,}",
            iso(history.last_s),
            f"{update.num_added:,}",
            f"{update.num_revised:,}",
            f"{len(update.result.revisions):,}",
            f"{history.num_missing:,}",
        )
        rows.append(row)
    if rows:
        header = ("series", "candles", "newest", "fetched", "revised now", "in all", "holes")
        print_table(Table(header, rows, f"Candles in {source.store.folder}"))
    print_all_lines(f"{update.series}: {update.note}" for update in updates if update.note)
    ahead_s = source.rest.clock.ahead_s
    if abs(ahead_s) > MOST_SKEW_S:
        word = "ahead of" if ahead_s > 0 else "behind"
        print_lines(f"This machine's clock is {duration(abs(ahead_s))} {word} the exchange's, which is used.")
    return failures


def print_store(chosen: Sequence[Series]) -> None:
    """Print which series have feature columns on disk, and how many bytes."""
    folder = FeatureStore().folder
    rows = []
    for series in chosen:
        sizes = [file.stat().st_size for file in (folder / str(series)).glob("*.parquet")]
        if sizes:
            rows.append((str(series), len(sizes), f"{sum(sizes):,}"))
    print_table(Table(("series", "sets of candles", "bytes"), rows, f"Feature store {folder}"))


def print_features(profile: Profile) -> None:
    """Print of which series each feature is computed, the candles before its first value, and what it is."""
    files = {column: table.file for table in profile.covariates for column in table.columns}
    rows = []
    for name in profile.features:
        origin, column = split_origin(name)
        source = files[column] if origin == USER else origin or "the series"
        rows.append((name, source, warmup_bars([name]), FEATURES[name].sentence))
    header = ("feature", "of", "bars before the first", "what it is")
    print_table(Table(header, rows, f"Features of profile {profile.name}", is_prose=True))
    for table in profile.covariates:
        place = "The source of the candles has it." if table.is_of_source else "--tables names its folder."
        print_lines(
            f"{table.file}: a row counts from its {table.time} plus {table.available_after_s:,} s until a "
            f"newer one does, at most until its {table.time} plus {table.max_age_s:,} s. {place}"
        )


COLUMNS: Final = packaged_yaml("v8.cli", "doctor.yaml")
"""Columns of the tables: title, and the format of a measurement there."""


def run_doctor(profile: Profile, seconds: float, *, is_json: bool) -> int:
    """Examine this machine, print the report, and return the exit code.

    Each measurement takes `seconds`. A report that is incomplete ends with the exit code of `V8Error`.
    """
    started = time.monotonic()
    notice = replacement_notice("auto")
    os.environ.update(replacing_variables("auto"))

    def count_workers() -> int:
        settle_process("cpu")  # from here on each process has one thread
        return local_placement("auto", "1", "cpu").num_workers

    findings = examine(profile, seconds, count_workers, notice=notice)
    report = report_of(findings, profile, time.monotonic() - started)
    if is_json:
        print_json(report)
    else:
        _print_report(report)
    return V8Error.exit_code if report["verdict"]["state"] == "incomplete" else 0


def _print_report(report: Mapping[str, Any]) -> None:
    print_lines("This machine")
    print_all_lines(f"  {name:<8} {value}" for name, value in _machine_rows(report))
    print_lines("")
    matmuls = [{**speed, "threads": threads} for threads, speed in report["matmul"].items()]
    steps = [{**step, "network": "small" if step["is_short"] else "whole"} for step in report["steps"]]
    _print_measurements("Matrix multiplication, float32", COLUMNS["matmul"], matmuls)
    _print_measurements(f"Training steps of profile {report['profile']}", COLUMNS["step"], steps)
    print_lines("Recommended")
    for advice in report["recommended"]:
        print_lines(f"  {advice['flag']} {advice['value']}: {advice['why']}")
    print_lines("")
    paths = dict.fromkeys(step["how"] for step in report["steps"] if not step["is_short"])
    print_all_lines(f"Path: {path}." for path in paths)
    workers = report["workers"]
    if workers["windows_per_s"] is not None:
        print_lines(
            f"Workers: {workers['num_workers']} single-threaded processes together train at "
            f"{workers['windows_per_s']:,.0f} windows/s, {workers['ceiling_pct']:.0f} % of the "
            f"{workers['ceiling_gflop_per_s']:,.0f} GFLOP/s that their cores multiply."
        )
    print_all_lines(f"Note: {note}." for note in report["notes"])
    verdict = report["verdict"]
    print_lines(f"Verdict: {verdict['state']}: {verdict['why']}. Examined in {report['seconds']:.0f} s.")


def _print_measurements(
    title: str, columns: Mapping[str, str], measurements: Sequence[Mapping[str, Any]]
) -> None:
    """Print a table; `columns` has the format of each column by its title."""
    rows = [[template.format(**line) for template in columns.values()] for line in measurements]
    print_table(Table(tuple(columns), rows, title))


def _machine_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return name and description of each part of the machine."""
    machine = report["machine"]
    driver = report["driver"]
    backend = report["backend"]
    gpus = [_describe_gpu(gpu) for gpu in driver["gpus"]] or backend.get("gpus", [])
    versions = ", ".join(f"{name} {version}" for name, version in backend.get("versions", {}).items())
    unused = "" if gpus else " (the backend's; unused without a GPU)"
    no_gpu = f"none: {driver.get('why', 'the driver lists none')}"
    return [
        ("CPU", f"{machine['cpu']}, {machine['num_cores']} usable cores"),
        ("memory", f"{machine['memory_bytes'] / 2**30:.1f} GiB"),
        ("GPU", "; ".join(gpus) or no_gpu),
        ("driver", driver.get("version", "none")),
        ("CUDA", f"{backend['cuda']}{unused}" if backend.get("cuda") else "none"),
        ("cuDNN", f"{backend['cudnn']}{unused}" if backend.get("cudnn") else "none"),
        ("backend", versions or "could not be started"),
    ]


def _describe_gpu(gpu: Mapping[str, Any]) -> str:
    """Return name and memory of a GPU that the driver lists."""
    memory_mib = gpu["memory_mib"]
    memory = "unknown" if memory_mib is None else f"{memory_mib:,.0f} MiB"
    return f"{gpu['name']}, {memory}"
