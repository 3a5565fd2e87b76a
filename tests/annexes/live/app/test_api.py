"""What is answered is what the description says, and its page; newest candles; what Prometheus reads."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from ledger_entries import ISSUER, made_entry, made_score
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from v8.annexes.live.app.answers import candles, description, metrics
from v8.annexes.live.app.service import LedgerReader
from v8.annexes.live.entries import quantile_forecaster
from v8.annexes.live.ledger import Ledger
from v8.data.market.series import Series
from v8.data.market.sources import open_source

BTC = "BTCUSDT-15m"
ETH = "ETHUSDT-1h"
SAMPLE = re.compile(
    r'(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?P<labels>([a-z_]+="([^"\\\n]|\\["\\n])*"(,|(?=\})))*)\})? '
    r"(?P<value>[-+]?[0-9.]+(e[-+]?[0-9]+)?)"
)
"""A line of https://prometheus.io/docs/instrumenting/exposition_formats/ with a number."""

LOST = """[...document.querySelectorAll('main a')].map((link) => link.hash)
  .filter((hash) => hash && !document.querySelector(hash))"""


def strict() -> dict[str, Any]:
    """Return the description with nothing allowed that it does not name."""

    def closed(node: Any) -> Any:
        if isinstance(node, list):
            return [closed(each) for each in node]
        if not isinstance(node, dict):
            return node
        has_fields = node.get("type") == "object" and "properties" in node
        return {name: closed(each) for name, each in node.items()} | (
            {"additionalProperties": False} if has_fields and "additionalProperties" not in node else {}
        )

    return closed(copy.deepcopy(description()))


def validator(told: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator(
        {"components": told["components"], **schema}, format_checker=Draft202012Validator.FORMAT_CHECKER
    )


def require_described(route: str, status: int, content: Any) -> None:
    """Hold a JSON answer to the description: every field named, of its kind, none beside them."""
    told = strict()
    answers = told["paths"][route]["get"]["responses"]
    schema = answers[str(status)]["content"]["application/json"]["schema"]
    faults = [
        f"{'.'.join(map(str, one.path))}: {one.message}"
        for one in validator(told, schema).iter_errors(content)
    ]
    assert faults == [], route


def lines_of(page: Any) -> list[str]:
    response = page.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return response.text.splitlines()


@pytest.mark.tf
def test_every_answer_is_as_it_is_described(served: Any) -> None:
    described = description()["paths"].keys() - {"/metrics", "/openapi.json", "/api/stream"}
    assert len(described) == 7
    for route in described:
        for series in (BTC, ETH):
            require_described(route, 200, served.get(route.replace("{series}", series)).json())
    for route in ("/api/forecast/{series}", "/api/candles/{series}", "/api/track/{series}"):
        require_described(route, 404, served.get(route.replace("{series}", "NOPE")).json())
    require_described("/api/series", 405, served.get("/api/series", method="PUT").json())
    require_described("/api/series", 400, served.get("/api/series", Host="evil.example").json())


@pytest.mark.tf
def test_a_live_record_is_as_it_is_described_with_and_without_quantiles(
    serve: Callable[..., AbstractContextManager[Any]], tmp_path: Path
) -> None:
    file = tmp_path / "ledger.sqlite"
    place = "someone/fleet"
    issuers = {
        BTC: replace(ISSUER, place=place),
        ETH: replace(
            ISSUER,
            place=place,
            series=ETH,
            bar_s=3_600,
            forecasters=(*ISSUER.forecasters, quantile_forecaster(0.25), quantile_forecaster(0.75)),
        ),
    }
    with Ledger.open_to_write(file) as ledger:
        for name, issuer in issuers.items():
            for number in range(3):
                entry = made_entry(number, issuer)
                assert ledger.add(entry)
                if number < 2:
                    key = next(iter(ledger.pending(place, name, entry.issued_for_s)))
                    losses = [[1.0, 4.0]] * len(issuer.forecasters)
                    ledger.add_score(key, made_score(losses, entry))
    with serve(record=LedgerReader(file, place)) as page:
        for name in issuers:
            content = page.get(f"/api/track/{name}").json()
            require_described("/api/track/{series}", 200, content)
            assert content["record"]["tasks"]
            assert content["record"]["generations"][0]["tasks"]
            assert ("coverage" in content["record"]["tasks"]["ohlc"]) == (name == ETH)


@pytest.mark.tf
def test_the_description_is_whole_and_each_field_of_it_is_explained() -> None:
    document = description()
    json.dumps(document, allow_nan=False)
    named = set()

    def visit(node: Any) -> Iterator[Any]:
        yield node
        for each in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            yield from visit(each)

    for node in visit(document):
        if isinstance(node, dict) and isinstance(node.get("$ref"), str):
            named.add(node["$ref"].removeprefix("#/components/schemas/"))
    schemas = document["components"]["schemas"]
    assert named == set(schemas)
    for name, schema in schemas.items():
        Draft202012Validator.check_schema(schema)
        assert schema["description"], name
        assert set(schema["required"]) <= set(schema["properties"]), name
        for field, about in schema["properties"].items():
            assert about.get("description") or about["oneOf"][-1]["description"], (name, field)
    operations = [route["get"]["operationId"] for route in document["paths"].values()]
    assert len(set(operations)) == len(operations)


@pytest.mark.tf
def test_candles_are_those_that_the_forecast_knew_the_newest_last(served: Any) -> None:
    forecast, told = (served.get(f"/api/{what}/{BTC}").json() for what in ("forecast", "candles"))
    about = forecast["candles"]
    assert (told["source"], told["closed_at"]) == (about["source"], about["closed_at"])
    assert len(told["candles"]) == about["num_bars"]
    assert (told["candles"][0]["open_time"], told["candles"][-1]["open_time"]) == (
        about["first_open"],
        about["last_open"],
    )
    history = open_source("demo").candles(Series.parse(BTC), about["num_bars"], end_s=1_735_668_000 - 900)
    rows = [[row[name] for name in ("open", "high", "low", "close", "volume")] for row in told["candles"]]
    assert np.array(rows) == pytest.approx(history.values)
    few = served.get(f"/api/candles/{BTC}?limit=2")
    assert few.json()["candles"] == told["candles"][-2:]
    assert few.headers["cache-control"].startswith("private, max-age=")
    assert served.get(f"/api/candles/{BTC}?limit=999999").json() == told


@pytest.mark.tf
@pytest.mark.parametrize(
    "limit", ["0", "-1", "1.5", "1000000", "9" * 1_500, "", "%00", "x", "%F0%9F%98%80", "٣"]
)
def test_a_limit_that_is_no_number_of_rows_is_one_calm_sentence(served: Any, limit: str) -> None:
    response = served.get(f"/api/candles/{BTC}?limit={limit.encode('ascii', 'xmlcharrefreplace').decode()}")
    require_described("/api/candles/{series}", 400, response.json())
    assert response.status == 400 and " 1 to 999,999" in response.json()["error"]["rule"]
    assert len(response.body) < 500


@pytest.mark.tf
@pytest.mark.parametrize(
    ("address", "where", "got"),
    [
        ("candles/{}?limt=2", "the query of the address", "'limt'"),
        ("candles/{}?limit=2&limit=3", "limit", "2 of it"),
        ("candles/{}?limit=2&limit=abc", "limit", "2 of it"),
        ("forecast/{}?limit=2", "the query of the address", "'limit'"),
        ("series?%3Cscript%3E", "the query of the address", "'<script>'"),
    ],
)
def test_a_parameter_that_would_be_ignored_is_refused(
    served: Any, address: str, where: str, got: str
) -> None:
    response = served.get(f"/api/{address.format(BTC)}")
    require_described("/api/candles/{series}", 400, response.json())
    assert response.status == 400
    error = response.json()["error"]
    assert (error["where"], error["got"]) == (where, got)


def test_volumes_that_a_source_does_not_tell_are_null() -> None:
    history = open_source("demo").candles(Series.parse(BTC), 5)
    mute = replace(history, values=np.where(np.arange(5) == 4, np.nan, history.values))
    told = candles(SimpleNamespace(candles=mute, closed_s=1_735_668_000), 2)
    require_described("/api/candles/{series}", 200, json.loads(json.dumps(told, allow_nan=False)))
    assert [row["volume"] for row in told["candles"]] == [None, None]


@pytest.mark.tf
def test_metrics_tell_age_lateness_requests_and_errors(
    serve: Callable[..., AbstractContextManager[Any]],
) -> None:
    with serve() as page:
        page.exchange.is_blocked = True
        for path in (
            f"/api/forecast/{BTC}",
            f"/api/forecast/{ETH}",
            "/nowhere",
            "/api/track/NOPE",
            "/api/track/NO",
        ):
            page.get(path)
        page.get("/api/series", method="PUT")
        lines = lines_of(page)
        for line in lines:
            assert line.startswith(("# HELP v8_", "# TYPE v8_")) or SAMPLE.fullmatch(line), line
        names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
        assert names == list(description()["paths"]["/metrics"]["get"]["x-metrics"])
        assert 'v8_requests_total{route="other",status="404"} 1' in lines
        assert 'v8_requests_total{route="/api/track/{series}",status="404"} 2' in lines
        assert 'v8_requests_total{route="other",status="405"} 1' in lines
        assert 'v8_errors_total{kind="DataError"} 1' in lines
        assert f'v8_forecast_failed{{series="{ETH}",kind="DataError"}} 1' in lines
        age = next(line for line in lines if line.startswith(f'v8_forecast_age_seconds{{series="{BTC}"}}'))
        assert 0 <= float(age.split()[-1]) < 120
        assert f'v8_forecast_late_seconds{{series="{BTC}"}} 0' in lines


def test_a_forecast_is_late_from_the_close_that_it_does_not_know() -> None:
    series = Series.parse(BTC)
    fleet: Any = SimpleNamespace(label='run "a"\\b', metadata={series: None})
    made: Any = SimpleNamespace(issued_at_s=1_000, closed_s=900, is_dated=True)

    def told(now_s: float) -> list[str]:
        return metrics(fleet, {series: made}, now_s, {}, {}).splitlines()

    assert f'v8_forecast_late_seconds{{series="{BTC}"}} 0' in told(1_799.0)
    late = told(1_805.5)
    assert f'v8_forecast_late_seconds{{series="{BTC}"}} 5.5' in late
    assert f'v8_forecast_age_seconds{{series="{BTC}"}} 805.5' in late
    assert all(line[0] == "#" or SAMPLE.fullmatch(line) for line in late)
    made.is_dated = False  # the demo market has no present
    assert not any(line.startswith("v8_forecast_late_seconds{") for line in told(1_805.5))


@pytest.mark.process
@pytest.mark.tf
def test_the_page_of_the_api_explains_every_field(served: Any, browser: Any) -> None:
    for width, is_dark in ((1_280, False), (390, True)):
        browser.look(width, is_dark=is_dark)
        browser.open(f"{served.url}/api#LiveTask", "document.documentElement.dataset.shown")
        text = browser.value("document.querySelector('main').innerText")
        told = description()
        for path, route in told["paths"].items():
            assert path in text
            assert route["get"]["summary"] in text
        for name, schema in told["components"]["schemas"].items():
            rows = browser.value(
                f"document.querySelector('#{name} ~ .scroll').querySelectorAll('tbody tr').length"
            )
            assert rows == len(schema["properties"]) + ("additionalProperties" in schema), name
        assert browser.value(LOST) == []
        assert browser.value("document.documentElement.scrollWidth") == width
    assert browser.value("document.documentElement.dataset.errors") == "0"
    assert browser.complaints == []
    assert browser.strangers(served.url) == []


@pytest.mark.process
@pytest.mark.tf
def test_the_form_of_the_api_page_sends_requests_and_shows_answers(served: Any, browser: Any) -> None:
    def sent(status: str) -> str:
        browser.value("document.querySelector('#reference form').requestSubmit()")
        browser.wait(f"document.querySelector('#try-status').innerText.startsWith('Status {status},')")
        return str(browser.value("document.querySelector('#try-answer').textContent"))

    browser.look(390)
    browser.open(f"{served.url}/api", "document.documentElement.dataset.shown")
    assert json.loads(sent("200"))["series"] == BTC
    command = browser.value("document.querySelector('#try-command').textContent")
    assert command == f"curl '{served.url}/api/forecast/{BTC}'"
    change = "dispatchEvent(new Event('{}', {{bubbles: true}}))"
    browser.value(
        "const address = document.querySelector('#try-address'); address.value = '/api/candles/{series}';"
        f"address.{change.format('change')}"
    )
    assert len(json.loads(sent("200"))["candles"]) == 60  # the example of the description
    browser.value(
        "const series = document.querySelector('#reference input[name=series]'); series.value = \"a'b/NOPE\";"
        f"series.{change.format('input')}"
    )
    command = browser.value("document.querySelector('#try-command').textContent")
    assert command == f"curl '{served.url}/api/candles/a%27b%2FNOPE?limit=60'"
    assert json.loads(sent("404"))["error"]["where"]
    assert browser.value("document.documentElement.scrollWidth") <= 390
    assert browser.value("document.documentElement.dataset.errors") == "0"


def test_the_description_is_valid_openapi() -> None:
    validate(description(), cls=OpenAPIV31SpecValidator)


def test_the_dashboard_for_grafana_shows_every_metric_and_no_other_each_panel_in_a_place_of_its_own() -> None:
    file = Path(__file__).parents[4] / "docs/en/how-to/grafana-dashboard.json"
    dashboard = json.loads(file.read_text("utf-8"))
    metrics = description()["paths"]["/metrics"]["get"]["x-metrics"].keys()
    panels = dashboard["panels"]
    taken: set[tuple[int, int]] = set()
    named: set[str] = set()
    for panel in panels:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        cells = {(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24  # the width of a dashboard
        assert not cells & taken, panel["title"]
        taken |= cells
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        named |= {name for target in panel["targets"] for name in re.findall(r"\bv8_\w+", target["expr"])}
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert named == set(metrics)  # each is shown, and no other
    for page in (file.with_name("monitoring.md"), file.parents[2] / "zh-TW/how-to/monitoring.md"):
        text = page.read_text("utf-8")
        assert set(re.findall(r"\bv8_\w+", text)) <= set(metrics)
        assert [panel["title"] for panel in panels if panel["title"] not in text] == []
