"""Which generation serves: the pointer of a run, read as a stranger's and written in one piece."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_profiles import tiny_profile

from v8.annexes.live.promotion import (
    MOST_DECISIONS,
    Contender,
    Decision,
    Opponent,
    free_generation,
    list_generations,
    read_promotions,
)
from v8.base.errors import ArtifactError
from v8.data.market.series import Series
from v8.runs.run_folder import RunFolder, RunRecord
from v8.runs.serving import FIRST, generation_folder, read_serving, served_folder, stop_serving

BTC = "BTCUSDT-15m"
DAY = "2026-11-21"
REPLACED = Decision(
    series=BTC,
    decided_at="2026-11-21T10:00:00+00:00",
    stale="900 candles have come since, more than 800",
    champion=Contender(FIRST, "2026-11-01T00:00:00+00:00", {"ohlc": 0.97}),
    challenger=Contender(DAY, "2026-11-21T09:45:00+00:00", {"ohlc": 0.96}),
    num_windows=700,
    evaluated_from="2026-11-10T00:00:00+00:00",
    evaluated_until="2026-11-21T09:45:00+00:00",
    baselines={"ohlc": Opponent("HAR", 0.965)},
    p_values={"ohlc": 0.03},
    verdict="replaced",
    why="its error is lower",
)
KEPT = replace(REPLACED, verdict="kept", why="its error is not lower")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with one series, and a generation of it; metadata is all that is looked for here."""
    for folder in (tmp_path / "tiny", tmp_path / "tiny" / "generations" / DAY):
        (folder / BTC).mkdir(parents=True)
        (folder / BTC / "metadata.json").write_text("{}")
    return tmp_path / "tiny"


def damage(run: Path, **changes: Any) -> None:
    read_promotions(run).with_decision(REPLACED).save()
    content = json.loads((run / "serving.json").read_text())
    (run / "serving.json").write_text(json.dumps(content | changes))


def test_a_challenger_that_won_serves_and_one_that_lost_does_not(run: Path) -> None:
    assert served_folder(run, BTC) == run / BTC
    assert read_serving(run).generation_of(BTC) == FIRST
    read_promotions(run).with_decision(KEPT).save()
    assert served_folder(run, BTC) == run / BTC
    read_promotions(run).with_decision(REPLACED).save()
    assert served_folder(run, BTC) == run / "generations" / DAY / BTC
    assert served_folder(run, "ETHUSDT-1h") == run / "ETHUSDT-1h"
    serving = read_promotions(run)
    assert serving.decisions == (KEPT, REPLACED)
    assert {one.challenger.generation for one in serving.decisions_about(BTC)} == {DAY}


def test_the_newest_decisions_of_each_series_are_kept(run: Path) -> None:
    serving = read_promotions(run).with_decision(replace(KEPT, series="ETHUSDT-1h"))
    for number in range(MOST_DECISIONS + 3):
        serving = serving.with_decision(replace(KEPT, num_windows=number))
    numbers = [one.num_windows for one in serving.decisions_about(BTC)]
    assert numbers == list(range(3, MOST_DECISIONS + 3))
    assert len(serving.decisions_about("ETHUSDT-1h")) == 1


@pytest.mark.parametrize(
    "name", ["../../pwn", "/tmp/pwn", "2026-11-21/..", "C:\\pwn", "", ".", "2026-11-21-0", "2026-11-21 2", 7]
)
def test_a_name_that_is_no_generation_is_refused_before_it_is_a_path(run: Path, name: Any) -> None:
    damage(run, serving={BTC: name})
    with pytest.raises(ArtifactError, match=r"serving\.json, key serving\.BTCUSDT-15m: must be as v8 wrote"):
        served_folder(run, BTC)


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"format": 9}, r"this v8 reads serving format 2; got format 9"),
        ({"serving": {"../BTCUSDT-15m": DAY}}, r"key serving: .*got .*not '\.\./BTC"),
        ({"decisions": 7}, r"key decisions: .*got 7"),
        ({"decisions": [{"verdict": "both"}]}, r"key decisions\.0\.series: must be .*; got no such key"),
    ],
)
def test_a_damaged_pointer_is_one_clear_error(run: Path, changes: dict[str, Any], refused: str) -> None:
    damage(run, **changes)
    with pytest.raises(ArtifactError, match=refused):
        read_promotions(run)


def test_the_core_reads_what_serves_and_leaves_the_decisions_as_they_are(run: Path) -> None:
    damage(run, decisions=[{"of": "another annex"}])
    assert read_serving(run).generations == {BTC: DAY}
    stop_serving(run, Series.parse(BTC))
    assert served_folder(run, BTC) == run / BTC
    content = json.loads((run / "serving.json").read_text())
    assert content == {"format": 2, "serving": {}, "decisions": [{"of": "another annex"}]}


def test_a_pointer_that_is_cut_off_or_a_link_is_refused(run: Path, tmp_path: Path) -> None:
    damage(run)
    whole = (run / "serving.json").read_text()
    (run / "serving.json").write_text(whole[:100])
    with pytest.raises(ArtifactError, match=r"serving\.json: must be valid JSON"):
        served_folder(run, BTC)
    (tmp_path / "elsewhere.json").write_text(whole)
    (run / "serving.json").unlink()
    (run / "serving.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(ArtifactError, match=r"tiny: .*got links named serving.json"):
        served_folder(run, BTC)


def test_a_generation_that_serves_and_was_removed_is_missed(run: Path) -> None:
    damage(run)
    (run / "generations" / DAY / BTC / "metadata.json").unlink()
    with pytest.raises(ArtifactError, match=r"BTCUSDT-15m: .*got no finished model"):
        served_folder(run, BTC)


def test_a_generation_that_is_a_link_is_not_followed(run: Path, tmp_path: Path) -> None:
    damage(run)
    (run / "generations" / DAY).rename(tmp_path / "elsewhere")
    (run / "generations" / DAY).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match=r"generations: .*got links named 2026-11-21"):
        served_folder(run, BTC)


def test_generations_are_named_by_day_and_listed_oldest_first(tmp_path: Path) -> None:
    names = []
    for _ in range(11):
        names.append(free_generation(tmp_path, DAY))
        record = RunRecord.begin(tiny_profile(), "files", True, "python -m v8 update")
        with RunFolder(generation_folder(tmp_path, names[-1]), record) as folder:
            assert free_generation(tmp_path, DAY) == names[-1]  # killed now, it would be taken again
            folder.set_state(Series.parse(BTC), status="pending")
    assert names == [DAY, *(f"{DAY}-{number}" for number in range(2, 12))]
    assert list_generations(tmp_path) == names
