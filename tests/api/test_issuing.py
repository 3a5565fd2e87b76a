"""What is said of a range ahead: how often it held on test candles, or that this is not known."""

from __future__ import annotations

import pytest

from v8.api.issuing import coverage_sentence
from v8.model.evaluation.price_range import ENOUGH_WINDOWS, RangeCoverage


@pytest.mark.parametrize(
    ("coverage", "numbers"),
    [
        (RangeCoverage(60, 45), ("60", "45", "75.0 %")),
        (RangeCoverage(ENOUGH_WINDOWS - 1, 40), ("not known", "49")),
    ],
)
def test_a_range_is_told_with_what_was_measured(coverage: RangeCoverage, numbers: tuple[str, ...]) -> None:
    sentence = coverage_sentence(coverage)
    assert all(number in sentence for number in numbers)
