"""What the API answers: plain JSON, errors of four parts that name no file and no secret.

What each route answers, field by field, stands in `api.yaml`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any, Final

import numpy as np
import yaml

from v8.app.places import Fleet
from v8.columns import OPEN_TIME
from v8.errors import PARTS, DataError, V8Error, shown, with_parameters
from v8.evaluation.significance import BaselineComparison
from v8.forecasts.issuing import Issued
from v8.ledger.record import Record
from v8.market.series import Series, iso, series_advice
from v8.storage import packaged
from v8.version import VERSION

_PATH: Final = re.compile(r"(?<![\w:/])(?!https?://)\S*[/\\]\S*")
"""A word with a slash that does not begin an address."""
_SPAN_KEYS: Final = ("first_open", "last_open", "num_windows")
MOST_ROWS: Final = 999_999  # more cannot be asked for at once
_LIMIT: Final = re.compile("[1-9][0-9]{0,5}")


class RequestError(V8Error):
    """A request that cannot be meant; `status` is how HTTP says so."""

    status = 400


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
            **{name: f"/api/{name}/{series}" for name in ("forecast", "track", "candles")},
        }
        for series, about in fleet.metadata.items()
    ]
    return {"place": fleet.label, "series": rows}


def trained(fleet: Fleet, series: Series) -> dict[str, Any]:
    """Tell what a model was trained on."""
    about = fleet.metadata[series]
    candles = about.candles
    split = asdict(about.split)
    spans = {name: {key: split[name][key] for key in _SPAN_KEYS} for name in ("train", "validation", "test")}
    return {
        "profile": about.profile.name,
        "created_at": about.created_at,
        **{name: getattr(candles, name) for name in ("source", "num_bars", "first_open", "last_open")},
        "candles_digest": candles.digest,
        "spans": spans,
        "model_sha256": about.model_sha256,
        "revision": fleet.revision,
    }


def forecast(fleet: Fleet, issued: Issued) -> dict[str, Any]:
    """Return `/api/forecast/{series}`: what `predict --format json` prints, and the training."""
    return issued.to_json() | {"trained": trained(fleet, issued.candles.series)}


def candles(issued: Issued, most: int) -> dict[str, Any]:
    """Return `/api/candles/{series}`: of the candles that a forecast knew the newest, at most so many."""
    known = issued.candles.to_frame().tail(most).replace({np.nan: None})  # a volume that is not told
    known.insert(0, OPEN_TIME, [*map(iso, issued.candles.open_time_s[-most:])])
    return {
        "series": str(issued.candles.series),
        "source": issued.candles.source,
        "closed_at": iso(issued.closed_s),
        "candles": known.to_dict("records"),
    }


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


def _against(against: BaselineComparison) -> dict[str, Any]:
    return {
        "name": against.name,
        "multiple": against.relative_mae,
        "verdict": against.verdict,
        "corrected_p_value": against.corrected_p_value,
    }


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


def fault_of(error: Exception, series: str) -> dict[str, Any]:
    r"""Return what strangers may read of an error: of candles all but paths, of others that there is one.

    >>> rule = r"needs rows; from https://host/data, not C:\\x or runs/a"
    >>> error = DataError(where="/home/me/x.csv", rule=rule, got="0", fix="Add some")
    >>> told = fault_of(error, "BTCUSDT-1h")["error"]
    >>> told["where"], told["rule"]
    ('(a file)', 'needs rows; from https://host/data, not (a file) or (a file)')
    """
    match error:
        case RequestError():
            return fault(error.where, error.rule, error.got, error.fix)
        case DataError():
            return fault(*(_PATH.sub("(a file)", with_parameters(getattr(error, part))) for part in PARTS))
        case V8Error():
            fix = "Ask whoever runs this server; its own output says more"
            return fault(series, "its model must be one that can be used", "one that cannot", fix)
    return fault("the server", "must not fail", "a mistake in v8", "Tell whoever runs it")


def unknown_series(name: str, known: Iterable[Series]) -> RequestError:
    """Return the error for a series that is not shown."""
    names = [str(series) for series in known]
    rule = f"is one of the {len(names)} that /api/series lists"
    fix = "Choose one of these"
    got = shown(repr(name), 80)
    fix = series_advice(name, names, fix)
    error = RequestError(where="series", rule=rule, got=got, fix=fix)
    error.status = 404
    return error


def limit_of(text: str | None) -> int:
    """Return how many rows a request asks for at most, `MOST_ROWS` when None."""
    if text is not None and not _LIMIT.fullmatch(text):
        rule = f"is a whole number from 1 to {MOST_ROWS:,}"
        got = shown(repr(text), 80)
        raise RequestError(where="limit", rule=rule, got=got, fix="Write for example ?limit=60")
    return MOST_ROWS if text is None else int(text)


def metrics(
    fleet: Fleet,
    newest: Mapping[Series, Issued | BaseException],
    now_s: float,
    requests: Mapping[tuple[str, int], int],
    errors: Mapping[str, int],
) -> str:
    """Return `/metrics`, in https://prometheus.io/docs/instrumenting/exposition_formats/.

    Args:
        newest: The forecast of each series that was made last, or why it could not be.
        requests: How many were answered, by route and status.
        errors: How many answers had to tell of an error, by its kind.
    """
    made = [(series, one) for series, one in newest.items() if not isinstance(one, BaseException)]
    failed = {series: type(one).__name__ for series, one in newest.items() if isinstance(one, BaseException)}
    next_s = {series: one.closed_s + series.bar_s for series, one in made if one.is_dated}
    samples: dict[str, list[tuple[dict[str, object], float]]] = {
        "v8_info": [({"version": VERSION, "place": fleet.label}, 1)],
        "v8_series": [({}, len(fleet.metadata))],
        "v8_forecast_age_seconds": [({"series": series}, now_s - one.issued_at_s) for series, one in made],
        "v8_forecast_late_seconds": [({"series": name}, max(0, now_s - at)) for name, at in next_s.items()],
        "v8_forecast_failed": [({"series": name, "kind": kind}, 1) for name, kind in failed.items()],
        "v8_requests_total": [({"route": name, "status": is_}, n) for (name, is_), n in requests.items()],
        "v8_errors_total": [({"kind": kind}, number) for kind, number in errors.items()],
    }
    lines = []
    for name, about in description()["paths"]["/metrics"]["get"]["x-metrics"].items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{labels_of(labels)} {number}" for labels, number in samples[name]]
    return "\n".join([*lines, ""])


def labels_of(labels: Mapping[str, object]) -> str:
    r"""Write the labels of a metric.

    >>> print(labels_of({"place": 'a "run"\nin C:\\'}))
    {place="a \"run\"\nin C:\\"}
    """
    signs = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    pairs = (f'{name}="{str(value).translate(signs)}"' for name, value in labels.items())
    return f"{{{','.join(pairs)}}}"


@cache
def description() -> dict[str, Any]:
    """Return the API in the form of OpenAPI 3.1."""
    told: dict[str, Any] = yaml.safe_load(packaged("v8.app", "api.yaml"))
    told["info"]["version"] = VERSION
    return told
