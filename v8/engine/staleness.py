"""Which models of a run are stale, and why.

* `age`: more candles have come than its test span holds, or than a stated number of days. Counted in candles
  because a day means 96 of them to one series and 24 to another; by the test span because then all candles
  that a challenger is judged on are newer than any that the champion was made or judged with.
* `decay`: on the candles that came since, it is worse than its test span promised, or than the baseline that
  was best there, by more than chance.
* `always`: there are new candles.

A model that was challenged and stayed is not stale by the same evidence again: its age, and the candles
that show decay, begin behind the newest candle of the challenger. Without new candles nothing is stale: the
same candles and seed would give the same model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter

from v8.artifacts.generations import Serving
from v8.artifacts.series_artifact import METADATA_FILE, read_described
from v8.engine.decay import decay_of
from v8.errors import ArtifactError
from v8.market.candles import Candles
from v8.market.open_times import iso
from v8.market.series import Series
from v8.records import AS_WRITTEN, Count, checked
from v8.wording import ABSENT, plural

RULES: Final = ("age", "decay", "always")
"""By which a model is stale, see above."""

_DAY_S: Final = 86_400


@dataclass(frozen=True)
class _TestSpan:
    rows: tuple[Count, Count]


@dataclass(frozen=True)
class _Split:
    test: _TestSpan


@dataclass(frozen=True)
class _Trained:
    """What of `metadata.json` tells how old a model may become."""

    split: _Split


_TRAINED: Final = TypeAdapter(_Trained)


@dataclass(frozen=True)
class Rule:
    """By which rule a model is stale.

    Args:
        when: One of `RULES`.
        max_age_days: Age from which on it is by `age`, in days; None for the length of its test span.
    """

    when: str = "age"
    max_age_days: float | None = None


@dataclass(frozen=True)
class Standing:
    """How the model that serves a series stands.

    Args:
        series: Which one.
        generation: The generation that serves.
        trained_until_s: Open time of its newest candle, seconds since the epoch, UTC; None if it is damaged.
        is_stale: Whether it should be challenged.
        why: The reason either way, a clause.
    """

    series: Series
    generation: str
    trained_until_s: int | None
    is_stale: bool
    why: str

    @property
    def until(self) -> str:
        """Its newest candle, in words."""
        return ABSENT if self.trained_until_s is None else iso(self.trained_until_s)


def standing_of(series: Series, serving: Serving, candles: Candles, rule: Rule) -> Standing:
    """Find out whether the model that serves a series is stale.

    Args:
        series: Which one.
        serving: What serves in its run.
        candles: The newest candles that there are; for `decay` as many as training takes.
        rule: By which it is.

    Raises:
        DataError: If the candles cannot be used.
    """
    generation = serving.generation_of(str(series))
    try:
        metadata = read_described(serving.folder(str(series)), series=str(series))
        trained_s, allowed = _end_of(metadata), _allowed_bars(series, metadata, rule.max_age_days)
    except ArtifactError:
        return Standing(series, generation, None, True, "the model that serves cannot be used")
    tried_s = max([trained_s, *_tried(serving, str(series), generation)])
    num_new = (int(candles.open_time_s[-1]) - tried_s) // series.bar_s
    said = f"{plural(max(num_new, 0), 'candle').replace(' ', ' new ')} since {iso(tried_s)}"
    if num_new <= 0 or rule.when == "always":
        return Standing(series, generation, trained_s, num_new > 0, said)
    if rule.when == "age":
        compared = "more than" if num_new > allowed else "not more than"
        return Standing(series, generation, trained_s, num_new > allowed, f"{said}, {compared} {allowed:,}")
    is_stale, found = decay_of(serving.folder(str(series)), candles, tried_s + series.bar_s)
    return Standing(series, generation, trained_s, is_stale, f"{said}: {found}")


def _end_of(metadata: Mapping[str, Any]) -> int:
    return int(datetime.fromisoformat(metadata["candles"]["last_open"]).timestamp())


def _allowed_bars(series: Series, metadata: Mapping[str, Any], max_age_days: float | None) -> int:
    if max_age_days is not None:
        return int(max_age_days * _DAY_S / series.bar_s)
    where, fix = f"{METADATA_FILE} of {series}", "Restore the artefact's folder or train the series again"
    first, end = checked(_TRAINED, metadata, where=where, fix=fix, rule=AS_WRITTEN).split.test.rows
    return end - first


def _tried(serving: Serving, series: str, generation: str) -> list[int]:
    """List the newest candles of the challengers that a model has seen off, seconds since the epoch."""
    about = serving.decisions_about(series)
    ends = [one.challenger.trained_until for one in about if one.champion.generation == generation]
    return [int(datetime.fromisoformat(end).timestamp()) for end in ends if end]
