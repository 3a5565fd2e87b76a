from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from v8.base.errors import ProfileError
from v8.data.market.series import Series
from v8.data.market.sources import SOURCES, CutOffSource, SourceKind, open_source
from v8.data.market.sources.demo import DemoSource

INSTALLED = [name for name in SOURCES if name != "yfinance" or find_spec("yfinance")]
"""All sources but one whose package is an extra; tests/annexes/sources/test_yfinance.py is of that."""


def test_every_source_opens_under_its_own_name(tmp_path):
    folder = {"files": tmp_path}
    assert [open_source(name, data_dir=folder.get(name)).name for name in INSTALLED] == INSTALLED


def test_g9_only_the_demo_market_is_not_publishable(tmp_path):
    folder = {"files": tmp_path}
    publishable = {name: open_source(name, data_dir=folder.get(name)).is_publishable for name in INSTALLED}
    assert publishable == dict.fromkeys(INSTALLED, True) | {"demo": False}


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("nonsense", "Choose one of these"),
        ("csv", "Write --source files"),
        ("exchange", "Did you mean vision"),
        ("visoin", r"rest-um, hub, yfinance, files, demo; got .visoin.\. Did you mean"),
    ],
)
def test_a_name_that_is_like_no_source_suggests_only_what_makes_sense(name, advice):
    with pytest.raises(ProfileError, match=advice):
        open_source(name)


def test_a_folder_in_the_place_of_a_source_is_told_how_to_be_read(tmp_path):
    with pytest.raises(ProfileError, match=f"Write --source files --data-dir {tmp_path}"):
        open_source(str(tmp_path))


def test_files_need_a_folder_that_exists(tmp_path):
    with pytest.raises(ProfileError, match=r"needs the folder .* got no --data-dir"):
        open_source("files")
    with pytest.raises(ProfileError, match=r"got .*nowhere, "):
        open_source("files", data_dir=tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["vision", "live", "rest", "hub", "yfinance", "demo"])
def test_a_folder_without_use_is_refused_and_not_ignored(name, tmp_path):
    with pytest.raises(ProfileError, match=f"; got --source {name}"):
        open_source(name, data_dir=tmp_path)


def test_a_source_of_ones_own_is_one_line_and_unknown_again_without_it():
    class Mine:
        name = "mine"
        is_publishable = True

    SOURCES.register(SourceKind("mine", "candles of one's own", "a test", Mine))
    try:
        assert isinstance(open_source("mine"), Mine)
        with pytest.raises(ProfileError, match=r"files, demo, mine; got 'min'. Did you mean mine"):
            open_source("min")
    finally:
        SOURCES.pop("mine")


SERIES = Series("BTCUSDT", "15m")


@pytest.mark.parametrize("asked", [None, -10, 0, 10])
def test_no_later_candle_is_shown_and_earlier_ones_are_as_they_were(asked: int | None) -> None:
    whole = DemoSource().candles(SERIES, 300)
    newest_s = int(whole.open_time_s[199])
    cut = CutOffSource(DemoSource(), {str(SERIES): newest_s})
    end_s = None if asked is None else newest_s + asked * SERIES.bar_s
    candles = cut.candles(SERIES, 50, end_s)
    last = 199 + min(asked or 0, 0)
    np.testing.assert_array_equal(candles.open_time_s, whole.open_time_s[last - 49 : last + 1])
    assert candles.report.num_newer == 0
    assert (cut.name, cut.is_publishable) == ("demo", False)
