"""Places of models: what they hold, and that a repository stays at the commit it was first asked for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from v8.base.errors import ArtifactError, PullError
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import read_metadata
from v8.publish.hub.opening import open_place
from v8.publish.hub.publish import publish
from v8.publish.hub.staging import stage_run

pytestmark = pytest.mark.tf

REPO = "someone/fleet"
BOTH = ("BTCUSDT-15m", "ETHUSDT-1h")


class Opened(Forecaster):
    """What a place opened, without the seconds that Keras takes."""

    @classmethod
    def load(cls, folder: Path | str, *, revision: str | None = None, models: Any = None) -> Any:
        return SimpleNamespace(series=read_metadata(Path(folder)).series, revision=revision)


@pytest.fixture
def published(hub: Any, make_run: Any, tmp_path: Path) -> Any:
    """A Hub that holds two series in one commit."""
    publish(stage_run(make_run(BOTH), tmp_path / "staged", REPO), REPO, is_private=False)
    hub.forget()
    return hub


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
