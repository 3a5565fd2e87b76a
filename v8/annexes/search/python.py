"""What the annex adds to Python: `v8.search`."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from v8.annexes.search.options import Hours, NumTrials, SearchOptions, prepare_search
from v8.api.arguments import RawCandles, in_python, maybe_path, profile_file, series_list, source_of
from v8.api.results import ProgressLines
from v8.base.child import run_in_child, send_message
from v8.base.hardware import process_variables
from v8.base.process import command, watch_interrupts
from v8.base.records import AtLeastOne
from v8.profile.profile import Profile, load_profile
from v8.runs.options import NumBars, NumFolds


@in_python
def search(
    candles: RawCandles = "vision",
    profile: str | Path | Profile = "frontier",
    *,
    trials: NumTrials = 20,
    hours: Hours | None = None,
    ranges: str | Path | None = None,
    folds: NumFolds = 3,
    later: NumFolds = 2,
    series: str | Sequence[str] | None = None,
    history: NumBars | None = None,
    bars: AtLeastOne | None = None,
    out: str | Path | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Search better settings of a profile by back-tests; the same call again continues.

    It is the command `search`, which needs the extra `search` of v8.

    Args:
        candles: As for `v8.train`.
        profile: What to start from, as for `v8.train`.
        trials: Trials in all, those of earlier calls included.
        hours: Hours after which no trial is started; None for no limit.
        ranges: The file of ranges; None for search/NAME.yaml next to the profile.
        folds: Folds that trials are evaluated on.
        later: Later folds that evaluate only the winner.
        series: Such as "BTCUSDT-15m", or several; None for all there are.
        history: Newest candles that the folds lie in; None for all there are.
        bars: Candles of each fold; None for the profile's.
        out: Its folder; None for searches/PROFILE.
        progress: Whether to print lines about it.

    Returns:
        A row for each trial that ended, and the last for the start; the index `trial` counts from 1:

        * `state`: "winner", "complete" or "pruned"; missing for the start. `profile`: its name, text.
        * `folds`: folds that were finished.
        * `objective`: mean error divided by the best baseline's, unitless; lower is better.
        * a column for each searched key, in the unit of the profile.
        * `plateau`: median objective of the five nearest trials, by which the winner is chosen.

        `attrs["folder"]` is the folder; winner.yaml in it is the profile of the winner, ready for `v8.train`.

    Raises:
        V8Error: If the start cannot be evaluated, or no trial finished all folds.

    >>> import v8
    >>> table = v8.search("vision", "frontier", series="BTCUSDT-1h", trials=50)  # doctest: +SKIP
    >>> run = v8.train("vision", f"{table.attrs['folder']}/winner.yaml")  # doctest: +SKIP
    """
    names = series_list(series)
    source = source_of(candles, names)
    name = (profile if isinstance(profile, Profile) else load_profile(str(profile))).name
    folder = Path(out) if out else Path("searches") / name
    options = SearchOptions(
        profile=str(profile_file(profile)),
        trials=trials,
        hours=hours,
        ranges=maybe_path(ranges),
        folds=folds,
        later=later,
        series=tuple(names),
        history=history,
        bars=bars,
        out=folder,
        **source,
    )
    run_in_child(
        search_in_child,
        options,
        where="v8.search",
        environment=process_variables("auto"),
        on_message=print if progress else None,
    )
    return read_trials(folder)


def search_in_child(options: SearchOptions) -> str:
    """Carry out a search in a process of its own, which sends lines about it; return its verdict."""
    watch_interrupts()
    continuing = command("search", *options.words())
    prepared = prepare_search(options, continuing, ProgressLines(send_message))
    verdict = prepared.search(options.trials, options.hours)
    send_message(verdict)
    return verdict


def read_trials(folder: Path) -> pd.DataFrame:
    """Read `trials.csv` of a folder."""
    table = pd.read_csv(folder / "trials.csv", index_col="trial")
    table.attrs["folder"] = str(folder)
    return table
