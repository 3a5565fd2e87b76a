"""Trading: the economic value of forecasts, after fees and spread, by five rules; the options of `worth`."""

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from v8.base.records import Flag
from v8.runs.options import ModelsOptions

BPS: Final = 1e4  # basis points in 1

Bps = Annotated[float, Field(ge=0, le=1_000)]
TargetPct = Annotated[float, Field(ge=1, le=1_000)]
Leverage = Annotated[float, Field(ge=0.01, le=100)]


@dataclass(frozen=True)
class TradingTerms:
    """Costs of trading and limits of risk, as shares."""

    fee: float = 0.001  # of each trade
    spread: float = 0.0002  # between bid and ask; a market order pays half of it
    target: float = 0.4  # volatility per year that a position aims at
    max_leverage: float = 2.0  # largest position, as a multiple of the wealth

    @property
    def taker(self) -> float:
        """Cost of a market order, a share of its value."""
        return self.fee + self.spread / 2


class WorthOptions(ModelsOptions):
    """Every option of `worth`, for the command line and Python."""

    fee_bps: Annotated[Bps, Flag("Fee of a trade, in 1/100 of 1 %.", "BPS")] = 10.0
    spread_bps: Annotated[Bps, Flag("Between bid and ask.", "BPS")] = 2.0
    target_pct: Annotated[TargetPct, Flag("Volatility of a year aimed at.", "PCT")] = 40.0
    max_leverage: Annotated[Leverage, Flag("Largest position, in wealth.", "X")] = 2.0

    def terms(self) -> TradingTerms:
        """Return costs of trading and limits of risk as shares."""
        return TradingTerms(
            fee=self.fee_bps / BPS,
            spread=self.spread_bps / BPS,
            target=self.target_pct / 100,
            max_leverage=self.max_leverage,
        )
