"""What the command `search` does and prints; when it is interrupted, the same command continues."""

import math
import time

from v8.annexes.search.search import FILES, START, Search
from v8.base.interruption import set_exit_message
from v8.base.terminal import print_lines, print_table
from v8.base.wording import ABSENT, Table
from v8.publish.report import backtest as page
from v8.runs.nested_runs import hold_backtest


def search_settings(search: Search, num_trials: int, hours: float | None) -> None:
    """Carry out a search, or the rest of it; print every trial, and the evaluation of the winner."""
    ends_s = math.inf if hours is None else time.monotonic() + 3600 * hours
    with hold_backtest(search.path / START):
        set_exit_message(f"interrupted: {search.path} is saved. Continue with: {search.start.command}")
        verdict = search.run(num_trials, lambda: time.monotonic() < ends_s)
    trials = search.trials.astype(object).where(search.trials.notna(), ABSENT)
    trials = trials.map(lambda value: f"{value:.5g}" if isinstance(value, float) else value)
    title = "Trials: mean error as a multiple of the best baseline's; plateau: median of the five nearest"
    print_table(Table(("trial", *trials.columns), trials.itertuples(), title))
    print_table(page.pool_table(search.later, "The winner and the start on folds that no trial saw"))
    files = ", ".join(str(search.path / name) for name in FILES)
    print_lines(page.POOL_NOTE, verdict, f"Written: {files}")
