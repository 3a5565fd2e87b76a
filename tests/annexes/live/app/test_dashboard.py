"""The dashboard for Grafana is one that Grafana reads, and names no metric that is not there."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from v8.annexes.live.app.answers import description

FILE = Path(__file__).parents[4] / "docs/en/how-to/grafana-dashboard.json"


@pytest.fixture
def dashboard() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return content


def lost(content: Any, kept: Any, place: str = "") -> list[str]:
    """List the keys and values of a dashboard that Grafana's own models of it do not keep."""
    match content, kept:
        case dict(), dict():
            return [
                each
                for key, value in content.items()
                for each in lost(value, kept.get(key), f"{place}.{key}")
            ]
        case list(), list() if len(content) == len(kept):
            pairs = zip(content, kept, strict=True)
            return [each for number, pair in enumerate(pairs) for each in lost(*pair, f"{place}[{number}]")]
    return [] if content == kept else [place]


def kept_by_grafana(content: dict[str, Any]) -> Any:
    return json.loads(JSONEncoder().encode(Dashboard.from_json(content)))


def test_grafana_keeps_every_key_of_the_dashboard(dashboard: dict[str, Any]) -> None:
    assert lost(dashboard, kept_by_grafana(dashboard)) == []
    misspelt = copy.deepcopy(dashboard)
    misspelt["schemaVersoin"] = 39
    misspelt["panels"][0]["gridPos"]["width"] = 4
    assert lost(misspelt, kept_by_grafana(misspelt)) == [".panels[0].gridPos.width", ".schemaVersoin"]


def test_every_panel_has_a_place_of_its_own_and_asks_for_metrics_that_are_there(
    dashboard: dict[str, Any],
) -> None:
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
    for page in (FILE.with_name("monitoring.md"), FILE.parents[2] / "zh-TW/how-to/monitoring.md"):
        text = page.read_text("utf-8")
        assert set(re.findall(r"\bv8_\w+", text)) <= set(metrics)
        assert [panel["title"] for panel in panels if panel["title"] not in text] == []
