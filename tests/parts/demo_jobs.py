"""Jobs of series of the demo market."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource
from v8.profile.profile import Profile
from v8.runs.plan import Job, Recipe


def demo_jobs(profile: Profile, names: Sequence[str], run: Path) -> list[Job]:
    """Make the jobs of a profile for some series, each in a folder of its name; their seeds count from 0."""
    recipe = Recipe(profile, is_publishable=False)
    return [
        Job(recipe, DemoSource().candles(Series.parse(name), profile.newest_bars), seed, run / name)
        for seed, name in enumerate(names)
    ]
