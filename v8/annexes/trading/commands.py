"""The command `worth`: its flags."""

from typer import Option

from v8.cli import shared as cli


def worth(
    run_argument: cli.PlaceArgument = None,
    run: cli.RunOption = None,
    series: list[str] | None = cli.some_series("Only this one; repeat for more. Default: all."),
    fee_bps: float = Option(10.0, metavar="BPS", min=0, max=1_000, help="Fee of a trade, in 1/100 of 1 %."),
    spread_bps: float = Option(2.0, metavar="BPS", min=0, max=1_000, help="Between bid and ask."),
    target_pct: float = Option(40.0, metavar="PCT", min=1, max=1_000, help="Volatility of a year aimed at."),
    max_leverage: float = Option(2.0, metavar="X", min=0.01, max=100, help="Largest position, in wealth."),
    source: cli.OtherSourceOption = None,
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    lang: cli.LangOption = None,
) -> None:
    """Show what forecasts of the test spans would have earned, after costs, compared with formulas.

    Each trading rule is applied with the model's forecasts, with those of formulas, without a forecast, and
    with perfect foresight: position size by volatility, limit orders, direction. Ranges and variance are
    evaluated by scores. Funding is left out. Forecasts that use the future are refused. Writes worth.html,
    worth.json and worth.csv into RUN.

    Examples:
        v8 worth runs/frontier
        v8 worth backtests/frontier --fee-bps 5 --spread-bps 1
    """
    run = cli.one_run("worth", run_argument, run)
    names = cli.names_of(series) or []
    open_source = cli.candles_of_models(run, source, data_dir, tables)

    from v8.annexes.trading.printing import print_trading
    from v8.annexes.trading.rules import BPS, TradingTerms

    terms = TradingTerms(fee_bps / BPS, spread_bps / BPS, target_pct / 100, max_leverage)
    print_trading(run, terms=terms, names=names, open_source=open_source)
