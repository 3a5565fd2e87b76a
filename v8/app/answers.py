"""What the API is and answers: plain JSON, errors of four parts that name no file and no secret, OpenAPI."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from v8.app.places import Fleet
from v8.errors import PARTS, DataError, V8Error, shown, with_parameters
from v8.losses.table import Against
from v8.market.series import Series, iso, series_advice
from v8.version import VERSION

if TYPE_CHECKING:  # it comes with TensorFlow
    from v8.live.issuing import Issued
    from v8.live.record import Record

_PATH: Final = re.compile(r"(?<![\w:/])(?!https?://)\S*[/\\]\S*")
"""A word with a slash that does not begin an address."""
_SPAN_KEYS: Final = ("first_open", "last_open", "num_windows")
ROUTES: Final = {
    "/api/series": "the series shown: bar, horizon, columns, what their models were trained on",
    "/api/forecast/{series}": "the forecast after the newest candle: what predict --format json prints",
    "/api/track/{series}": "the live record: forecasts issued before the truth, scored; or none yet",
    "/api/leaderboard": "every model's error beside naive's and the best baseline's, with verdicts",
    "/api/health": "that it works: version, present, place of the models, source of candles",
    "/openapi.json": "this API in the form of OpenAPI 3.1",
}
"""Per route what it answers, for people."""
_ERRORS: Final = {
    "400": "a request that is not understood, or of another host",
    "404": "no such address or series",
    "405": "only GET and HEAD are answered",
    "503": "not to be had now; Retry-After says when to ask again, in seconds",
}


def written(content: Any) -> bytes:
    """Write JSON that is no markup whoever reads it; what is no finite number is refused."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").encode("ascii")


def series_list(fleet: Fleet) -> dict[str, Any]:
    """Return `/api/series`."""
    rows = [
        {
            "series": str(series),
            "bar_s": series.bar_s,
            "horizon_bars": about.horizon_bars,
            "tasks": {task: list(told.columns) for task, told in about.tasks.items()},
            "is_demo_market": about.is_demo_market,
            "trained": trained(fleet, series),
            "forecast": f"/api/forecast/{series}",
            "track": f"/api/track/{series}",
        }
        for series, about in fleet.metadata.items()
    ]
    return {"place": fleet.label, "series": rows}


def trained(fleet: Fleet, series: Series) -> dict[str, Any]:
    """Tell what a model was trained on."""
    about = fleet.metadata[series]
    candles, split = about.candles, asdict(about.split)
    spans = {name: {key: split[name][key] for key in _SPAN_KEYS} for name in ("train", "validation", "test")}
    return {
        "profile": about.profile.name,
        "created_at": about.created_at,
        **{name: getattr(candles, name) for name in ("source", "num_bars", "first_open", "last_open")},
        "candles_digest": candles.digest,
        "spans": spans,
        "model_sha256": fleet.digest(series),
        "revision": fleet.revision,
    }


def forecast(fleet: Fleet, issued: Issued) -> dict[str, Any]:
    """Return `/api/forecast/{series}`: what `predict --format json` prints, and the training."""
    return issued.to_json() | {"trained": trained(fleet, issued.candles.series)}


def leaderboard(fleet: Fleet) -> dict[str, Any]:
    """Return `/api/leaderboard`: each task beside the naive forecast and the best baseline."""
    rows = [
        {
            "series": row.series,
            "tasks": {
                task: {"naive": _against(score.naive), "best_baseline": _against(score.best)}
                for task, score in row.tasks.items()
            },
            "direction_hit_rate_step_1": row.hit_rate,
            "direction_95": None if row.hit_rate_95 is None else list(row.hit_rate_95),
        }
        for row in fleet.rows
    ]
    return {"place": fleet.label, "leaderboard": rows}


def _against(against: Against) -> dict[str, Any]:
    told = ("name", "multiple", "verdict", "corrected_p_value")
    return {name: getattr(against, name) for name in told}


def track(record: Record | None, series: Series) -> dict[str, Any]:
    """Return `/api/track/{series}`: the live record of a series, None without one, and of all."""
    found = [one for one in record.series if one.series == str(series)] if record else []
    return {
        "series": str(series),
        "record": found[0].to_json() if found else None,
        "all_series": {task: live.to_json() for task, live in record.tasks.items()} if record else {},
    }


def health(fleet: Fleet, source: str, now_s: float) -> dict[str, Any]:
    """Return `/api/health`."""
    return {
        "status": "ok",
        "version": VERSION,
        "now": iso(int(now_s)),
        "place": fleet.label,
        "revision": fleet.revision,
        "source": source,
        "num_series": len(fleet.metadata),
    }


def fault(where: str, rule: str, got: str, fix: str) -> dict[str, Any]:
    """Return an error of four parts."""
    parts = zip(PARTS, (where, rule, got, fix), strict=True)
    return {"error": {name: shown(part, 400) for name, part in parts}}


def fault_of(error: V8Error, series: str) -> dict[str, Any]:
    """Return what strangers may read of an error: of candles all but paths, of others that there is one.

    >>> error = DataError(where="a/b.csv", rule="needs rows", got="0", fix="Add some")
    >>> fault_of(error, "BTCUSDT-1h")["error"]["where"]
    '(a file)'
    """
    if isinstance(error, DataError):
        return fault(*(without_paths(with_parameters(getattr(error, part))) for part in PARTS))
    fix = "Ask whoever runs this server; its own output says more"
    return fault(series, "its model must be one that can be used", "one that cannot", fix)


def without_paths(text: str) -> str:
    r"""Write a sentence without names of files and folders.

    >>> without_paths("/home/me/x.csv: needs rows; from https://host/data, not C:\\x or runs/a")
    '(a file) needs rows; from https://host/data, not (a file) or (a file)'
    """
    return _PATH.sub("(a file)", text)


def unknown_series(name: str, known: Iterable[Series]) -> dict[str, Any]:
    """Return the error for a series that is not shown."""
    names = [str(series) for series in known]
    rule = f"is one of the {len(names)} that /api/series lists"
    return fault("series", rule, shown(repr(name), 80), series_advice(name, names, "Choose one of these"))


def description() -> dict[str, Any]:
    """Return the API in the form of OpenAPI 3.1."""

    def answer(about: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"description": about, "content": {"application/json": {"schema": schema}}}

    paths, told = {}, {"$ref": "#/components/schemas/Error"}
    for route, about in ROUTES.items():
        faults = {status: answer(why, told) for status, why in _ERRORS.items()}
        operation: dict[str, Any] = {"summary": about}
        operation["responses"] = {"200": answer(about, {"type": "object"}), **faults}
        if "{series}" in route:
            name = {"name": "series", "in": "path", "required": True, "schema": {"type": "string"}}
            operation["parameters"] = [name | {"example": "BTCUSDT-15m"}]
        paths[route] = {"get": operation}
    parts = {name: {"type": "string"} for name in PARTS}
    inner = {"type": "object", "properties": parts, "required": list(parts)}
    error = {"type": "object", "properties": {"error": inner}, "required": ["error"]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "v8: forecasts of the present", "version": VERSION},
        "paths": paths,
        "components": {"schemas": {"Error": error}},
    }
