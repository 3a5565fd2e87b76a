"""The answers of the API: plain JSON, and errors in four parts that name no file and no secret.

`api.yaml` describes what each route answers, field by field.

A forecast needs about a hundred candles; a chart that can be moved shows `NUM_BARS` around it. They are
requested from the source once a candle, when somebody looks at the series. Earlier forecasts are those of the
ledger that were issued in time; of those that overlap, every horizon the newest one is shown.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.annexes.live.app.service import LedgerReader, ModelSnapshot, RecordError
from v8.annexes.live.entries import Entry
from v8.annexes.live.record import LiveRecord
from v8.api.issuing import IssuedForecast
from v8.base.errors import PARTS, DataError, V8Error, listed, shown, with_parameters
from v8.base.registry import advice
from v8.base.storage import packaged_yaml
from v8.base.version import VERSION
from v8.data.features import compute_columns
from v8.data.market.candles import Candles
from v8.data.market.series import Series, iso, series_advice
from v8.data.market.sources import CandleSource
from v8.model.baselines.paths import range_json
from v8.model.evaluation.significance import BaselineComparison
from v8.profile.columns import (
    BB_LOWER,
    BB_UPPER,
    CLOSE,
    MEDIAN,
    OHLC,
    OPEN_TIME,
    TASK_OHLC,
    VOLATILITY,
    interval_names,
    intervals,
    quantile_column,
)

_PATH: Final = re.compile(r"(?<![\w:/])(?!https?://|windows/s\b)\S*[/\\]\S*")
"""A word with a slash that does not begin an address, and is not the unit of speed."""
_SPAN_KEYS: Final = ("first_open", "last_open", "num_windows")
MAX_ROWS: Final = 999_999  # largest value of `?limit=`
_LIMIT: Final = re.compile("[1-9][0-9]{0,5}")
NUM_BARS: Final = 500  # candles of a chart: five days of 15m bars, three weeks of hours
_COMPUTED: Final = (BB_UPPER, BB_LOWER, VOLATILITY)


class RequestError(V8Error):
    """A request that is not valid; `status` is the status of HTTP."""

    status = 400


def encode_json(content: Any) -> bytes:
    """Write JSON that no browser takes for markup; numbers that are not finite are refused."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").encode("ascii")


def series_list(snapshot: ModelSnapshot) -> dict[str, Any]:
    """Return `/api/series`."""
    rows = []
    for series, metadata in snapshot.metadata.items():
        tasks = {task: list(recorded.columns) for task, recorded in metadata.tasks.items()}
        rows.append(
            {
                "series": str(series),
                "bar_s": series.bar_s,
                "horizon_bars": metadata.horizon_bars,
                "tasks": tasks,
                "is_demo_market": metadata.is_demo_market,
                "trained": trained(snapshot, series),
                "forecast": f"/api/forecast/{series}",
                "track": f"/api/track/{series}",
                "candles": f"/api/candles/{series}",
            }
        )
    return {"place": snapshot.label, "series": rows}


def trained(snapshot: ModelSnapshot, series: Series) -> dict[str, Any]:
    """Return what a model was trained on."""
    metadata = snapshot.metadata[series]
    candles = metadata.candles
    split = asdict(metadata.split)
    spans = {name: {key: split[name][key] for key in _SPAN_KEYS} for name in ("train", "validation", "test")}
    return {
        "profile": metadata.profile.name,
        "created_at": metadata.created_at,
        "source": candles.source,
        "num_bars": candles.num_bars,
        "first_open": candles.first_open,
        "last_open": candles.last_open,
        "candles_digest": candles.digest,
        "spans": spans,
        "model_sha256": metadata.model_sha256,
        "revision": snapshot.revision,
    }


def forecast(snapshot: ModelSnapshot, issued: IssuedForecast) -> dict[str, Any]:
    """Return `/api/forecast/{series}`: what `predict --format json` prints, and the training."""
    return issued.to_json() | {"trained": trained(snapshot, issued.candles.series)}


def candles(issued: IssuedForecast, max_rows: int) -> dict[str, Any]:
    """Return `/api/candles/{series}`: the newest candles that a forecast was made from."""
    frame = issued.candles.to_frame().tail(max_rows).replace({np.nan: None})  # a volume may be unknown
    open_times = [iso(open_time_s) for open_time_s in issued.candles.open_time_s[-max_rows:]]
    frame.insert(0, OPEN_TIME, open_times)
    return {
        "series": str(issued.candles.series),
        "source": issued.candles.source,
        "closed_at": iso(issued.closed_s),
        "candles": frame.to_dict("records"),
    }


def leaderboard(snapshot: ModelSnapshot) -> dict[str, Any]:
    """Return `/api/leaderboard`: each task compared with the naive forecast and the best baseline."""
    rows = []
    for row in snapshot.rows:
        tasks = {
            task: {"naive": _comparison(score.naive), "best_baseline": _comparison(score.best)}
            for task, score in row.tasks.items()
        }
        rows.append(
            {
                "series": row.series,
                "tasks": tasks,
                "direction_hit_rate_step_1": row.hit_rate,
                "direction_95": None if row.hit_rate_95 is None else list(row.hit_rate_95),
            }
        )
    return {"place": snapshot.label, "leaderboard": rows}


def _comparison(against: BaselineComparison) -> dict[str, Any]:
    return {
        "name": against.name,
        "relative_mae": against.relative_mae,
        "verdict": against.verdict,
        "corrected_p_value": against.corrected_p_value,
    }


def track(record: LiveRecord | None, series: Series) -> dict[str, Any]:
    """Return `/api/track/{series}`: the live record of a series, None without one, and of all."""
    if record is None:
        return {"series": str(series), "record": None, "all_series": {}}
    by_name = {live_series.series: live_series.to_json() for live_series in record.series}
    all_series = {task: live.to_json() for task, live in record.tasks.items()}
    return {"series": str(series), "record": by_name.get(str(series)), "all_series": all_series}


def health(snapshot: ModelSnapshot, source: str, now_s: float) -> dict[str, Any]:
    """Return `/api/health`."""
    return {
        "status": "ok",
        "version": VERSION,
        "now": iso(int(now_s)),
        "place": snapshot.label,
        "revision": snapshot.revision,
        "source": source,
        "num_series": len(snapshot.metadata),
    }


def error_json(where: str, rule: str, got: str, fix: str) -> dict[str, Any]:
    """Return an error of four parts."""
    parts = zip(PARTS, (where, rule, got, fix), strict=True)
    return {"error": {name: shown(part, 400) for name, part in parts}}


def public_error_json(error: Exception, series: str) -> dict[str, Any]:
    r"""Return what anybody may read of an error: of candles all but paths, of other errors no detail.

    >>> rule = r"needs rows; from https://host/data, not C:\\x or runs/a"
    >>> error = DataError(where="/home/me/x.csv", rule=rule, got="0", fix="Add some")
    >>> parts = public_error_json(error, "BTCUSDT-1h")["error"]
    >>> parts["where"], parts["rule"]
    ('(a file)', 'needs rows; from https://host/data, not (a file) or (a file)')
    """
    match error:
        case RequestError():
            return error_json(error.where, error.rule, error.got, error.fix)
        case DataError():
            return error_json(
                where=without_paths(error.where),
                rule=without_paths(error.rule),
                got=without_paths(error.got),
                fix=without_paths(error.fix),
            )
        case RecordError():
            return error_json(
                where="the live record",
                rule="its ledger must be one that can be read",
                got="one that cannot",
                fix="Ask whoever runs this server; its own output says more",
            )
        case V8Error():
            return error_json(
                where=series,
                rule="its model must be one that can be used",
                got="one that cannot",
                fix="Ask whoever runs this server; its own output says more",
            )
    return error_json(
        where="the server", rule="must not fail", got="a mistake in v8", fix="Report it to the operator"
    )


def without_paths(text: str) -> str:
    """Return a text without paths of this machine, for anybody to read.

    >>> without_paths("error in runs/a/windows/s"), without_paths("epoch 1 of 9, 8,657 windows/s")
    ('error in (a file)', 'epoch 1 of 9, 8,657 windows/s')
    """
    return _PATH.sub("(a file)", with_parameters(text))


def unknown_series(name: str, available: Iterable[Series]) -> RequestError:
    """Return the error for a series that is not shown."""
    names = [str(series) for series in available]
    error = RequestError(
        where="series",
        rule=f"is one of the {len(names)} that /api/series lists",
        got=shown(repr(name), 80),
        fix=series_advice(name, names, "Choose one of these"),
    )
    error.status = 404
    return error


def require_query(items: Iterable[tuple[str, str]], names: Collection[str]) -> None:
    """Require that a query has each of some parameters at most once, and no others but a token.

    Args:
        items: Names and values, in order.
        names: What the route reads.

    Raises:
        RequestError: If it has others, or one twice.
    """
    counts = Counter(name for name, _ in items if name != "token")
    for name, num_times in counts.items():
        if name not in names:
            raise RequestError(
                where="the query of the address",
                rule=f"has no parameters but {listed(sorted(names))}" if names else "has no parameters",
                got=shown(repr(name), 80),
                fix=advice(name, names, "Leave it out"),
            )
        if num_times > 1:
            raise RequestError(where=name, rule="is given once", got=f"{num_times:,} of it", fix="Leave one")


def limit_of(text: str | None) -> int:
    """Return the largest number of rows that a request asks for, `MAX_ROWS` when None."""
    if text is None:
        return MAX_ROWS
    if not _LIMIT.fullmatch(text):
        raise RequestError(
            where="limit",
            rule=f"is a whole number from 1 to {MAX_ROWS:,}",
            got=shown(repr(text), 80),
            fix="Write for example ?limit=60",
        )
    return int(text)


def metrics(
    snapshot: ModelSnapshot,
    newest: Mapping[Series, IssuedForecast | BaseException],
    now_s: float,
    requests: Mapping[tuple[str, int], int],
    errors: Mapping[str, int],
) -> str:
    """Return `/metrics`, in https://prometheus.io/docs/instrumenting/exposition_formats/.

    Args:
        snapshot: The models.
        newest: The newest forecast of each series, or the error.
        now_s: The present, seconds since the epoch, UTC.
        requests: Numbers of answered requests, by route and status.
        errors: Numbers of answers with an error, by its kind.
    """
    ages: list[tuple[dict[str, object], float]] = []
    delays: list[tuple[dict[str, object], float]] = []
    failures: list[tuple[dict[str, object], float]] = []
    for series, issued in newest.items():
        if isinstance(issued, BaseException):
            failures.append(({"series": series, "kind": type(issued).__name__}, 1))
            continue
        ages.append(({"series": series}, now_s - issued.issued_at_s))
        if issued.is_dated:
            next_close_s = issued.closed_s + series.bar_s
            delays.append(({"series": series}, max(0, now_s - next_close_s)))
    samples: dict[str, list[tuple[dict[str, object], float]]] = {
        "v8_info": [({"version": VERSION, "place": snapshot.label}, 1)],
        "v8_series": [({}, len(snapshot.metadata))],
        "v8_forecast_age_seconds": ages,
        "v8_forecast_late_seconds": delays,
        "v8_forecast_failed": failures,
        "v8_requests_total": [
            ({"route": route, "status": status}, count) for (route, status), count in requests.items()
        ],
        "v8_errors_total": [({"kind": kind}, count) for kind, count in errors.items()],
    }
    lines = []
    for name, help_text in description()["paths"]["/metrics"]["get"]["x-metrics"].items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{labels_of(labels)} {value}" for labels, value in samples[name]]
    return "\n".join([*lines, ""])


def labels_of(labels: Mapping[str, object]) -> str:
    r"""Write the labels of a metric.

    >>> print(labels_of({"place": 'a "run"\nin C:\\'}))
    {place="a \"run\"\nin C:\\"}
    """
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    pairs = (f'{name}="{str(value).translate(escapes)}"' for name, value in labels.items())
    return f"{{{','.join(pairs)}}}"


@cache
def description() -> dict[str, Any]:
    """Return the description of the API in the form of OpenAPI 3.1."""
    content: dict[str, Any] = packaged_yaml("v8.annexes.live.app", "api.yaml")
    content["info"]["version"] = VERSION
    return content


def chart(
    issued: IssuedForecast, source: CandleSource | None = None, ledger: LedgerReader | None = None
) -> dict[str, Any]:
    """Return `/api/chart/{series}`: the candles and the earlier forecasts around a forecast.

    Args:
        issued: The forecast.
        source: Where candles come from; None shows those that the forecast was made from.
        ledger: Has earlier forecasts; None for none.
    """
    candles = _candles_around(issued, source) if source else issued.candles
    columns = {name: candles.column(name) for name in OHLC}
    for name, (values,) in compute_columns(candles, list(_COMPUTED)).items():
        columns[name] = values.astype(np.float64)
    entries: list[Entry] = []
    if ledger:
        with suppress(RecordError):  # whoever reads the record is told
            entries = ledger.forecasts_since(str(candles.series), int(candles.open_time_s[0]))
    levels = issued.forecaster.quantiles
    names = [name for name in (CLOSE, VOLATILITY) if name in issued.forecast]
    shaded = []
    for interval_name, (low, high) in zip(interval_names(levels), intervals(levels), strict=True):
        ends = {name: [quantile_column(name, low), quantile_column(name, high)] for name in names}
        shaded.append({"name": interval_name, "columns": ends})
    return {
        "series": str(candles.series),
        "bar_s": candles.series.bar_s,
        "closed_at": iso(issued.closed_s),
        "open_times": [iso(open_time_s) for open_time_s in candles.open_time_s.tolist()],
        "columns": {name: _finite(values) for name, values in columns.items()},
        "forecast_open_times": issued.open_times(),
        "forecast": {str(name): _finite(values.to_numpy()) for name, values in issued.forecast.items()},
        "intervals": shaded,
        **range_json(issued.price_range),
        "past": [past_forecast(entry) for entry in newest_apart(entries, issued.closed_s)],
    }


def _candles_around(issued: IssuedForecast, source: CandleSource) -> Candles:
    """Return the newest candles up to those of the forecast; if they are not available, those."""
    known = issued.candles
    with suppress(DataError):
        last_open_s = int(known.open_time_s[-1])
        earlier = source.candles(known.series, NUM_BARS, last_open_s)
        if len(earlier) > len(known) and earlier.open_time_s[-1] == last_open_s:
            return earlier
    return known


def newest_apart(entries: Iterable[Entry], closed_s: int) -> list[Entry]:
    """Return forecasts in time of which all bars have closed, a horizon apart, the oldest first.

    Args:
        entries: Forecasts of one series, ascending.
        closed_s: When the newest candle closed, seconds since the epoch, UTC.
    """
    chosen: list[Entry] = []
    until_s = closed_s
    for entry in sorted(entries, key=lambda entry: entry.issued_for_s, reverse=True):
        has_closed = entry.due_s <= until_s
        if not entry.is_late and has_closed and CLOSE in entry.issuer.tasks.get(TASK_OHLC, ()):
            chosen.append(entry)
            until_s = entry.issued_for_s
    return chosen[::-1]


def past_forecast(entry: Entry) -> dict[str, Any]:
    """Return the closes that a forecast of the ledger expected, and the ends of their widest interval."""
    issuer = entry.issuer
    ohlc_KHC = issuer.split(entry.values)[TASK_OHLC]
    close_KH = ohlc_KHC[..., issuer.tasks[TASK_OHLC].index(CLOSE)].astype(np.float64)
    content: dict[str, Any] = {"issued_for": iso(entry.issued_for_s), "close": close_KH[0].tolist()}
    positions = issuer.levels
    ends = intervals(sorted([*positions, MEDIAN])) if positions else ()
    if ends:
        low_level, high_level = ends[0]
        content["low"] = close_KH[positions[low_level]].tolist()
        content["high"] = close_KH[positions[high_level]].tolist()
    return content


def _finite(values: NDArray[Any]) -> list[float | None]:
    """Return nine digits of each number, more than a page writes; None where there is none."""
    return [float(f"{value:.9g}") if np.isfinite(value) else None for value in values.tolist()]
