"""The options of `worth`, for the command line and Python, and what they ask for."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from v8.base.records import Flag
from v8.runs.options import ModelsOptions

if TYPE_CHECKING:  # usage errors are reported before this is imported
    from v8.annexes.trading.rules import TradingTerms

Bps = Annotated[float, Field(ge=0, le=1_000)]
TargetPct = Annotated[float, Field(ge=1, le=1_000)]
Leverage = Annotated[float, Field(ge=0.01, le=100)]


class WorthOptions(ModelsOptions):
    """Every option of `worth`."""

    fee_bps: Annotated[Bps, Flag("Fee of a trade, in 1/100 of 1 %.", "BPS")] = 10.0
    spread_bps: Annotated[Bps, Flag("Between bid and ask.", "BPS")] = 2.0
    target_pct: Annotated[TargetPct, Flag("Volatility of a year aimed at.", "PCT")] = 40.0
    max_leverage: Annotated[Leverage, Flag("Largest position, in wealth.", "X")] = 2.0

    def terms(self) -> "TradingTerms":
        """Return costs of trading and limits of risk as shares."""
        from v8.annexes.trading.rules import BPS, TradingTerms  # noqa: PLC0415

        return TradingTerms(
            self.fee_bps / BPS, self.spread_bps / BPS, self.target_pct / 100, self.max_leverage
        )
