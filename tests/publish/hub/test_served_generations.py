"""A generation that serves is what is shown, loaded and published of a run; one that does not is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from outputs import write_outputs

import v8
from v8.annexes.live.promotion.decisions import Contender, Decision, read_promotions
from v8.base.errors import ArtifactError
from v8.publish.hub.opening import open_place
from v8.publish.hub.staging import stage_run

pytestmark = pytest.mark.tf

BTC = "BTCUSDT-15m"
ETH = "ETHUSDT-1h"
DAY = "2026-11-21"


def decide(run: Path, verdict: Any) -> None:
    decision = Decision(
        series=BTC,
        decided_at="2026-11-21T10:00:00+00:00",
        stale="asked for",
        champion=Contender("0", "2026-10-31T23:45:00+00:00"),
        challenger=Contender(DAY, "2026-11-21T09:45:00+00:00"),
        num_windows=0,
        evaluated_from=None,
        evaluated_until=None,
        baselines={},
        p_values={},
        verdict=verdict,
        why="a test says so",
    )
    read_promotions(run).with_decision(decision).save()


@pytest.fixture
def run(make_run: Any) -> Path:
    """A run of two series; one of them has a better model in a later generation."""
    run = Path(make_run([BTC, ETH], shares={BTC: make_run.LOSING}))
    later = make_run([BTC], shares={BTC: make_run.SKILLED})
    shutil.copytree(later, run / "generations" / DAY)
    return run


def opened(run: Path) -> Path:
    """Say which folder a place would load; these models are too small to forecast."""
    folder, _ = open_place(run).locate(BTC)
    return folder


def multiples(run: Path) -> dict[str, float]:
    return {row.series: round(row.tasks["ohlc"].naive.relative_mae or 0, 2) for row in write_outputs(run)}


def test_what_serves_is_shown_loaded_and_published(run: Path, tmp_path: Path) -> None:
    decide(run, "kept")
    assert multiples(run) == {BTC: 1.25, ETH: 0.75}
    assert opened(run) == run / BTC
    decide(run, "replaced")
    later = run / "generations" / DAY / BTC
    assert multiples(run) == {BTC: 0.75, ETH: 0.75}
    assert v8.Run(run)[BTC].folder == later.absolute()
    assert opened(run) == later
    staged = stage_run(run, tmp_path / "staged", "someone/fleet")
    for name in ("model.keras", "metadata.json"):
        assert (staged.folder / "models" / BTC / name).read_bytes() == (later / name).read_bytes()
    assert [each.lines.keys() for each in staged.replacements] == [{BTC}]
    assert "## What was renewed" in (staged.folder / "README.md").read_text()


def test_damage_of_what_serves_says_how_the_first_model_comes_back(run: Path, tmp_path: Path) -> None:
    decide(run, "replaced")
    file = run / "generations" / DAY / BTC / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 99}))
    with pytest.raises(ArtifactError, match=r"take BTCUSDT-15m out of serving\.json"):
        write_outputs(run)
    with pytest.raises(ArtifactError, match=r"take BTCUSDT-15m out of serving\.json"):
        stage_run(run, tmp_path / "staged", "someone/fleet")
    messages: list[Any] = []
    assert [row.series for row in write_outputs(run, messages.append)] == [ETH]
    assert len(messages) == 1
