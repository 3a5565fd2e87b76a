"""What changed in a published run since its first models, and why: for its card and its commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from v8.artifacts.generations import Decision
from v8.tables import Table
from v8.wording import ABSENT, count, number

_SECTION = """## What was renewed

These models took the place of older ones of the same profile, because they erred less on candles that neither
had seen. Errors are multiples of naive's, in the order of the tasks above: new model, old model, and the best
baseline on the same candles.

{table}

"""


def changes_section(decisions: Iterable[Decision]) -> str:
    """Return the section of a card in Markdown; empty where nothing was renewed."""
    rows = [_cells(one) for one in sorted(decisions, key=lambda one: one.series)]
    header = ("series", "newest candle", "before", "why", "new", "old", "best baseline", "windows", "judged")
    return _SECTION.format(table=Table(header, rows).markdown()) if rows else ""


def change_line(decision: Decision) -> str:
    """Say in one line of a commit's description what changed of a series, and why."""
    new, old = decision.challenger, decision.champion
    return (
        f"{decision.series}: model up to {_day(new.trained_until)} in place of {_day(old.trained_until)}. "
        f"Stale: {decision.stale}. Chosen: {decision.why}."
    )


def _cells(decision: Decision) -> Iterator[str]:
    new, old = decision.challenger, decision.champion
    yield from (decision.series, _day(new.trained_until), _day(old.trained_until), decision.stale)
    yield from (_numbers(each.multiples.values()) for each in (new, old))
    best = [f"{number(one.multiple)} {one.name}" for one in decision.baselines.values()]
    yield from (", ".join(best) or ABSENT, count(decision.num_windows))
    ends = decision.judged_from, decision.judged_until
    yield f"{_day(ends[0])} to {_day(ends[1])}" if all(ends) else ABSENT


def _numbers(multiples: Iterable[float]) -> str:
    return ", ".join(map(number, multiples)) or ABSENT


def _day(moment: str | None) -> str:
    """Write an ISO time without seconds and zone.

    >>> _day("2026-11-21T09:45:00+00:00"), _day(None)
    ('2026-11-21 09:45', '–')
    """
    return ABSENT if moment is None else moment[:16].replace("T", " ")
