"""What the annex adds to Python: `v8.worth`."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from v8.annexes.trading.options import Bps, Leverage, TargetPct, WorthOptions
from v8.annexes.trading.page import sentences
from v8.annexes.trading.study import finish_trading
from v8.api.arguments import in_python, maybe_path, series_list
from v8.base.child import run_in_child, send_message
from v8.base.hardware import process_variables
from v8.base.process import watch_interrupts


@in_python
def worth(
    run: str | Path,
    *,
    series: str | Sequence[str] | None = None,
    fee_bps: Bps = 10.0,
    spread_bps: Bps = 2.0,
    target_pct: TargetPct = 40.0,
    max_leverage: Leverage = 2.0,
    source: str | None = None,
    data_dir: str | Path | None = None,
    tables: str | Path | None = None,
    progress: bool = False,
) -> pd.DataFrame:
    """Return what forecasts of the test spans of a run or a back-test would have earned, after costs.

    It is the command `worth`, which writes worth.html, worth.json and worth.csv into the folder.

    Args:
        run: A folder of a run, of a back-test, or of pulled models.
        series: Such as "BTCUSDT-15m", or several; None for all.
        fee_bps: Fee of a trade, basis points (1/100 of 1 %).
        spread_bps: Between bid and ask, basis points.
        target_pct: Volatility of a year that a position aims at, percent.
        max_leverage: Largest position, as a multiple of the wealth.
        source: Where the candles come from; None for the source of the run.
        data_dir: Folder of candle files; None for the run's.
        tables: Folder of the covariates' tables; None for the run's.
        progress: Whether to print lines about it.

    Returns:
        A row for each trading rule over all series (`series` is "all"), and one for each rule and series:

        * `rule`, `series`, `unit` (of the gains), `best_other` (the best alternative), `outcome`: text.
        * `days`: days of the test spans, int64.
        * `model`, `naive`, `ewma`, `har`, `log_har_clock`, `range_paths`, `buy and hold`, `market order`,
          `perfect_foresight`: the gain of a day, float; NaN where a rule has no such forecaster.
        * `difference_low_95`, `difference_high_95`: interval of the model's gain minus that of the best
          alternative, of this row alone, in the same unit; NaN where there are too few days.
        * `p_naive`, `p_best`: p-values, corrected for all rows of the table, 0 to 1.

    Raises:
        ArtifactError: If a model is missing, cannot be trusted, or uses future values.
        DataError: If the source has other candles than those that the models were made from.

    >>> import v8
    >>> v8.worth("runs/frontier").query("series == 'all'")[["rule", "model", "naive"]]  # doctest: +SKIP
    """
    options = WorthOptions(
        run=Path(run),
        series=tuple(series_list(series)),
        fee_bps=fee_bps,
        spread_bps=spread_bps,
        target_pct=target_pct,
        max_leverage=max_leverage,
        source=source,
        data_dir=maybe_path(data_dir),
        tables=maybe_path(tables),
    )
    run_in_child(
        worth_in_child,
        options,
        where="v8.worth",
        environment=process_variables("auto"),
        on_message=print if progress else None,
    )
    return read_gains(Path(run))


def worth_in_child(options: WorthOptions) -> None:
    """Measure what trading would have earned in a process of its own, and write its files."""
    watch_interrupts()
    open_source = options.source_opener(options.run)
    names = options.series_names()
    finished = finish_trading(options.run, options.terms(), open_source, names)
    for sentence in sentences(finished.results):
        send_message(sentence)
    send_message(f"Written: {', '.join(map(str, finished.files))}")


def read_gains(folder: Path) -> pd.DataFrame:
    """Read `worth.csv` of a folder."""
    table = pd.read_csv(folder / "worth.csv")
    table["series"] = table["series"].astype(object).fillna("all")
    table.attrs["folder"] = str(folder)
    return table
