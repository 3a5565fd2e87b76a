"""Candles as users may pass them: written in another form, or with one fault; and tables of covariates."""

from __future__ import annotations

import io
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pandas as pd

from v8.data.market.series import Series
from v8.profile.settings import TableSettings

TABLE = TableSettings(
    file="funding.csv", time="time", columns=("rate",), available_after_s=0, max_age_s=28_800
)

PRICES = ["open", "high", "low", "close"]
_PLAIN = ["open_time", *PRICES, "volume"]

Change = Callable[[Random, pd.DataFrame, Series], pd.DataFrame]


def covariates(random: Random) -> bytes:
    """Write a table with a note next to each value, and quotes, separators and line ends by chance."""
    separator = random.choice((",", ",", ";", "\t"))
    lines = [["time", "note", "rate"]]
    for number in range(random.choice((1, 3, 40))):
        note = random.choice(("", "x", '"x"', f'"a{separator}b"', '"say ""hi"""'))
        lines.append([str(1_717_200_000 + 28_800 * number), note, str(number / 8)])
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        line = random.choice(lines)
        place = random.randrange(len(line))
        start = random.randrange(len(line[place]) + 1)
        odd = random.choice(('"', '"', '"', '""', separator, "\n", "\r", "\r\n", " ", "\0", "e5", "-"))
        line[place] = f"{line[place][:start]}{odd}{line[place][start:]}"
    end = random.choice(("\n", "\n", "\r\n", "\r"))
    return end.join(separator.join(line) for line in lines).encode() + end.encode()


def candles_told(random: Random, frame: pd.DataFrame, series: Series) -> tuple[Any, str]:
    """Write candles in a way that keeps their meaning, or that breaks it.

    Args:
        random: What chooses.
        frame: `open_time` in milliseconds, prices and volume.
        series: What they are of.

    Returns:
        What is handed over, as bytes if it is a CSV, and what is wrong with it; empty for nothing.
    """
    wrong = random.choice(("", random.choice([*WRONG])))
    if wrong:
        frame = WRONG[wrong](random, frame.copy(), series)
    if wrong in _UNNAMED:
        return random.choice((frame.to_numpy(), frame.to_numpy().tolist())), wrong
    is_typed = wrong == "16 bits"
    # A change may add a quote volume, which would confirm the volume in contracts.
    num_changes = 0 if wrong == "contracts" else random.choice((0, 1, 2))
    for change in random.sample(_NAMED if is_typed else _KEEPING, num_changes):
        frame = change(random, frame, series)
    forms = _FORMS[:2] if is_typed else _FORMS
    return random.choice(forms)(frame), wrong


def _with(frame: pd.DataFrame, row: int, name: str, value: Any) -> pd.DataFrame:
    values = frame[name].tolist()
    values[row] = value
    return frame.assign(**{name: values})


def _scaled(random: Random, frame: pd.DataFrame, series: Series) -> pd.DataFrame:
    first = random.randrange(1, len(frame))
    factor = random.choice((100, 1_000, 0.01, 1e-6))
    frame.loc[first:, PRICES] *= factor
    return frame


def _of_another(random: Random, frame: pd.DataFrame, series: Series) -> pd.DataFrame:
    own, other = random.choice(
        (("BTC/USDT", "ETHUSDT"), ("BTCUSDT", "BTCUSD"), ("btc-usdt", "BTCUSDC"), ("BTC", "ETH"))
    )
    name = random.choice(("symbol", "Symbol", "ticker", "pair", " INSTRUMENT "))
    first = random.randrange(len(frame))
    return frame.assign(**{name: [own] * first + [other] * (len(frame) - first)})


def _moved(frame: pd.DataFrame, by_ms: int, name: str = "open_time") -> pd.DataFrame:
    return frame.assign(open_time=frame["open_time"] + by_ms).rename(columns={"open_time": name})


_ORDERS = (
    ["close", "high", "low", "open"],
    ["open", "close", "high", "low"],
    ["low", "high", "open", "close"],
    ["high", "low", "open", "close"],
)
WRONG: dict[str, Change] = {
    "another timeframe": lambda random, frame, series: frame.assign(
        **{random.choice(("interval", "Timeframe", "granularity")): random.choice(("1h", "5m", 3_600, "1M"))}
    ),
    "another symbol": _of_another,
    "16 bits": lambda random, frame, series: frame.assign(
        **{
            name: (frame[name] / 100).astype("float16")
            for name in random.sample(PRICES, random.choice((1, 4)))
        }
    ),
    "open and close swapped": lambda random, frame, series: frame.rename(
        columns={"open": "close", "close": "open"}
    ),
    "prices backwards": lambda random, frame, series: frame.assign(
        **{name: frame[name].to_numpy()[::-1] for name in PRICES}
    ),
    "another unit": _scaled,
    "off the minute": lambda random, frame, series: _moved(frame, random.randrange(1, 60) * 1_000),
    "close times": lambda random, frame, series: _moved(
        frame,
        series.bar_s * 1_000 - random.choice((1, 1_000)),
        random.choice(("open_time", "time", "timestamp")),
    ),
    "close times by name": lambda random, frame, series: _moved(
        frame, series.bar_s * 1_000, random.choice(("close_time", "Close Time", "closeTime", "end_time"))
    ),
    "newest row": lambda random, frame, series: _with(
        frame,
        len(frame) - 1,
        random.choice(_PLAIN[1:]),
        random.choice((np.nan, -1.0, None, "", "1,0.5", np.inf)),
    ),
    "newest row contradicts itself": lambda random, frame, series: _with(frame, len(frame) - 1, "low", 1e6),
    "newest row off the grid": lambda random, frame, series: _with(
        frame, len(frame) - 1, "open_time", int(frame["open_time"].iloc[-1]) + random.randrange(1, 60_000)
    ),
    "newest row told twice": lambda random, frame, series: pd.concat(
        [frame, frame.tail(1).assign(volume=1e9)], ignore_index=True
    ),
    "thousands' commas": lambda random, frame, series: frame.assign(
        **{name: [f"{value * 1e9:,.3f}" for value in frame[name]] for name in PRICES}
    ),
    "decimal commas": lambda random, frame, series: frame.assign(
        **{name: [f"{value:.1f}".replace(".", ",") for value in frame[name]] for name in _PLAIN[1:]}
    ),
    "one thousand's comma": lambda random, frame, series: _with(
        frame.astype({"volume": object}), random.randrange(len(frame)), "volume", "1,234.5"
    ),
    "contracts": lambda random, frame, series: frame.assign(
        volume=frame["volume"] * random.choice((0.001, 100.0)), turnover=_quote_volume(frame)
    ),
    "an unknown flag": lambda random, frame, series: frame.assign(
        **{random.choice(("bar_completed", "unfinished", "was_final")): 1}
    ),
    "a flag that says neither": lambda random, frame, series: frame.assign(
        **{random.choice(("confirm", "x")): random.choice((2, "maybe", ""))}
    ),
    "other prices": lambda random, frame, series: frame.assign(
        **{random.choice(("price_type", "candleType")): random.choice(("mark", "INDEX", "premiumIndex"))}
    ),
    "time of day alone": lambda random, frame, series: frame.rename(columns={"open_time": "date"}).assign(
        time=pd.to_datetime(frame["open_time"], unit="ms").dt.strftime(random.choice(("%H:%M", "%H%M%S")))
    ),
    "eight values": lambda random, frame, series: frame.assign(
        volume=(frame["low"] + frame["high"]) / 2, base=frame["volume"], count=3
    ),
    "average price": lambda random, frame, series: frame.assign(
        volume=(frame["low"] + frame["high"]) / 2, base=frame["volume"]
    ),
    "order of columns": lambda random, frame, series: frame[["open_time", *random.choice(_ORDERS), "volume"]],
}
"""What can be wrong with candles; each must be refused."""

_UNNAMED = {"order of columns", "eight values", "average price"}


def _dated(random: Random, frame: pd.DataFrame, series: Series) -> pd.DataFrame:
    name = next((name for name in frame.columns if "time" in str(name).lower().replace("frame", "")), None)
    if name is None or not pd.api.types.is_integer_dtype(frame[name]):
        return frame
    dates = pd.to_datetime(frame[name], unit="ms", utc=True)
    texts = [date.isoformat() for date in dates]
    return frame.assign(
        **{name: random.choice((dates, dates.dt.tz_convert("Asia/Tokyo"), texts, frame[name] * 1_000))}
    )


def _column(frame: pd.DataFrame, name: str) -> pd.Series:
    """Return a column as numbers, however its name is written; nan if another change has renamed it."""
    names = [written for written in frame.columns if str(written).lower() == name]
    column = frame[names[0]] if names else pd.Series(np.nan, index=frame.index)
    return pd.to_numeric(column, errors="coerce")


def _quote_volume(frame: pd.DataFrame) -> pd.Series:
    return _column(frame, "volume") * _column(frame, "close")


def _with_updates(random: Random, frame: pd.DataFrame) -> pd.DataFrame:
    """Add rows of bars that were not closed yet, and a column that tells which."""
    name = random.choice(("confirm", "is_closed", "x", "Complete", "isFinal"))
    yes, no = random.choice(((1, 0), (True, False), ("1", "0"), ("true", "false")))
    if any(str(written).lower() == name.lower() for written in frame.columns):
        return frame
    updates = frame.tail(random.choice((1, 5))).assign(**{name: no})
    return pd.concat([frame.assign(**{name: yes}), updates], ignore_index=True)


_NAMED: list[Change] = [
    lambda random, frame, series: frame.rename(columns=random.choice((str.upper, str.title))),
    lambda random, frame, series: frame.iloc[::-1],
    lambda random, frame, series: frame.sample(frac=1, random_state=random.randrange(99)),
    lambda random, frame, series: frame.assign(trades=3, note="a, b", quote_volume=_quote_volume(frame)),
    lambda random, frame, series: frame.rename(columns={"volume": "amount"}).assign(vol=_quote_volume(frame)),
    lambda random, frame, series: frame.assign(
        SYMBOL=random.choice((series.symbol, "BTC/USDT", "btc-usdt", "BINANCE:BTCUSDT", "BTC/USDT:USDT"))
    ),
    lambda random, frame, series: _with_updates(random, frame),
    lambda random, frame, series: frame.assign(candle_type=random.choice(("spot", "Futures", "last"))),
    lambda random, frame, series: frame.assign(Interval=random.choice(("15m", "15min", "15", 900, "15 Min"))),
    _dated,
]
_KEEPING: list[Change] = [
    *_NAMED,
    lambda random, frame, series: frame.astype({name: str for name in frame if name in PRICES}),
    lambda random, frame, series: frame.assign(
        **{name: list(map(_exact, frame[name])) for name in frame if name in PRICES}
    ),
]
"""What changes how candles are written, and not what they are."""


def _exact(value: Any) -> Any:
    return Decimal(repr(float(value))) if isinstance(value, float) else value


def _csv(frame: pd.DataFrame) -> bytes:
    stream = io.StringIO()
    frame.to_csv(stream, index=False)
    return stream.getvalue().encode()


_FORMS: tuple[Callable[[pd.DataFrame], Any], ...] = (
    lambda frame: frame,
    lambda frame: {name: frame[name] for name in frame},
    lambda frame: frame.to_dict("records"),
    _csv,
)
