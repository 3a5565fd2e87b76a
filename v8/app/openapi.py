"""What the API is, for programs: one sentence a route, and the same as OpenAPI."""

from __future__ import annotations

from typing import Any, Final

from v8.version import VERSION

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


def description() -> dict[str, Any]:
    """Return the API in the form of OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "v8: forecasts of the present", "version": VERSION},
        "paths": {route: {"get": _operation(route, about)} for route, about in ROUTES.items()},
        "components": {"schemas": {"Error": _error_schema()}},
    }


def _operation(route: str, about: str) -> dict[str, Any]:
    faults = {status: _answer(why, {"$ref": "#/components/schemas/Error"}) for status, why in _ERRORS.items()}
    operation = {"summary": about, "responses": {"200": _answer(about, {"type": "object"}), **faults}}
    if "{series}" not in route:
        return operation
    name = {"name": "series", "in": "path", "required": True, "schema": {"type": "string"}}
    return operation | {"parameters": [name | {"example": "BTCUSDT-15m"}]}


def _answer(about: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": schema}}}


def _error_schema() -> dict[str, Any]:
    parts = {name: {"type": "string"} for name in ("where", "rule", "got", "fix")}
    inner = {"type": "object", "properties": parts, "required": list(parts)}
    return {"type": "object", "properties": {"error": inner}, "required": ["error"]}
