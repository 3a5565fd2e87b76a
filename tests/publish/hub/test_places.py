"""Places of models: what they hold; a repository stays at one commit, a run at the generation that serves."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from outputs import write_outputs

import v8
from v8.annexes.live.promotion import Contender, Decision, read_promotions
from v8.base.errors import ArtifactError, PullError
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import read_metadata
from v8.publish.hub.places import open_place
from v8.publish.hub.staging import stage_run

pytestmark = pytest.mark.tf

REPO = "someone/fleet"
BOTH = ("BTCUSDT-15m", "ETHUSDT-1h")


class Opened(Forecaster):
    """What a place opened, without the seconds that Keras takes."""

    @classmethod
    def load(cls, folder: Path | str, *, revision: str | None = None, models: Any = None) -> Any:
        series = read_metadata(Path(folder)).series
        return SimpleNamespace(series=series, revision=revision, origin_lines=())


def test_a_model_that_replaces_one_of_the_same_size_and_time_is_another(make_run: Any) -> None:
    """Clocks of file systems tell moments apart that are some milliseconds from each other."""
    run = make_run()
    series = BOTH[0]
    file = run / series / "metadata.json"
    before = open_place(run).version_of(series)
    status = file.stat()
    assert open_place(run).version_of(series) == before
    aside = file.with_name("aside")
    shutil.copy(file, aside)
    aside.replace(file)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert open_place(run).version_of(series) != before


def test_a_repository_is_asked_once_and_all_models_are_of_that_commit(published: Any) -> None:
    place = open_place(REPO)
    first = published.commits(REPO)[-1].oid
    assert published.count() == 0
    assert place.series == BOTH
    assert published.routes == ["resolve"] * 3  # the manifest, and nothing else
    published.commit(REPO, {"README.md": b"newer"})
    place.prefetch(BOTH)
    published.forget()
    assert [place.open(name, Opened).revision for name in BOTH] == [first, first]
    assert published.count() == 0
    with pytest.raises(PullError, match=r"one of the 2 .*; got 'BTCUSDT-1h'"):
        place.open("BTCUSDT-1h", Opened)


def test_models_that_forecast_a_series_without_one_are_brought_at_once(published: Any) -> None:
    place = open_place(REPO)
    place.prefetch(["SOLUSDT-15m"])
    assert place.sources_of("SOLUSDT-15m") == ("BTCUSDT-15m",)
    published.forget()
    assert place.open("BTCUSDT-15m", Opened).series == "BTCUSDT-15m"
    assert published.count() == 0
    expected = r"SOLUSDT-4h: .* at 4h; got models of .* in someone"
    with pytest.raises(ArtifactError, match=expected):
        place.forecaster_of("SOLUSDT-4h")


def test_a_damaged_model_is_told_when_it_is_opened_and_stops_no_other(published: Any) -> None:
    published.flip("resolve", times=9, where="ETHUSDT-1h/metadata.json", byte=20)
    place = open_place(REPO)
    place.prefetch(place.series)
    assert str(place.open("BTCUSDT-15m", Opened).series) == "BTCUSDT-15m"
    with pytest.raises(ArtifactError, match=r"ETHUSDT-1h/metadata\.json: .*published file"):
        place.open("ETHUSDT-1h", Opened)


def test_offline_a_place_holds_what_the_cache_holds(published: Any) -> None:
    with pytest.raises(PullError, match=r"without the Hub, .*cache"):
        _ = open_place(REPO, is_offline=True).series
    open_place(REPO).prefetch(BOTH)
    published.forget()
    place = open_place(REPO, is_offline=True)
    assert [str(place.open(name, Opened).series) for name in place.series] == list(BOTH)
    assert published.count() == 0


def test_a_run_holds_its_finished_series_and_not_what_was_set_aside(make_run: Any, tmp_path: Path) -> None:
    run = make_run(BOTH)
    shutil.copytree(run / "ETHUSDT-1h", run / "ETHUSDT-1h.replaced-1")
    place = open_place(run)
    assert place.series == BOTH
    assert (place.name, place.open("ETHUSDT-1h", Opened).revision) == (str(run), None)
    assert open_place(run / "ETHUSDT-1h").series == ("ETHUSDT-1h",)
    with pytest.raises(ArtifactError, match=r"got a folder of runs: "):
        _ = open_place(run.parent).series


# A generation that serves is what is shown, loaded and published of a run; one that does not is not

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


def test_the_folder_of_a_series_says_so_if_another_generation_serves_it(run: Path) -> None:
    def lines(folder: Path) -> tuple[str, ...]:
        return open_place(folder).open(BTC, Opened).origin_lines

    decide(run, "kept")
    assert lines(run / BTC) == ()
    decide(run, "replaced")
    (line,) = lines(run / BTC)
    assert line.startswith(f"{BTC}: ") and DAY in line and str(run.parent) not in line
    assert lines(run) == lines(run / "generations" / DAY / BTC) == ()
    (run / "serving.json").write_text("{")
    assert lines(run / BTC) == ()


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
