"""Where the folds of a back-test lie: runs that end one after another, spread over all the history there is.

A fold is a run like any other, on candles up to a moment: train, validation and test span lie as the
profile says, embargoed, with the test span at the fold's end. All series of a timeframe share the moments,
so that they are judged on the same days. The last fold ends with the newest candles; the first one where
half of the series have the profile's newest bars; the others lie evenly between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high, median_low

from v8.artifacts.backtest_folder import Fold
from v8.windows.dataset import table_columns
from v8.windows.splits import rows_needed, split_rows
from v8.errors import DataError
from v8.features.indicators import warmup_bars
from v8.market.open_times import iso
from v8.market.series import Series
from v8.profile import Profile


@dataclass(frozen=True)
class History:
    """The candles that a source has of a series: open times of the first and the newest, seconds, UTC."""

    first_s: int
    newest_s: int


def lay_folds(histories: Mapping[Series, History], profile: Profile, num_folds: int) -> tuple[Fold, ...]:
    """Choose where the folds end and which series take part in each.

    A series takes part in a fold when it has candles enough for a window in every span, and still trades.

    Args:
        histories: What there is of each series.
        profile: Gives the newest bars of a fold, split and windows.
        num_folds: Folds, at least 1.

    Raises:
        DataError: If a timeframe's history is too short for folds of which each judges mostly new candles.
    """
    timeframes = dict.fromkeys(series.timeframe for series in histories)
    ends = {
        name: _ends([one for one in histories if one.timeframe == name], histories, profile, num_folds)
        for name in timeframes
    }
    return tuple(
        Fold(
            number + 1,
            {
                str(series): ends[series.timeframe][number]
                for series, history in histories.items()
                if _takes_part(series, history, ends[series.timeframe][number], profile)
            },
        )
        for number in range(num_folds)
    )


def fewest_step_bars(profile: Profile) -> int:
    """Return the bars between two folds at least: half a test span, so that most of it is new."""
    num_rows = profile.newest_bars - warmup_bars(table_columns(profile))
    first, end = split_rows(num_rows, profile, where=f"folds of {profile.newest_bars:,} candles").test
    return -(-(end - first) // 2)


def _ends(
    chosen: Sequence[Series], histories: Mapping[Series, History], profile: Profile, num_folds: int
) -> list[int]:
    """Return the open time of the newest candle of each fold of one timeframe."""
    bar_s, bars = chosen[0].bar_s, profile.newest_bars
    start_s = median_low(histories[one].first_s for one in chosen)
    newest_s = median_high(histories[one].newest_s for one in chosen)
    num_bars, needed = (newest_s - start_s) // bar_s + 1, bars + (num_folds - 1) * fewest_step_bars(profile)
    if num_bars < needed and num_folds > 1:
        raise DataError(
            where=f"{num_folds} folds of {chosen[0].timeframe}",
            rule=f"need {needed:,} candles of half of the series: {bars:,} of the first fold, and "
            f"{fewest_step_bars(profile):,} more for each other one",
            got=f"{num_bars:,}, {iso(start_s)} to {iso(newest_s)}",
            fix="Lower --folds or --bars, or take a source with a longer history",
        )
    step = (num_bars - bars) // max(1, num_folds - 1)
    return [newest_s - number * step * bar_s for number in reversed(range(num_folds))]


def _takes_part(series: Series, history: History, newest_s: int, profile: Profile) -> bool:
    fewest = warmup_bars(table_columns(profile)) + rows_needed(profile)
    has_enough = newest_s - history.first_s >= (fewest - 1) * series.bar_s
    return has_enough and history.newest_s >= newest_s - profile.horizon_bars * series.bar_s
