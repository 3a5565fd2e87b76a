"""What the annex adds to Python: `v8.compare`."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from v8.annexes.comparison.comparing import (
    ComparisonOptions,
    PreparedComparison,
    check_places,
    compare_run_folders,
    is_run,
)
from v8.api.arguments import RawCandles, in_python, profile_file, series_list, source_of
from v8.base.child import run_in_child, send_message
from v8.base.hardware import process_variables
from v8.base.process import command, watch_interrupts
from v8.base.records import AtLeastOne
from v8.profile.profile import Profile
from v8.runs.options import NumBars


@in_python
def compare(
    profiles: Sequence[str | Path | Profile],
    candles: RawCandles = "vision",
    *,
    series: str | Sequence[str] | None = None,
    bars: NumBars | None = None,
    epochs: AtLeastOne | None = None,
    full: bool = False,
    repeat: AtLeastOne = 1,
    baseline: str | None = None,
    out: str | Path = "comparison",
    overwrite: bool = False,
    progress: bool = True,
) -> pd.DataFrame:
    """Measure profiles side by side on the same candles, or compare runs that are there.

    It is the command `compare-profiles`. It trains every profile, for one epoch unless `epochs` or `full`
    says otherwise; run folders are compared as they are.

    Args:
        profiles: Shipped names, YAML files or profiles; or folders of runs, and then only these.
        candles: As for `v8.train`; not used for folders of runs.
        series: Such as "BTCUSDT-15m", or several; None for BTCUSDT-15m and BTCUSDT-1h, or all of a folder.
        bars: Newest candles of each series; None for the profile's.
        epochs: Most epochs of each; None for one.
        full: Whether each profile trains its own epochs.
        repeat: Measurements of each profile.
        baseline: Name of the profile that ratios refer to; None for the last.
        out: Folder for compare.json, compare.csv, compare.html and runs.
        overwrite: Whether another comparison in that folder is replaced.
        progress: Whether to print lines about it.

    Returns:
        A row for each profile and figure that it has:

        * `profile`, `figure` (such as "train_s" or "ohlc_relative_mae"), `unit` (missing: unitless): text.
        * `median`, `low`, `high`: over the repeats, in that unit.
        * `ratio_median`, `ratio_low`, `ratio_high`: divided by the baseline profile's, unitless; NaN for
          figures that are not compared.

        `attrs["folder"]` is the folder.

    Raises:
        V8Error: If nothing could be measured, or the runs have no series with the same candles in common.

    >>> import v8
    >>> table = v8.compare(["frontier", "aligned"], series="BTCUSDT-15m")  # doctest: +SKIP
    >>> table.pivot(index="figure", columns="profile", values="median")  # doctest: +SKIP
    """
    names = series_list(series)
    places = [str(profile if _is_run(profile) else profile_file(profile)) for profile in profiles]
    are_runs = any(_is_run(profile) for profile in profiles)
    source = {} if are_runs else source_of(candles, names)
    options = ComparisonOptions(
        profiles=tuple(places),
        series=tuple(names),
        bars=bars,
        epochs=epochs,
        full=full,
        repeat=repeat,
        baseline_profile=baseline,
        out=Path(out),
        overwrite=overwrite,
        **source,
    )
    run_in_child(
        compare_in_child,
        options,
        where="v8.compare",
        environment=process_variables("auto"),
        on_message=print if progress else None,
    )
    return read_figures(Path(out))


def _is_run(profile: str | Path | Profile) -> bool:
    return not isinstance(profile, Profile) and is_run(profile)


def compare_in_child(options: ComparisonOptions) -> None:
    """Compare in a process of its own, which sends lines about it, and write the files."""
    watch_interrupts()
    continuing = command("compare-profiles", *options.words())
    runs = check_places(options)
    if runs:
        finished = compare_run_folders(runs, options, continuing)
    else:
        finished = PreparedComparison.from_options(options).finish(continuing, send_message)
    for name, reason in finished.comparison.failures.items():
        send_message(f"{name}: {reason}")
    send_message(f"Written: {', '.join(map(str, finished.files))}")


def read_figures(folder: Path) -> pd.DataFrame:
    """Read `compare.csv` of a folder."""
    table = pd.read_csv(folder / "compare.csv")
    table.attrs["folder"] = str(folder)
    return table
