"""Markets of the exchange: where the candles of each are, and how its symbols are written here.

The exchange has spot and derivatives, in one archive and behind several APIs of the same form. `SPOT` is
here; an annex adds others. A symbol may be traded in several markets at different prices: in all but spot it
has a suffix here, so that series of two markets are never mistaken for each other.
"""

from dataclasses import dataclass
from typing import Final

from v8.base.errors import UnknownSeriesError
from v8.data.market.series import Series
from v8.data.market.sources.source import SOURCES, AdvisedSeriesError


@dataclass(frozen=True, kw_only=True)
class Market:
    """A market of the exchange."""

    source_suffix: str  # of the sources of this market: "" or "-um"
    archive_folder: str  # folder of the archive that holds `monthly` and `daily`
    api_folder: str  # path of its API on each host
    hosts_variable: str  # environment variable that names the hosts of its API, comma-separated
    default_hosts: str  # the exchange's own, comma-separated
    near_weight: int  # request weight in a minute from which the API gets a pause
    symbol_suffix: str = ""  # of symbols here; the exchange writes them without it
    symbols: tuple[str, ...] = ()  # of the exchange, without suffix, that a similar one may stand for

    def symbol_of(self, series: Series) -> str:
        """Return the symbol of a series as the exchange writes it."""
        return series.symbol.removesuffix(self.symbol_suffix)

    def require_listed(self, series: Series, source: str) -> None:
        """Refuse a symbol that this market cannot have, before any request is sent."""
        symbol = self.symbol_of(series)
        if symbol.isalnum() and series.symbol == f"{symbol}{self.symbol_suffix}":
            return
        location = f"{series} from {source}"
        example = f"BTCUSDT{self.symbol_suffix}"
        rule = f"the exchange's symbols are letters and digits, such as {example}"
        if self.symbol_suffix:
            rule = f"its symbols are the exchange's, and end with {self.symbol_suffix}, such as {example}"
        others = [
            kind.name
            for kind in SOURCES.values()
            if kind.symbol_suffix and series.symbol.endswith(kind.symbol_suffix)
        ]
        if others:
            fitting = [name for name in others if name.startswith(source)]
            fix = f"Write param:source {(fitting or others)[0]}"
            raise AdvisedSeriesError(where=location, rule=rule, got=series.symbol, fix=fix)
        if self.symbol_suffix and series.symbol.isalnum():
            fix = f"Write {series.symbol}{self.symbol_suffix}-{series.timeframe}"
            raise AdvisedSeriesError(where=location, rule=rule, got=series.symbol, fix=fix)
        fix = "Write it as the exchange does, or give files of your own with param:source files"
        raise UnknownSeriesError(where=location, rule=rule, got=series.symbol, fix=fix)

    def advice(self, series: Series, otherwise: str) -> str:
        """Suggest the symbol of the same coin that this market has, for a series that it lacks."""
        symbol = self.symbol_of(series)
        coin = symbol.removesuffix("USDT")
        similar = [known for known in self.symbols if coin in known and known != symbol]
        if not coin or not similar:
            return otherwise
        return f"Did you mean {similar[0]}{self.symbol_suffix}-{series.timeframe}"


SPOT: Final = Market(
    source_suffix="",
    archive_folder="data/spot",
    api_folder="api/v3",
    hosts_variable="V8_REST_URL",
    # The exchange's main host, and the one that serves market data only, to everyone.
    default_hosts="https://api.binance.com,https://data-api.binance.vision",
    near_weight=5_400,  # of the 6,000 that a minute allows; the rest is left for others at the address
)
