"""What the command `search` prints."""

from v8.annexes.search.search import FILES, Search
from v8.base.terminal import print_lines, print_table
from v8.base.wording import ABSENT, Table
from v8.publish.report import backtest as page


def print_search(search: Search, verdict: str) -> None:
    """Print every trial of a finished search, and the evaluation of the winner."""
    trials = search.trials.astype(object).where(search.trials.notna(), ABSENT)
    trials = trials.map(lambda value: f"{value:.5g}" if isinstance(value, float) else value)
    title = "Trials: mean error as a multiple of the best baseline's; plateau: median of the five nearest"
    print_table(Table(("trial", *trials.columns), trials.itertuples(), title))
    print_table(page.pool_table(search.later, "The winner and the start on folds that no trial saw"))
    files = ", ".join(str(search.path / name) for name in FILES)
    print_lines(page.POOL_NOTE, verdict, f"Written: {files}")
