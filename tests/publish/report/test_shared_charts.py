"""What charts of the app and of the report share: the colour of volatility.

tests/annexes/live/app/test_page_in_browser.py looks at the charts themselves.
"""

from __future__ import annotations

import re

import pytest

from v8.profile.columns import TASK_VOLATILITY
from v8.profile.tasks import TASKS
from v8.publish.report.charts import COLOURS

OTHER_MEANINGS = ("blue", "orange", "purple", "gain", "loss")
"""Colours of the forecast and of what is better, of what is worse, of bands, of rises and of falls."""


def parts_of(colour: str) -> list[int]:
    """Return red, green and blue of a colour of CSS, 0 to 255."""
    if colour.startswith("#"):
        return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return [int(part) for part in re.findall(r"\d+", colour)[:3]]


@pytest.mark.parametrize("scheme", [0, 1])
def test_the_colour_of_volatility_is_no_other_one_and_its_intervals_have_it(scheme: int) -> None:
    name = TASKS[TASK_VOLATILITY].colour
    own = parts_of(COLOURS[name][scheme])
    for other in OTHER_MEANINGS:
        differences = [abs(a - b) for a, b in zip(own, parts_of(COLOURS[other][scheme]), strict=True)]
        assert sum(differences) > 60, other
    for fan in ("fan_of_task", "fan_of_task_inner"):
        assert parts_of(COLOURS[fan][scheme]) == own
