"""Which of the compared profiles is recommended, with its error and its time, or why none is."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from v8.annexes.comparison.results import PROJECTED_MODELS, Comparison, marked
from v8.annexes.comparison.shared_errors import shared_windows_note
from v8.base.wording import duration, say
from v8.publish.report.figures import Dot, change_pct
from v8.publish.report.verdict import relative_to_naive

NEGLIGIBLE_PCT: Final = 0.5  # errors that differ by no more, in per cent of naive's, count as equal


class ProfileErrors(NamedTuple):
    """The errors of a profile, and the time that its models take."""

    profile: str  # its name, marked if it is a formula
    dots: Sequence[Dot]  # by series, its error relative to naive's, mean over the tasks that all models have
    change_pct: float  # by how many per cent its error is larger than naive's, median over series
    projected_s: float  # seconds of 40 models with its own epochs

    def __str__(self) -> str:
        error = relative_to_naive(1.0 + self.change_pct / 100.0)
        return say("{error}; {cost}", error=error, cost=self.cost)

    @property
    def cost(self) -> str:
        """The time that its models take, in words."""
        time = duration(self.projected_s, is_estimate=True)
        return say("{num} models take about {time}", num=PROJECTED_MODELS, time=time)


def profile_errors(comparison: Comparison) -> list[ProfileErrors]:
    """Return errors and times of the profiles, the smallest error first; empty without a common task."""
    figures = comparison.figures
    if not figures:
        return []
    multiples = comparison.models.filter(like="relative_mae.")
    multiples = multiples.dropna(how="all").dropna(axis="columns")  # a series without shared windows has none
    changes_pct = multiples.mean(axis="columns").dropna().map(change_pct)
    all_errors = []
    for profile, of_profile in changes_pct.groupby(level="profile", sort=False):
        by_series = of_profile.groupby(level="series", sort=False).median()  # over repeats
        all_errors.append(
            ProfileErrors(
                profile=marked(str(profile), comparison.formulas),
                dots=[Dot(str(series), pct) for series, pct in by_series.items()],
                change_pct=float(by_series.median()),
                projected_s=figures[str(profile)]["projected_40_s"]["median"],
            )
        )
    return sorted(all_errors, key=lambda errors: errors.change_pct)


def advice(comparison: Comparison) -> list[str]:
    """Recommend a profile, with its error and its time, and name alternatives.

    The recommended one is the fastest of the profiles whose errors count as equal to the smallest. Where none
    is recommended, the reason comes first, then the rule, if enough was trained to apply it. The fastest one
    is named with its error only where errors of profiles may be compared.
    """
    by_error = profile_errors(comparison)
    if not by_error:
        return []
    by_time = sorted(by_error, key=lambda errors: errors.projected_s)
    best = by_error[0]
    fastest = by_time[0]
    reason = reason_for_none(comparison, by_error)
    result = fastest.cost if reason and not _may_compare_errors(comparison) else str(fastest)
    fastest_sentence = say("The fastest is {name}: {result}.", name=fastest.profile, result=result)
    if reason and comparison.epochs is not None:
        return [reason, fastest_sentence]
    if reason:
        rule = say(
            "Where one is recommended, medians that are at most {points} points apart count as equal, and it "
            "is the fastest of those with the lowest.",
            points=NEGLIGIBLE_PCT,
        )
        return [reason, rule, fastest_sentence]
    recommended = _recommended(by_error)
    sentences = [say("Take {name}: {result}.", name=recommended.profile, result=recommended)]
    if best is not recommended:
        sentences.append(say("The smallest error has {name}: {result}.", name=best.profile, result=best))
    if fastest is not recommended:
        sentences.append(fastest_sentence)
    return sentences


def _recommended(by_error: Sequence[ProfileErrors]) -> ProfileErrors:
    """Return the fastest of the profiles whose errors count as equal to the smallest, the first."""
    smallest = by_error[0].change_pct
    equal_to_best = [errors for errors in by_error if errors.change_pct - smallest <= NEGLIGIBLE_PCT]
    return min(equal_to_best, key=lambda errors: errors.projected_s)


def recommended_first(comparison: Comparison) -> tuple[list[ProfileErrors], bool]:
    """Return the profiles by their errors, the recommended one first, and whether there is one."""
    by_error = profile_errors(comparison)
    if not by_error or reason_for_none(comparison, by_error):
        return by_error, False
    first = _recommended(by_error)
    return [first, *(errors for errors in by_error if errors is not first)], True


def num_series_lower(errors: ProfileErrors, others: Sequence[ProfileErrors]) -> tuple[int, int]:
    """Count the series in which a profile has the smallest error, and those that all profiles have."""
    own = {dot.name: dot.change_pct for dot in errors.dots}
    by_other = [{dot.name: dot.change_pct for dot in other.dots} for other in others]
    shared = [name for name in own if all(name in other for other in by_other)]
    lower = [name for name in shared if all(own[name] < other[name] for other in by_other)]
    return len(lower), len(shared)


def reason_for_none(comparison: Comparison, by_error: Sequence[ProfileErrors]) -> str:
    """Say why no profile is recommended; empty if one is.

    `by_error` has at least one profile, the one with the smallest error first.
    """
    if comparison.epochs is not None:
        return say(
            "No profile is recommended: so short a training shows which one is fast, but not yet which one "
            "forecasts well."
        )
    if len(set(comparison.horizons.values())) > 1:
        return say("No profile is recommended: they look differently far ahead.")
    if by_error[0].change_pct >= 0.0:
        return say("No profile is recommended: none has a lower error than the naive forecast.")
    return ""


def _may_compare_errors(comparison: Comparison) -> bool:
    """Return whether errors of the profiles are of the same steps, after a whole training."""
    is_whole = comparison.epochs is None
    has_one_horizon = len(set(comparison.horizons.values())) == 1
    return is_whole and has_one_horizon


def windows_note(comparison: Comparison) -> list[str]:
    """Say on how many windows the profiles are compared; nothing if none was measured."""
    if not comparison.measurements:
        return []
    num_own = {marked(name, comparison.formulas): num for name, num in comparison.num_windows.items()}
    return [shared_windows_note(comparison.num_shared_windows, num_own)]
