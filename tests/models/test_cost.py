"""The formula of costs, by hand."""

from __future__ import annotations

from collections.abc import Callable

from v8.models.cost import training_flop_per_window
from v8.profile import Profile


def test_a_newest_row_network_costs_its_dense_layers_and_one_number_a_task_and_step(
    make_profile: Callable[..., Profile],
) -> None:
    # Forward, two operations per entry: 12 x 6 and 6 x 4 in the layers, 4 for each of 3 tasks x 3 steps:
    # 2 x (72 + 24 + 36) = 264. Training costs three times that.
    assert training_flop_per_window(make_profile("dense_newest")) == 792


def test_a_newest_row_network_costs_the_same_whatever_it_looks_back(
    make_profile: Callable[..., Profile],
) -> None:
    costs = {training_flop_per_window(make_profile("dense_newest", lookback_bars=bars)) for bars in (20, 60)}
    assert costs == {792}
