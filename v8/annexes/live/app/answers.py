"""The answers of the API: plain JSON, and errors in four parts that name no file and no secret.

`api.yaml` describes what each route answers, field by field.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any, Final

import numpy as np

from v8.annexes.live.app.places import ModelSnapshot
from v8.annexes.live.ledger.record import LiveRecord
from v8.api.issuing import IssuedForecast
from v8.base.errors import PARTS, DataError, V8Error, shown, with_parameters
from v8.base.storage import packaged_yaml
from v8.base.version import VERSION
from v8.data.market.series import Series, iso, series_advice
from v8.model.evaluation.significance import BaselineComparison
from v8.profile.columns import OPEN_TIME

_PATH: Final = re.compile(r"(?<![\w:/])(?!https?://|windows/s\b)\S*[/\\]\S*")
"""A word with a slash that does not begin an address, and is not the unit of speed."""
_SPAN_KEYS: Final = ("first_open", "last_open", "num_windows")
MAX_ROWS: Final = 999_999  # largest value of `?limit=`
_LIMIT: Final = re.compile("[1-9][0-9]{0,5}")


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
    series_record = None
    all_series = {}
    if record:
        for live_series in record.series:
            if live_series.series == str(series):
                series_record = live_series.to_json()
        all_series = {task: live.to_json() for task, live in record.tasks.items()}
    return {"series": str(series), "record": series_record, "all_series": all_series}


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


def error_json(location: str, rule: str, got: str, fix: str) -> dict[str, Any]:
    """Return an error of four parts."""
    parts = zip(PARTS, (location, rule, got, fix), strict=True)
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
                location=without_paths(error.where),
                rule=without_paths(error.rule),
                got=without_paths(error.got),
                fix=without_paths(error.fix),
            )
        case V8Error():
            fix = "Ask whoever runs this server; its own output says more"
            return error_json(series, "its model must be one that can be used", "one that cannot", fix)
    return error_json("the server", "must not fail", "a mistake in v8", "Report it to the operator")


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


def limit_of(text: str | None) -> int:
    """Return the largest number of rows that a request asks for, `MAX_ROWS` when None."""
    if text is None:
        return MAX_ROWS
    if not _LIMIT.fullmatch(text):
        rule = f"is a whole number from 1 to {MAX_ROWS:,}"
        got = shown(repr(text), 80)
        raise RequestError(where="limit", rule=rule, got=got, fix="Write for example ?limit=60")
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
