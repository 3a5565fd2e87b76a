"""What the columns of a candle table mean: the one place that looks up their names.

Names are compared without regard to case, blanks, underscores and brackets (`plain_name`). A name that is
listed nowhere is ignored, unless it could decide what a row is or which volume is read: it is then refused.

Volumes are of four kinds. Only one in units of the base currency is ever read:

- `BASE_VOLUMES` say that they are in base currency.
- `VOLUMES` are in base currency on most exchanges, and `AMOUNTS` on some: HTX writes base and quote volume as
  `amount` and `vol`, OKX the contracts of a perpetual as `vol`. With another volume next to them the prices
  decide (`base_volume`): a quote volume is a base volume times the average price at which it was
  traded, which lies between low and high of its bar. Contracts, lots, numbers of trades and volumes in
  thousands have no such pair.
- `QUOTE_VOLUMES`, numbers of trades and average prices are never a volume.

Shapes: R raw rows.
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.base.errors import DataError, listed
from v8.data.market.series import Series
from v8.profile.columns import CLOSE, HIGH, LOW, OHLCV, OPEN, OPEN_TIME, QUOTE_CURRENCIES, VOLUME

ARCHIVE_COLUMNS: Final = (
    *(OPEN_TIME, *OHLCV, "close_time", "quote_volume", "count"),
    *("taker_buy_volume", "taker_buy_quote_volume", "ignore"),
)
"""Columns of the exchange archive in its order; see lineage "Sources they used" and the headers of its
futures files."""

COUNT_OR_TURNOVER: Final = "count_or_turnover"
"""Seventh value of a row without names: the number of trades (Kraken) or the quote volume (Bybit)."""

UNNAMED_COLUMNS: Final[Mapping[int, tuple[str, ...]]] = MappingProxyType(
    {
        5: ARCHIVE_COLUMNS[:5],
        6: ARCHIVE_COLUMNS[:6],
        7: (*ARCHIVE_COLUMNS[:6], COUNT_OR_TURNOVER),
        12: ARCHIVE_COLUMNS,
    }
)
"""Columns of rows without names, by the number of their values. Of eight and nine values there are five
orders (Kraken, Gate, Bitget, MEXC, OKX), which cannot be told apart."""

TIME_NAMES: Final = (
    *(OPEN_TIME, "opentime", "open_timestamp", "time_period_start", "time_open", "timeopen"),
    *("start", "start_time", "starttime", "startedat", "timestamp"),
    *("unix", "unix_timestamp", "unix_time", "ts", "t", "time", "datetime", "date"),
)
"""Names of the open time in tables, normalised. Those that say so come first: next to `start` cryptofeed
writes the time of the last trade as `timestamp`. Then come names that usually hold numbers."""

CLOSE_TIME_NAMES: Final = (
    *("close_time", "closetime", "close_timestamp", "time_close", "timeclose"),
    *("end_time", "endtime", "close_date", "closedate", "end", "stop", "time_period_end"),
)
"""Names of the close time in tables, normalised."""

OPEN_TIME_RULE: Final = "an open time is a close time less a bar"
"""For advice to rename a column: a close time that is renamed places every candle a bar late."""

SERIES_COLUMNS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("symbol", "ticker", "pair", "instrument"), "symbol"),
        **dict.fromkeys(("product_id", "instrument_id", "instrument_name", "inst_id", "instid"), "symbol"),
        **dict.fromkeys(("timeframe", "time_frame", "interval", "granularity", "resolution"), "timeframe"),
        "series": "series",
    }
)
"""Part of a series that a column names, by the normalised name of the column."""

BASE_VOLUMES: Final = (
    *("base_volume", "basevolume", "volume_base", "base_vol", "base_asset_volume"),
    *("volumefrom", "volume_from", "volume_traded", "basetokenvolume", "candle_acc_trade_volume"),
)
VOLUMES: Final = (VOLUME, "vol", "v", "real_volume")
AMOUNTS: Final = ("amount", "volccy", "vol_ccy", "a", "sum")
QUOTE_VOLUMES: Final = (
    *("quote_volume", "quotevolume", "volume_quote", "quote_vol", "quote_asset_volume", "quote_amount"),
    *(
        "volccyquote",
        "vol_ccy_quote",
        "vol_quote",
        "volumeto",
        "volume_to",
        "turnover",
        "notional",
        "q",
        "candle_acc_trade_price",
    ),
    COUNT_OR_TURNOVER,
)
_OTHER_VOLUMES: Final = (
    *("tick_volume", "tickvolume", "tickvol", "tick_vol", "volume_ma", "volume_sma"),
    *("taker_buy_volume", "taker_buy_base_volume", "taker_buy_base_asset_volume", "taker_buy_base"),
    *("taker_buy_quote_volume", "taker_buy_quote_asset_volume", "taker_buy_quote"),
)
"""Columns with a volume in their name that are something else: counts, averages, the volume of one side."""

QUOTE_VOLUME_SIGNS: Final = ("marketcap", "market_cap", "adj_close")
"""Columns of tables whose `volume` is a quote volume: CoinMarketCap's and Yahoo's."""

_MONEY: Final = ("USDT", "USDC", "USD", "EUR")
_VOLUME_WORD: Final = re.compile(r"vol(?!at)|amount|qty|quantity|contracts|(?:^|_)size(?:_|$)")

IS_CLOSED: Final = "is_closed"
CLOSED_NAMES: Final = (
    *(IS_CLOSED, "isclosed", "closed", "confirm", "confirmed", "is_confirmed", "isconfirmed", "x", "w"),
    *("complete", "completed", "is_complete", "iscomplete", "final", "is_final", "isfinal"),
    *("finished", "is_finished", "isfinished", "candle_closed", "bar_closed", "kline_closed"),
)
"""Columns that are true where a bar is closed: `confirm` of OKX and Bybit, `x` of Binance, `w` of Gate."""

OPEN_NAMES: Final = (
    *("is_open", "isopen", "partial", "is_partial", "ispartial", "incomplete", "unclosed", "unconfirmed"),
    *("running", "is_running", "forming", "is_forming", "in_progress", "provisional", "is_live", "islive"),
)
"""Columns that are true where a bar is not closed yet."""

_CLOSED_WORD: Final = re.compile(
    r"(?:^|_)(?:is)?(?:un)?(?:confirm(?:ed)?|closed|completed?|incomplete|final(?:i[sz]ed)?|unfinished"
    r"|finished|partial|forming|running|in_?progress|provisional)(?:_|$)"
)

PRICE_TYPE_NAMES: Final = (
    *("price_type", "pricetype", "price_kind", "pricekind", "candle_type", "candletype", "candle_kind"),
    *("kline_type", "klinetype", "bar_type", "bartype", "what_to_show", "whattoshow"),
)
"""Columns that name the prices of a row: traded ones, or others such as mark prices."""

VAGUE_TYPE_NAMES: Final = ("type", "kind", "tick_type", "ticktype", "feed")
"""Columns that may name the prices of a row, or something else."""

STATE_NAMES: Final = ("status", "state", "bar_status", "bar_state", "candle_status", "candle_state")
"""Columns that may tell by a word whether a bar is closed, or something else."""

TRADED_KINDS: Final = (
    *("", "spot", "margin", "futures", "future", "swap", "perp", "perpetual", "delivery", "linear"),
    *("inverse", "um", "cm", "usdm", "coinm", "last", "last_price", "lastprice", "trade", "trades"),
    *("traded", "kline", "klines", "candle", "candles", "ohlcv"),
)
"""Words for candles of trades, in columns."""

OTHER_KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("mark", "markprice", "mark_price", "markpriceklines"), "mark prices"),
        **dict.fromkeys(("index", "indexprice", "index_price", "indexpriceklines"), "prices of an index"),
        **dict.fromkeys(("premium", "premiumindex", "premium_index", "premiumindexklines"), "premiums"),
        **dict.fromkeys(("funding", "fundingrate", "funding_rate", "fundingrates"), "funding rates"),
        **dict.fromkeys(("bid", "ask", "bidask", "bid_ask", "mid", "midpoint"), "quotes"),
        **dict.fromkeys(("openinterest", "open_interest"), "open interest"),
        **dict.fromkeys(("liquidations", "liquidationsnapshot"), "liquidations"),
        **dict.fromkeys(("aggtrades", "bookticker", "bookdepth"), "no candles"),
    }
)
"""What candles of other prices than traded ones hold, by the words for them in columns and names of files."""

MARKETS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("spot", "margin"), "spot"),
        **dict.fromkeys(("futures", "future", "swap", "perpetual", "perp"), "futures"),
        **dict.fromkeys(("um", "usdm", "linear"), "futures in the quote currency"),
        **dict.fromkeys(("cm", "coinm", "inverse"), "futures in the coin"),
    }
)
"""Markets by the words for them in names of files and folders; their candles of one symbol differ."""

_VARIED: Final = str.maketrans("_()[]<>", "       ")

_NAMES: Final = {
    OPEN_TIME: TIME_NAMES,
    OPEN: (OPEN, "open_price", "o"),
    HIGH: (HIGH, "high_price", "h"),
    LOW: (LOW, "low_price", "l"),
    CLOSE: (CLOSE, "close_price", "c"),
}


def plain_name(name: str) -> str:
    """Normalise the name of a column: small letters, with single underscores for blanks and brackets.

    >>> plain_name(" Open Time"), plain_name("Volume_(BTC)"), plain_name("<DATE>")
    ('open_time', 'volume_btc', 'date')
    """
    return "_".join(name.lower().translate(_VARIED).split())


def wanted_columns(names: Sequence[str], series: Series, location: str) -> dict[int, str]:
    """Return our name of each needed column by its number, from the names in a table.

    Several volumes, and the columns that decide what a row is, are included under their normalised names;
    `v8.data.market.frames` decides by their values.

    Raises:
        DataError: If a column is missing or repeated, or if an unknown one could decide what a row is.
    """
    plain = _plain_names(names)
    _require_open_time(plain, location)
    columns: dict[int, str] = {}
    for column, aliases in _NAMES.items():
        present = [name for name in aliases if name in plain]
        if len(present) == 0 or plain.count(present[0]) != 1:
            others = f" (or {', '.join(aliases[1:])})" if column == OPEN_TIME else ""
            num_present = plain.count(present[0]) if present else 0
            raise _not_one(f"{column}{others}", num_present, names, location)
        columns[plain.index(present[0])] = column
    used = {plain[number] for number in columns}
    types = (*PRICE_TYPE_NAMES, *VAGUE_TYPE_NAMES)
    deciding = (*SERIES_COLUMNS, *CLOSED_NAMES, *OPEN_NAMES, *STATE_NAMES, *types)
    for name in (*_volumes(plain, series, location), *deciding):
        if name in plain and name not in used:
            if plain.count(name) != 1:
                raise _not_one(name, plain.count(name), names, location)
            columns[plain.index(name)] = VOLUME if name in _named_volumes(plain, series) else name
    _require_known(plain, location)
    return columns


def _plain_names(names: Sequence[str]) -> list[str]:
    """Normalise names; of one letter in both cases the capital is dropped: `t` opens a bar, `T` closes it."""
    small_letters = {name for name in names if len(name) == 1 and name.islower()}
    return [
        "" if len(name) == 1 and name.lower() in small_letters - {name} else plain_name(name)
        for name in names
    ]


def _not_one(column: str, num_present: int, names: Sequence[str], location: str) -> DataError:
    fix = "Rename the columns; prices without open, high, low and close are not candles"
    if column.startswith(OPEN_TIME):
        fix = f"Rename the one that holds it; {OPEN_TIME_RULE}"
    return DataError(
        where=location,
        rule=f"needs one column {column}",
        got=f"{num_present or 'none'} among {', '.join(names)}",
        fix=fix,
    )


def _require_open_time(plain: Sequence[str], location: str) -> None:
    """Refuse a table with close times and without open times."""
    close_times = [name for name in CLOSE_TIME_NAMES if name in plain]
    if close_times and not set(TIME_NAMES) & set(plain):
        raise DataError(
            where=location,
            rule="a candle is placed by when it opens",
            got=f"{close_times[0]}, which is when it closes, and no open time",
            fix="Add a column open_time: the close time plus the time from it to the next full minute, "
            "less a bar",
        )


def _named_volumes(plain: Sequence[str], series: Series) -> list[str]:
    """List the columns that say that they are the volume in base currency, the preferred one first."""
    symbol = series.symbol.lower()
    quotes = [quote.lower() for quote in QUOTE_CURRENCIES if symbol.endswith(quote.lower())]
    stops = [len(symbol) - len(quote) for quote in quotes] or range(1, len(symbol))
    coins = [symbol[:stop] for stop in stops if stop > 0]
    own = [name for coin in coins for name in (f"{VOLUME}_{coin}", f"vol_{coin}", f"{coin}_{VOLUME}")]
    return [name for name in (*BASE_VOLUMES, *own) if name in plain]


def _volumes(plain: Sequence[str], series: Series, location: str) -> list[str]:
    """List the columns with volumes that are read: the one that says so, or all that could be the volume.

    Raises:
        DataError: If there is none but one with an unknown name.
    """
    named = _named_volumes(plain, series)
    if named:
        return named[:1]
    if any(name in plain for name in QUOTE_VOLUME_SIGNS):
        return []
    present = [name for name in (*VOLUMES, *AMOUNTS) if name in plain]
    if any(name in VOLUMES for name in present):
        return [*present, *(name for name in QUOTE_VOLUMES if name in plain)]
    money = [name for name in plain if name.endswith(_money(series))]
    other_units = {*QUOTE_VOLUMES, *_OTHER_VOLUMES, *money}
    unknown = [name for name in plain if _VOLUME_WORD.search(name) and name not in other_units]
    if unknown:
        raise DataError(
            where=location,
            rule="a volume counts coins",
            got=f"{listed(unknown)}, which may count coins, contracts or money",
            fix="Rename it to volume if it counts coins, else to quote_volume",
        )
    return []


def _money(series: Series) -> tuple[str, ...]:
    """List the currencies, in small letters, of which a volume is a quote volume of the series."""
    symbol = series.symbol
    quotes = [quote for quote in QUOTE_CURRENCIES if symbol.endswith(quote)]
    return tuple(name.lower() for name in (*quotes, *_MONEY) if not symbol.startswith(name))


def _require_known(plain: Sequence[str], location: str) -> None:
    """Refuse a table with a column of an unknown name that could tell whether a bar is closed."""
    read_names = {*CLOSED_NAMES, *OPEN_NAMES}
    unknown = [name for name in plain if name not in read_names and _CLOSED_WORD.search(name)]
    if unknown:
        raise DataError(
            where=location,
            rule="a row is a closed bar",
            got=f"the column {listed(unknown)}, which may tell that some are not closed",
            fix="Rename it to is_closed (true or false), or remove it",
        )


Values = NDArray[np.float64]

_TOLERANCE: Final = 0.002  # volumes and prices are rounded (unitless, of the price)
_LEAST_SHARE: Final = 0.9  # of the rows: small volumes are rounded most
_FEWEST_ROWS: Final = 10  # rows that must agree by chance before a volume is taken for a price


def base_volume(volumes: Mapping[str, Values], low: Values, high: Values, location: str) -> str:
    """Return the name of the volume in units of the base currency.

    Args:
        volumes: Columns by their normalised names, in any of the units, shape (R,).
        low: Lowest prices, in quote currency, shape (R,).
        high: Highest prices, in quote currency, shape (R,).
        location: Name of the table for messages.

    Raises:
        DataError: If the prices confirm none, or if the volume of rows without names is a price.

    >>> price, coins = np.array([50.0, 60.0]), np.array([2.0, 3.0])
    >>> base_volume({"vol": coins * price, "amount": coins}, price, price, "a table")
    'amount'
    """
    if COUNT_OR_TURNOVER in volumes:
        _require_no_price(volumes[VOLUME], low, high, location)
        if (np.floor(volumes[COUNT_OR_TURNOVER]) == volumes[COUNT_OR_TURNOVER]).all():  # a number of trades
            return VOLUME
    is_refuted = False
    for name in (*VOLUMES, *AMOUNTS):
        for other in (*QUOTE_VOLUMES, *AMOUNTS, *VOLUMES):
            if name in volumes and other in volumes and name != other:
                prices, is_known = _prices(volumes[name], volumes[other])
                is_inside = (prices >= low * (1 - _TOLERANCE)) & (prices <= high * (1 + _TOLERANCE))
                if is_known.any() and is_inside[is_known].mean() >= _LEAST_SHARE:
                    return name
                is_refuted |= bool(is_known.any())
    candidates = [name for name in (*VOLUMES, *AMOUNTS) if name in volumes]
    if is_refuted or len(candidates) > 1:
        raise _unclear(volumes, location)
    return candidates[0]


def _prices(base: Values, quote: Values) -> tuple[Values, NDArray[np.bool_]]:
    """Return the average price of each row if these are its volumes, and which rows have both."""
    is_known = (base > 0) & (quote > 0) & np.isfinite(base) & np.isfinite(quote)
    with np.errstate(over="ignore", under="ignore"):
        prices = np.divide(quote, base, out=np.full(len(base), np.nan), where=is_known)
    return prices, is_known


def _require_no_price(volume: Values, low: Values, high: Values, location: str) -> None:
    """Refuse rows without names whose sixth value is an average price."""
    if len(volume) >= _FEWEST_ROWS and ((volume >= low) & (volume <= high)).all():
        raise DataError(
            where=location,
            rule="the sixth value of a row is its volume",
            got=f"values such as {volume[0]:.10g} that all lie between low and high: an average price",
            fix="Add a header that names the columns",
        )


def _unclear(volumes: Mapping[str, Values], location: str) -> DataError:
    names: Sequence[str] = [name for name in volumes if name != COUNT_OR_TURNOVER]
    first = ", ".join(f"{name} {values[0]:.10g}" for name, values in volumes.items() if len(values))
    fix = f"Rename the one of {' and '.join(names)} that counts coins to base_volume, or remove them"
    if COUNT_OR_TURNOVER in volumes:
        fix = "Add a header that names the columns: rows of more than six values cannot be told apart"
    return DataError(
        where=location,
        rule="a volume counts coins: times a price of its bar it is the quote volume",
        got=f"in the first row {first}",
        fix=fix,
    )
