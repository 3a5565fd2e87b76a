"""The command `worth`; its options are those of `WorthOptions`."""

from v8.annexes.trading.options import WorthOptions
from v8.cli import shared as cli
from v8.cli.shared import takes_options


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

    from v8.annexes.trading.printing import print_trading

    print_trading(options.run, terms=options.terms(), names=names, open_source=open_source)
