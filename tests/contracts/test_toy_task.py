"""A task of one's own is one file: this one, from the profile to the published model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tiny_profiles import tiny_profile

from v8.profile.tasks import TASKS, UNITLESS, Closes, Task


def implied(xp: Any, closes: Closes) -> Any:
    return xp.expand_dims(4.0 * closes.deviation / closes.middle, -1)


BAND_WIDTH = Task(
    name="width",
    title="Width of the bands",
    sentence="Distance between the Bollinger bands over their middle.",
    source="a toy of this test",
    columns=("bb_width",),
    unit=UNITLESS,
    colour="orange",
    sides=(1.0,),
    deviations=4.0,
    implied=implied,
    coherent=lambda xp, values, last, least: xp.maximum(values, least),
)


@pytest.fixture
def registered() -> Iterator[None]:
    TASKS.register(BAND_WIDTH)
    yield
    TASKS.pop(BAND_WIDTH.name)


@pytest.mark.nightly
@pytest.mark.tf
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("way", ["anchored", "ranged"])
def test_a_task_of_one_file_goes_all_the_way(run_task: Callable[..., Any], way: str) -> None:
    run = run_task("width", way)
    assert "width" in run.leaderboard.splitlines()[0]
    assert "Width of the bands" in run.page
    assert run.plain["width"].shape == (1, 3, 1)
    assert (run.plain["width"] > 0).all()


def test_without_its_file_nobody_knows_it() -> None:
    with pytest.raises(ValueError, match=r"'width' is no task, .*range, ohlc, bands, volatility"):
        tiny_profile(tasks={name: {"weight": 1.0, "loss": "mae"} for name in ("ohlc", "width")})
