"""The command `worth`, and what it prints; `backtest --worth` prints it for the folds of a back-test."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from v8.annexes.trading import TradingTerms, WorthOptions
from v8.base.terminal import print_lines, print_page, print_table
from v8.base.wording import language
from v8.cli import shared as cli
from v8.cli.shared import takes_options
from v8.data.market.sources import CandleSource, OpenedSource

if TYPE_CHECKING:  # usage errors are reported before these are imported
    from v8.annexes.trading.rules import TradingResults
    from v8.publish.report.markup import Html
    from v8.runs.backtest import BacktestResults


@takes_options(WorthOptions)
def worth(options: WorthOptions, lang: cli.LangOption = None) -> None:
    """Show what forecasts of the test spans would have earned, after costs, compared with formulas.

    Each trading rule is applied with the model's forecasts, with those of formulas, without a forecast, and
    with perfect foresight: position size by volatility, limit orders, direction. Ranges and variance are
    evaluated by scores. Funding is left out. Forecasts that use the future are refused. Writes worth.html,
    worth.json and worth.csv into RUN.

    Examples:
        v8 worth runs/frontier
        v8 worth backtests/frontier --fee-bps 5 --spread-bps 1
    """
    names = options.series_names()
    open_source = cli.candles_of_models(options, options.run)
    _print_trading(options.run, options.terms(), open_source, names)


def backtest_section(path: Path, backtest: "BacktestResults", candles: CandleSource) -> "Html":
    """Print and write what trading by the models of a back-test would have gained; return it for its page."""
    from v8.annexes.trading.page import trading_section
    from v8.publish.report.markup import join
    from v8.runs.backtest import recorded_folders

    opened = OpenedSource(candles, recorded_folders(path).tables)
    results = _print_trading(path, TradingTerms(), lambda _: opened)
    with language():
        return join(trading_section(results))


def _print_trading(
    place: Path,
    terms: TradingTerms,
    open_source: Callable[[str], OpenedSource],
    names: Sequence[str] = (),
) -> "TradingResults":
    """Print and write what trading by the models of a place would have gained; see `measure_trading`."""
    from v8.annexes.trading.page import figure_tables, gains_tables, sentences
    from v8.annexes.trading.worth import finish_trading
    from v8.publish.report.markup import DEMO_WARNING

    cli.settle_process()
    results, files = finish_trading(place, terms, open_source, names)
    lines = [DEMO_WARNING] if results.is_demo else []
    print_lines(*lines, *sentences(results))
    for table in (*gains_tables(results.pooled), *figure_tables(results)):
        print_table(table)
    print_lines(f"Written: {', '.join(map(str, files))}")
    print_page(files[-1])
    return results
