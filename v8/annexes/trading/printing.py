"""What the command `worth` does and prints; `backtest --worth` does it for the folds of a back-test."""

from collections.abc import Callable, Sequence
from pathlib import Path

from v8.annexes.trading import page as trading_report
from v8.annexes.trading.rules import TradingResults, TradingTerms
from v8.annexes.trading.study import finish_trading
from v8.base.terminal import print_lines, print_page, print_table
from v8.base.wording import language
from v8.cli.shared import settle_process
from v8.data.market.sources.source import CandleSource, OpenedSource
from v8.publish.report.markup import DEMO_WARNING, Html, join
from v8.runs.backtest import BacktestResults, recorded_folders


def print_trading(
    place: Path,
    terms: TradingTerms,
    open_source: Callable[[str], OpenedSource],
    names: Sequence[str] = (),
) -> TradingResults:
    """Print and write what trading by the models of a place would have gained; see `measure_trading`."""
    settle_process()
    finished = finish_trading(place, terms, open_source, names)
    results = finished.results
    lines = [DEMO_WARNING] if results.is_demo else []
    lines += trading_report.sentences(results)
    print_lines(*lines)
    for table in trading_report.gains_tables(results.pooled):
        print_table(table)
    for table in trading_report.figure_tables(results):
        print_table(table)
    print_lines(f"Written: {', '.join(map(str, finished.files))}")
    print_page(finished.files[-1])
    return results


def backtest_section(path: Path, backtest: BacktestResults, candles: CandleSource) -> Html:
    """Print and write what trading by the models of a back-test would have gained; return it for its page."""
    opened = OpenedSource(candles, recorded_folders(path).tables)
    results = print_trading(path, TradingTerms(), lambda _: opened)
    with language():
        return join(trading_report.trading_section(results))
