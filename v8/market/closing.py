"""Markets that close: told from outages by holes that come back at the same hours, day after day.

Stocks, currencies and futures have nights, weekends and sessions. Their candles have holes that no longer
history fills, so no forecast of theirs could be made or judged as v8 does it. Outages of an exchange and
coins that were away do not come back at the same hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.market.series import WEEK_S

_HOUR_S: Final = 3_600
_MOST_FILLED: Final = 0.05
"""Share of the rounds in which a closed hour may be traded all the same: special sessions."""


@dataclass(frozen=True)
class _Cycle:
    """A span after which opening hours repeat.

    Args:
        name: What people call it.
        length_s: Seconds of one round.
        fewest_rounds: Rounds in which an hour must be closed, to be no accident.
        least_closed_s: Seconds of a round that must be closed, to be no maintenance.
    """

    name: str
    length_s: int
    fewest_rounds: int
    least_closed_s: int


_CYCLES: Final = (_Cycle("week", WEEK_S, 3, 24 * _HOUR_S), _Cycle("day", 24 * _HOUR_S, 4, 3 * _HOUR_S))
_FEWEST_SLOTS: Final = 6
"""Slots of a round: with fewer, one lost candle would be a large part of it."""


def closed_hours(open_time_s: NDArray[np.int64], bar_s: int) -> str | None:
    """Say when a market is closed; None for one that never is, or that was seen too shortly to tell.

    Args:
        open_time_s: Open times, seconds since the epoch, UTC, strictly ascending, shape (N,), N at least 1.
        bar_s: Seconds of a bar.

    >>> weekdays_s = np.arange(5 * 24 * 3_600, step=3_600)
    >>> closed_hours(np.concatenate([week * WEEK_S + weekdays_s for week in range(4)]), 3_600)
    '48 of the 168 hours of every week (3 weeks)'
    """
    slot_s = max(bar_s, _HOUR_S)
    for cycle in _CYCLES:
        if cycle.length_s >= _FEWEST_SLOTS * slot_s and cycle.length_s % slot_s == 0:
            num_rounds = _rounds_closed(open_time_s // slot_s, cycle.length_s // slot_s)
            is_closed = num_rounds >= cycle.fewest_rounds
            closed_s = int(is_closed.sum()) * slot_s
            if closed_s >= cycle.least_closed_s:
                hours = f"{closed_s // _HOUR_S} of the {cycle.length_s // _HOUR_S} hours"
                return f"{hours} of every {cycle.name} ({num_rounds.max()} {cycle.name}s)"
    return None


def _rounds_closed(slots: NDArray[np.int64], num_slots: int) -> NDArray[np.int64]:
    """Count in how many rounds each slot was closed, shape (num_slots,); 0 for those that are traded.

    A hole that is as long as a round says nothing about hours and is left out.

    Args:
        slots: Number of the slot that each candle lies in, ascending.
        num_slots: Slots of a round.
    """
    filled = np.unique(slots)
    holes = np.diff(filled) - 1
    is_short = (holes > 0) & (holes < num_slots)
    starts, lengths = filled[:-1][is_short] + 1, holes[is_short]
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    closed = np.bincount((np.repeat(starts, lengths) + within) % num_slots, minlength=num_slots)
    traded = np.bincount(filled % num_slots, minlength=num_slots)
    return np.where(traded <= _MOST_FILLED * closed, closed, 0)
