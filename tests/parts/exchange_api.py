"""The exchange on loopback: its public API and the archive of the same candles, at a time that the test sets.

`with ExchangeApi(now_s=...) as exchange:` serves `/api/v3/klines`, `time` and `exchangeInfo` as it does:
rows of twelve fields in milliseconds, at most 1,000, the running candle last, used weights in the headers.
Under `/data/spot/` it serves the zips of all days and months that are over at that time, so that
`V8_REST_URL` and `V8_VISION_URL` may both be `exchange.url`. Faults are what a test asks for.

`ExchangeApi(is_um=True)` is the exchange's market of perpetual contracts: `/fapi/v1/`, `/data/futures/um/`,
zips with a header, and the funding that a test puts there.
"""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
import zipfile
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pandas as pd
from local_server import LocalServer, QuietHandler

from v8.data.market.series import TIMEFRAME_S, Series
from v8.profile.columns import OHLCV

NOW_S = 1_725_451_620
"""2024-09-04T12:07:00Z."""

MOST_ROWS = 1_000
WEIGHTS = {"/api/v3/klines": 2, "/api/v3/time": 1}

UM_HEADER = (
    "open_time,open,high,low,close,volume,close_time,quote_volume,count,taker_buy_volume,"
    "taker_buy_quote_volume,ignore"
)
"""First line of the candle files of futures."""

Rows = list[list[Any]]


@dataclass
class ApiFault:
    """One wrong answer of the API.

    Args:
        status: Status code.
        headers: Headers to add.
        body: Sent instead of the answer.
        rows: Changes the rows of candles before they are sent.
        cut_bytes: Bytes left out at the end of the promised body.
        drip_s: Seconds between the bytes of the body; 0 sends it at once.
        of: The path whose next answer it is; None for any.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    rows: Callable[[Rows], Any] | None = None
    cut_bytes: int = 0
    drip_s: float = 0.0
    of: str | None = "/api/v3/klines"


def code(number: int, message: str) -> bytes:
    return json.dumps({"code": number, "msg": message}).encode()


def too_many(status: int = 429, retry_after: str | None = "1") -> ApiFault:
    """Answer that there were too many requests: 429, or 418 of a banned address."""
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return ApiFault(status, headers, code(-1003, "Too much request weight used"), of=None)


def blocked() -> ApiFault:
    return ApiFault(451, body=code(0, "Service unavailable from a restricted location"), of=None)


class ExchangeApi(LocalServer):
    """The public API of an exchange, and its archive, on a free port of this machine.

    Args:
        now_s: The exchange's time, seconds since the epoch; it stands still until the test moves it.

    Attributes:
        now_s: The exchange's time; set it to move the clock.
        faults: Wrong answers to come, each given once, the first that fits first.
        requests: Path and query of every request to the API, in order; `archive_requests` are the others.
        used_weight: What the headers tell; from `weight_limit` on the answer is 429.
        has_running: Whether the running candle is served when it is in the asked span.
        is_blocked: Whether every request to the API is answered with 451.
        has_archive: Whether there is an archive at all.
        archive_lag_s: Seconds from the end of a day or month until its zip is there.
        password: User and password that every request must know.
        funding: Rates by symbol and by time, milliseconds since the epoch.
    """

    def __init__(self, now_s: float = NOW_S, *, is_um: bool = False) -> None:
        super().__init__(_Handler)
        self.is_um = is_um
        self.api_path = "/fapi/v1/" if is_um else "/api/v3/"
        self.archive_path = "/data/futures/um/" if is_um else "/data/spot/"
        self.funding: dict[str, dict[int, float]] = {}
        self.now_s = now_s
        self.faults: list[ApiFault] = []
        self.requests: list[str] = []
        self.archive_requests: list[str] = []
        self.used_weight = 0
        self.weight_limit = 6_000
        self.has_running = self.has_archive = True
        self.is_blocked = False
        self.archive_lag_s = 0.0
        self.password: tuple[str, str] | None = None
        self._candles: dict[str, dict[int, tuple[float, ...]]] = {}
        self._archived: dict[str, dict[int, tuple[float, ...]]] = {}
        self._opens: dict[str, np.ndarray] = {}
        self._zips: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put(self, series: str, frame: pd.DataFrame) -> None:
        """Hold candles of a series, past and future: `OHLCV` under a DatetimeIndex or beside `open_time`.

        `open_time` is in milliseconds, UTC.
        """
        if "open_time" in frame.columns:
            opens_s = frame["open_time"].to_numpy(np.int64) // 1_000
        else:
            index = pd.DatetimeIndex(frame.index).tz_convert("UTC").tz_localize(None)
            opens_s = index.to_numpy("datetime64[s]").astype(np.int64)
        rows = map(tuple, frame[list(OHLCV)].to_numpy(np.float64).tolist())
        self._candles.setdefault(series, {}).update(zip(opens_s.tolist(), rows, strict=True))
        self._renew(series)

    def revise(self, series: str, open_s: int, *, in_archive: bool = False, **values: float) -> None:
        """Change values of a candle: everywhere, or in the archive only."""
        known = dict(zip(OHLCV, self._candles[series][open_s], strict=True))
        held = self._archived.setdefault(series, {}) if in_archive else self._candles[series]
        held[open_s] = tuple((known | values)[name] for name in OHLCV)
        self._renew(series)

    def put_zip(self, stem: str, content: bytes) -> None:
        """Put other bytes into the place of a zip of the archive, such as BTCUSDT-15m-2024-12."""
        self._zips[stem] = content

    def cut_hole(self, series: str, first_s: int, last_s: int) -> None:
        """Take out the candles that open between two times, both included."""
        for open_s in range(first_s, last_s + 1, Series.parse(series).bar_s):
            self._candles[series].pop(open_s, None)
        self._renew(series)

    def frame(self, series: str, now_s: float | None = None) -> pd.DataFrame:
        """Return the closed candles, `OHLCV` under a UTC DatetimeIndex: what a cold fetch must give."""
        now_s = self.now_s if now_s is None else now_s
        bar_s = Series.parse(series).bar_s
        opens = [open_s for open_s in self._opens[series].tolist() if open_s + bar_s <= now_s]
        index = pd.DatetimeIndex(pd.to_datetime(opens, unit="s", utc=True), name="open_time")
        return pd.DataFrame([self._candles[series][at] for at in opens], index=index, columns=list(OHLCV))

    def klines_requests(self) -> list[dict[str, str]]:
        asked = map(urlsplit, self.requests)
        return [dict(parse_qsl(one.query)) for one in asked if one.path == "/api/v3/klines"]

    def _renew(self, series: str) -> None:
        self._opens[series] = np.array(sorted(self._candles[series]), dtype=np.int64)
        self._zips.clear()

    def answer(self, path: str, authorization: str | None) -> tuple[ApiFault, bytes, dict[str, str]]:
        """Return status and faults, body and headers of an answer."""
        address = urlsplit(path)
        if self.password and authorization != _basic(self.password):
            return ApiFault(401), b"", {}
        with self._lock:
            if address.path.startswith(self.archive_path):
                self.archive_requests.append(path)
                content = self._archive(address.path) if self.has_archive else None
                return ApiFault(404 if content is None else 200), content or b"", {}
            self.requests.append(path)
            return self._api(address.path, dict(parse_qsl(address.query)))

    def _api(self, path: str, query: dict[str, str]) -> tuple[ApiFault, bytes, dict[str, str]]:
        self.used_weight += WEIGHTS.get(path, 0)
        headers = {"X-MBX-USED-WEIGHT": str(self.used_weight), "X-MBX-USED-WEIGHT-1M": str(self.used_weight)}
        fault = self._fault(path)
        if self.is_um:
            path = path.replace(self.api_path, "/api/v3/") if path.startswith(self.api_path) else ""
        if self.is_blocked:
            fault = blocked()
        elif self.used_weight > self.weight_limit:
            self.used_weight = 0
            fault = too_many()
        if fault.body is not None:
            return fault, fault.body, headers
        if path == "/api/v3/time":
            return fault, json.dumps({"serverTime": int(self.now_s * 1_000)}).encode(), headers
        if path == "/api/v3/exchangeInfo":
            symbols = sorted({series.rpartition("-")[0] for series in self._candles})
            return fault, json.dumps({"symbols": [_listed(symbol) for symbol in symbols]}).encode(), headers
        if path == "/api/v3/fundingRate":
            return fault, json.dumps(self._funding_rows(query)).encode(), headers
        if path != "/api/v3/klines":
            return ApiFault(404), b"", headers
        refusal, rows = self._klines(query)
        if refusal:
            return ApiFault(400), refusal, headers
        return fault, json.dumps(fault.rows(rows) if fault.rows else rows).encode(), headers

    def _funding_rows(self, query: dict[str, str]) -> list[dict[str, Any]]:
        rates = self.funding.get(query["symbol"], {})
        start_ms = int(query.get("startTime", 0))
        times = [at for at in sorted(rates) if start_ms <= at <= self.now_s * 1_000]
        return [
            {"symbol": query["symbol"], "fundingTime": at, "fundingRate": f"{rates[at]:.8f}", "markPrice": ""}
            for at in times[: int(query.get("limit", 100))]
        ]

    def _fault(self, path: str) -> ApiFault:
        for number, fault in enumerate(self.faults):
            if fault.of in {None, path}:
                return self.faults.pop(number)
        return ApiFault()

    def _klines(self, query: dict[str, str]) -> tuple[bytes | None, Rows]:
        symbol = query.get("symbol", "")
        interval = query.get("interval", "")
        if interval not in TIMEFRAME_S:
            return code(-1120, "Invalid interval."), []
        if not any(series.rpartition("-")[0] == symbol for series in self._candles):
            return code(-1121, "Invalid symbol."), []
        series = f"{symbol}-{interval}"
        bar_s = TIMEFRAME_S[interval]
        limit = min(int(query.get("limit", 500)), MOST_ROWS)
        start_ms, end_ms = (int(query[key]) if key in query else None for key in ("startTime", "endTime"))
        opens = self._opens.get(series, np.empty(0, np.int64))
        last_s = self.now_s if self.has_running else self.now_s - bar_s
        opens = opens[opens <= (last_s if end_ms is None else min(last_s, end_ms / 1_000))]
        if start_ms is not None:
            opens = opens[opens >= start_ms / 1_000][:limit]
        opens = opens[len(opens) - min(limit, len(opens)) :]
        return None, [self._row(series, at, bar_s) for at in opens.tolist()]

    def _row(self, series: str, open_s: int, bar_s: int) -> list[Any]:
        opened, high, low, close, volume = self._candles[series][open_s]
        if open_s + bar_s > self.now_s:  # what has happened so far is something else than the whole
            high = opened * 1.001
            low = opened * 0.999
            close = opened * 1.0005
            volume = volume / 2
        texts = [np.format_float_positional(value, trim="0") for value in (opened, high, low, close, volume)]
        return [open_s * 1_000, *texts, (open_s + bar_s) * 1_000 - 1, "0.0", 0, "0.0", "0.0", "0"]

    def _archive(self, path: str) -> bytes | None:
        """Return a zip of the archive or its checksum, if its month or day is over."""
        stem = path.rpartition("/")[2].removesuffix(".CHECKSUM").removesuffix(".zip")
        symbol, timeframe, *label = stem.split("-")
        series = f"{symbol}-{timeframe}"
        monthly = len(label) == 2
        kind = "monthly" if monthly else "daily"
        expected = f"{self.archive_path}{kind}/klines/{symbol}/{timeframe}/{stem}.zip"
        is_funding = timeframe == "fundingRate" and symbol in self.funding
        if is_funding:
            expected = f"{self.archive_path}monthly/fundingRate/{symbol}/{stem}.zip"
        is_known = series in self._candles or is_funding
        if not is_known or path.removesuffix(".CHECKSUM") != expected:
            return None
        period = pd.Period("-".join(label), "M" if monthly else "D")
        first_s, end_s = (int(each.start_time.timestamp()) for each in (period, period + 1))
        if end_s + self.archive_lag_s > self.now_s:
            return None
        content = self._zips.get(stem) or self._zip(series, stem, first_s, end_s)
        if content is None or not path.endswith(".CHECKSUM"):
            return content
        return f"{hashlib.sha256(content).hexdigest()}  {stem}.zip\n".encode()

    def _zip(self, series: str, stem: str, first_s: int, end_s: int) -> bytes | None:
        if series.endswith("-fundingRate"):
            return self._funding_zip(series.partition("-")[0], stem, first_s, end_s)
        opens = self._opens[series]
        opens = opens[(opens >= first_s) & (opens < end_s)]
        if not len(opens):
            return None
        held = self._candles[series] | self._archived.get(series, {})
        lines = [f"{at * 1_000},{','.join(map(repr, held[at]))},0,0,0,0,0,0\n" for at in opens.tolist()]
        return self._packed(stem, [f"{UM_HEADER}\n", *lines] if self.is_um else lines)

    def _funding_zip(self, symbol: str, stem: str, first_s: int, end_s: int) -> bytes | None:
        rates = {at: rate for at, rate in self.funding[symbol].items() if first_s <= at // 1_000 < end_s}
        lines = [f"{at},8,{rates[at]:.8f}\n" for at in sorted(rates)]
        return self._packed(stem, ["calc_time,funding_interval_hours,last_funding_rate\n", *lines])

    def _packed(self, stem: str, lines: list[str]) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(zipfile.ZipInfo(f"{stem}.csv"), "".join(lines))
        self._zips[stem] = buffer.getvalue()
        return self._zips[stem]


def _listed(symbol: str) -> dict[str, Any]:
    """Say of a symbol in USDT what the exchange says of a market."""
    assets = {"baseAsset": symbol.removesuffix("USDT"), "quoteAsset": "USDT"}
    rights = {"permissions": ["SPOT"], "orderTypes": ["LIMIT"], "isSpotTradingAllowed": True}
    return {"symbol": symbol, "status": "TRADING", "filters": [], **assets, **rights}


def _basic(password: tuple[str, str]) -> str:
    return f"Basic {b64encode(':'.join(password).encode()).decode()}"


class _Handler(QuietHandler):
    server: ExchangeApi
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        fault, content, headers = self.server.answer(self.path, self.headers["Authorization"])
        self.send_response(fault.status)
        for name, value in (headers | fault.headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        content = content[: len(content) - fault.cut_bytes]
        self.close_connection = fault.cut_bytes > 0
        pieces = [content] if not fault.drip_s else [bytes([byte]) for byte in content]
        for piece in pieces if content else []:
            self.wfile.write(piece)
            time.sleep(fault.drip_s)
