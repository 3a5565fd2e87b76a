"""The sources `vision-um`, `live-um` and `rest-um`: the exchange's perpetual contracts, and their funding.

The exchange calls these contracts USD-margined futures (um). A contract usually has the symbol of the pair on
spot, at another price, so the series of a contract has the suffix that charts give it: `BTCUSDT.P-15m`.
Contracts with a last day are not read.

    {base}/data/futures/um/{monthly|daily}/klines/{SYM}/{TF}/{SYM}-{TF}-{YYYY-MM[-DD]}.zip
    {base}/data/futures/um/monthly/fundingRate/{SYM}/{SYM}-fundingRate-{YYYY-MM}.zip

The files have a header and times in milliseconds; the API has the form of that of spot, on hosts of its own,
which `V8_UM_REST_URL` names.
https://developers.binance.com/docs/derivatives/usds-margined-futures/market-data/rest-api/Kline-Candlestick-Data

Holders of a contract pay each other every few hours: the table `funding` of a profile's `covariates` has the
columns `time`, when a rate was paid (some milliseconds after the full hour), and `funding_rate`, a share of
the position, positive where buyers pay. The archive has whole months of it, so `vision-um` ends with the last
one; `live-um` adds the rest from the API.
https://developers.binance.com/docs/derivatives/usds-margined-futures/market-data/rest-api/Get-Funding-Rate-History
"""

import io
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import urlencode

import numpy as np
import pandas as pd

from v8.base.errors import DataError, shown
from v8.data.market.candles import Candles
from v8.data.market.frames import read_open_times
from v8.data.market.series import DAY_S, US_PER_S, Series, iso
from v8.data.market.sources import Market, SourceTable
from v8.data.market.sources.downloads import FileFetcher
from v8.data.market.sources.live import LiveSource
from v8.data.market.sources.rest import KlinesApi, RestSource, read_json
from v8.data.market.sources.vision import (
    ArchiveZips,
    VisionSource,
    foreign_file,
    read_archive_address,
    require_within,
    zip_member,
)

FUNDING: Final = "funding"  # name of the table
TIME: Final = "time"
FUNDING_RATE: Final = "funding_rate"
_ARCHIVED_TIME: Final = "calc_time"
_ARCHIVED_RATE: Final = "last_funding_rate"
_MOST_RATE: Final = 1.0  # the exchange limits a rate to a few percent of the position
_MOST_ROWS: Final = 1_000  # rates of one response, a limit of the exchange
_LONGEST_INTERVAL_S: Final = DAY_S  # rates before the first candle are valid at its close; 8 h is usual
_MONTH_LAG_S: Final = 2 * DAY_S  # the archive has the zip of a month two days after its end
_TIMEFRAMES: Final = ("15m", "1h")

UM: Final = Market(
    source_suffix="-um",
    archive_folder="data/futures/um",
    api_folder="fapi/v1",
    hosts_variable="V8_UM_REST_URL",
    default_hosts="https://fapi.binance.com",
    near_weight=2_100,  # of the 2,400 that a minute allows
    symbol_suffix=".P",
    # The coins of the default universe; cheap ones are traded by the thousand, LUNA was listed again.
    symbols=(
        *("BTCUSDT", "ETHUSDT", "BNBUSDT", "XRPUSDT", "LTCUSDT", "ADAUSDT", "SOLUSDT", "DOGEUSDT"),
        *("AVAXUSDT", "LINKUSDT", "UNIUSDT", "ATOMUSDT", "NEARUSDT", "DYDXUSDT", "ARBUSDT", "OPUSDT"),
        *("1000PEPEUSDT", "INJUSDT", "1000SHIBUSDT", "LUNA2USDT"),
    ),
)


class _Perpetuals:
    """What the three sources have besides candles."""

    table_names = (FUNDING,)

    def series(self) -> tuple[Series, ...]:
        """List the contracts of the coins of the default universe; see `SeriesLister`."""
        symbols = [f"{symbol}{UM.symbol_suffix}" for symbol in UM.symbols]
        return tuple(Series(symbol, timeframe) for symbol in symbols for timeframe in _TIMEFRAMES)


@dataclass(frozen=True, eq=False, kw_only=True)
class PerpetualVision(_Perpetuals, VisionSource):
    """Candles and funding of perpetual contracts from the archive."""

    market: Market = UM

    def table(self, name: str, candles: Candles) -> SourceTable:
        """Return the rates of whole months; see `OffersTables`."""
        rates = _archived_rates(candles, int(self.now()), self.downloader)
        return _required(rates, _end_of_month_s(rates), name, candles.series, self.name)


class PerpetualRest(_Perpetuals, RestSource):
    """Candles and funding of perpetual contracts from the API."""

    def __init__(self) -> None:
        super().__init__(KlinesApi(market=UM))

    def table(self, name: str, candles: Candles) -> SourceTable:
        """Return the rates up to now; see `OffersTables`."""
        now_s = self.now_s()
        rates = _rates_of_api(self.api, candles.series, _first_s(candles))
        return _required(rates, now_s, name, candles.series, self.name)


class PerpetualLive(_Perpetuals, LiveSource):
    """Candles and funding of perpetual contracts up to this moment."""

    def __init__(self) -> None:
        super().__init__(RestSource(KlinesApi(market=UM)))

    def table(self, name: str, candles: Candles) -> SourceTable:
        """Return the rates up to now, those of past months from the archive; see `OffersTables`."""
        now_s = self.now_s()
        archived = _archived_rates(candles, now_s - _MONTH_LAG_S, self.archive.downloader)
        next_s = _first_s(candles) if archived.empty else int(archived[TIME].iloc[-1]) // 1_000 + 1
        recent = _rates_of_api(self.rest.api, candles.series, next_s)
        rates = pd.concat([archived, recent], ignore_index=True)
        return _required(rates, now_s, name, candles.series, self.name)


@dataclass(frozen=True, eq=False, kw_only=True)
class _FundingZips(ArchiveZips):
    """The zips of the funding rates of one contract."""

    symbol: str  # as the exchange writes it

    def path(self, period: pd.Period) -> PurePosixPath:
        """See `ArchiveZips`.

        >>> zips = _FundingZips(symbol="BTCUSDT", address=None, downloader=None)
        >>> str(zips.path(pd.Period("2024-08", "M")))
        'data/futures/um/monthly/fundingRate/BTCUSDT/BTCUSDT-fundingRate-2024-08.zip'
        """
        folder = PurePosixPath(UM.archive_folder, "monthly", "fundingRate", self.symbol)
        return folder / f"{self.symbol}-fundingRate-{period}.zip"

    def read(self, content: bytes, period: pd.Period) -> pd.DataFrame:
        """Return the columns `time`, in milliseconds, and `funding_rate`, in the order of time."""
        location = self.url(period)
        text = zip_member(content, f"{self.path(period).stem}.csv", location)
        try:
            frame = pd.read_csv(io.BytesIO(text))
        except ValueError as error:  # pandas' errors are ValueErrors
            raise foreign_file(location, "must be a CSV", shown(error)) from error
        if not {_ARCHIVED_TIME, _ARCHIVED_RATE} <= set(frame.columns) or frame.empty:
            rule = f"must have the columns {_ARCHIVED_TIME}, {_ARCHIVED_RATE}, and a row"
            raise foreign_file(location, rule, f"{len(frame)} rows of {shown(list(frame.columns))}")
        times = read_open_times(frame[_ARCHIVED_TIME])
        if not times.is_readable.all():
            raise foreign_file(location, "every row has a time since the epoch", "one without")
        require_within(times.open_us // US_PER_S, period, location)
        rates = pd.to_numeric(frame[_ARCHIVED_RATE], errors="coerce")
        rows = pd.DataFrame({TIME: times.open_us // 1_000, FUNDING_RATE: rates})
        return rows.sort_values(TIME, ignore_index=True)

    def check(self, table: pd.DataFrame) -> None:
        """See `ArchiveZips`."""
        _require_plausible(table, self.symbol)


def _archived_rates(candles: Candles, last_s: int, downloader: FileFetcher) -> pd.DataFrame:
    """Return the rates in the archive from before the first candle to a time."""
    zips = _FundingZips(
        symbol=UM.symbol_of(candles.series), address=read_archive_address(), downloader=downloader
    )
    last_s = min(last_s, int(candles.open_time_s[-1]) + candles.series.bar_s)
    first, last = (pd.Period(pd.Timestamp(time_s, unit="s"), "M") for time_s in (_first_s(candles), last_s))
    tables = zips.tables(list(pd.period_range(first, last, freq="M")))
    if not tables:
        return pd.DataFrame({TIME: np.empty(0, np.int64), FUNDING_RATE: np.empty(0)})
    for month in pd.period_range(min(tables), max(tables), freq="M"):
        if month not in tables:
            raise foreign_file(zips.url(month), "must exist between two other months", "none")
    return pd.concat([tables[month] for month in sorted(tables)], ignore_index=True)


def _end_of_month_s(rates: pd.DataFrame) -> int:
    """Return the end of the month of the last rate, seconds since the epoch; 0 without a rate."""
    if rates.empty:
        return 0
    month = pd.Timestamp(rates[TIME].iloc[-1], unit="ms").to_period("M")
    return int((month + 1).start_time.timestamp())


def _rates_of_api(api: KlinesApi, series: Series, first_s: int) -> pd.DataFrame:
    """Fetch the rates from a time on, page after page."""
    pages = []
    start_ms = first_s * 1_000
    while True:
        query = urlencode({"symbol": UM.symbol_of(series), "startTime": start_ms, "limit": _MOST_ROWS})
        (page,) = api.downloader.map(
            lambda query: api.ask(f"fundingRate?{query}", f"the funding of {series}", _read_rates), [query]
        )
        pages.append(page)
        if len(page) < _MOST_ROWS:
            return pd.concat(pages, ignore_index=True)
        start_ms = int(page[TIME].iloc[-1]) + 1


def _read_rates(content: bytes, location: str) -> pd.DataFrame:
    """Read the rates of a response, in the order of time; none for an empty list."""
    answer: Any = read_json(content, location)
    try:
        rows = [(int(row["fundingTime"]), float(row["fundingRate"])) for row in answer]
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(
            where=location,
            rule="funding comes as a list of rows with fundingTime and fundingRate",
            got=shown(answer),
            fix="Try again later, or ask another address of the API",
        ) from error
    times = np.array([row[0] for row in rows], np.int64)
    rates = pd.DataFrame({TIME: times, FUNDING_RATE: [row[1] for row in rows]})
    rates[FUNDING_RATE] = rates[FUNDING_RATE].astype(np.float64)
    _require_plausible(rates, location)
    return rates


def _require_plausible(rates: pd.DataFrame, location: str) -> None:
    """Refuse rates that no contract has, and rows that are not in the order of time."""
    is_wrong = ~(rates[FUNDING_RATE].abs() <= _MOST_RATE) | ~(rates[TIME].diff().fillna(1) > 0)
    if is_wrong.any():
        row = rates[is_wrong].iloc[0]
        raise DataError(
            where=f"funding of {location}",
            rule=f"rates of funding lie between {-_MOST_RATE:g} and {_MOST_RATE:g}, in the order of time",
            got=f"{row[FUNDING_RATE]:g} at {iso(row[TIME] / 1_000)}",
            fix="Try again later",
        )


def _required(rates: pd.DataFrame, known_until_s: int, name: str, series: Series, source: str) -> SourceTable:
    """Return the table of some rates; a `DataError` if there are none, or implausible ones."""
    if rates.empty:
        raise DataError(
            where=f"{name} of {series} from {source}",
            rule="needs a rate in the time of the candles",
            got="none",
            fix="Check the symbol, or leave the table out of the profile's covariates",
        )
    _require_plausible(rates, f"{series} from {source}")
    return SourceTable(rates, known_until_s)


def _first_s(candles: Candles) -> int:
    return int(candles.open_time_s[0]) - _LONGEST_INTERVAL_S
