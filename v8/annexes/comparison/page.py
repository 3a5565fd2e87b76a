"""What is shown of a comparison of profiles: sentences, tables, the recommended profile, and its files.

`compare.json` holds everything, `compare.csv` the figures; `compare.html` shows the tables and sentences of
the terminal between its charts.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from v8.annexes.comparison.results import (
    FIGURES,
    PROJECTED_MODELS,
    STATISTICS,
    Comparison,
    Spreads,
    marked,
    shared_windows_note,
)
from v8.base.errors import ProfileError, listed
from v8.base.records import check_format, read_json_object
from v8.base.storage import COMPARISON_COLUMNS, write_json, write_text
from v8.base.wording import (
    ABSENT,
    Table,
    between,
    count,
    digits,
    duration,
    language,
    number,
    plural,
    say,
    term,
)
from v8.model.baselines.baselines import BASELINES
from v8.profile.tasks import TASKS
from v8.publish.report.charts import plot
from v8.publish.report.figures import Dot, change_pct, spread_figure
from v8.publish.report.markup import Html, document, element, folded, shown_table
from v8.publish.report.page import change, provenance, row_of_cards
from v8.publish.report.verdict import baseline_in_words, relative_to_naive, titled, verdict_box

NEGLIGIBLE_PCT: Final = 0.5  # errors that differ by no more, in per cent of naive's, count as equal

MOST_CARDS: Final = 4  # profiles that have a card; the chart and the tables have all

COMPARISON_FORMAT: Final = 3  # version of the keys of `compare.json`

CLAIMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "stable": {
        "ancestor": "V8_STABLE.py",
        "model_s": (60, 90),
        "all_s": (40 * 60, 60 * 60),
    },
    "aligned": {
        "ancestor": "V8_ALIGNED_WITH_V7.py",
        "model_s": (30, 45),
        "all_s": (20 * 60, 30 * 60),
    },
    "v4_transformer": {
        "ancestor": "v4_train_transformer.py",
        "model_s": (3 * 60, 5 * 60),
        "all_s": (2 * 3600, 3 * 3600),
    },
    "v4_gru": {
        "ancestor": "v4_train_fast_gru.py",
        "model_s": (5 * 60, 8 * 60),
        "all_s": (3 * 3600, 5 * 3600),
    },
    "v4_lstm": {
        "ancestor": "v4_train_unified.py",
        "model_s": (10 * 60, 15 * 60),
        "all_s": (6 * 3600, 10 * 3600),
    },
}
"""Times that the guides of earlier versions claim for "Colab GPU" trainings with the profile's own epochs:
shortest and longest, in seconds, of one model and of all 40."""

CLAIMED: Final = {"all_s": "40 models, claimed", "model_s": "one model, claimed"}
CLAIM_NOTE: Final = (
    "Claimed: by guides of earlier versions, for an unnamed GPU, without a log; no measurement."
)


UNITS: Final[Mapping[str, Callable[[float], str]]] = {
    "s": lambda value: say("{n} ms", n=f"{value * 1e3:.3g}") if value < 1 else duration(value),
    "s, projected": lambda value: duration(value, is_estimate=True),
    "/s": lambda value: f"{value:,.0f}" if value >= 10 else digits(value),
    "bytes": lambda value: f"{value / 1e6:,.0f} MB",
    "flop": lambda value: f"{value / 1e6:,.0f} MFLOP" if value >= 1e7 else f"{digits(value / 1e6)} MFLOP",
    "%": lambda value: f"{value:.1f} %" if value >= 1 else f"{digits(value)} %",
    "epochs": count,
    "": lambda value: count(value) if value == int(value) else f"{value:.3f}",
}
"""Every unit of a figure, and how people read one in it; `compare.csv` has what stands before a comma."""


def assumption(comparison: Comparison) -> str:
    """State the assumptions of the projected time."""
    return say(
        "Projected, not measured, for this machine ({processor}): {num} models like the measured ones, each "
        "training all of the profile's own epochs at the measured speed, so early stopping would end sooner. "
        "On a CPU {workers} single-threaded processes work side by side without slowing each other down and "
        "import and compile at the same time; on a GPU one process trains fleets of the measured size, "
        "although larger ones would be faster.",
        num=PROJECTED_MODELS,
        workers=comparison.num_workers,
        processor=comparison.machine.get("cpu", ABSENT),
    )


def formula_notes(comparison: Comparison) -> list[str]:
    """Say of each profile that is a formula under which name other pages have it as a baseline."""
    notes = []
    for profile, family in comparison.formulas.items():
        if family in BASELINES:
            note = say(
                "{profile} is fitted and has no network: it is the same formula that other pages use as the "
                "baseline “{baseline}”.",
                profile=marked(profile, comparison.formulas),
                baseline=baseline_in_words(family),
            )
            notes.append(note)
    return notes


def failure_rows(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the profiles that failed, each with its reason."""
    rows = sorted(comparison.failures.items())
    return [(marked(profile, comparison.formulas), reason) for profile, reason in rows]


def contents(comparison: Comparison) -> Iterator[tuple[str, list[str | Table]]]:
    """Yield the sections: a heading, and sentences, tables, and markup that only the page shows."""
    if comparison.failures:
        reasons = Table(["Profile", "Reason"], failure_rows(comparison), is_prose=True)
        yield say("Failed"), [shown_table(reasons)]
    if comparison.measurements:
        claims = [term(CLAIM_NOTE)] if CLAIMS.keys() & comparison.figures.keys() else []
        sentences = [*claims, assumption(comparison)]
        yield say("Worth and cost"), [*windows_note(comparison), error_table(comparison), *sentences]
        yield say("All figures"), [ratio_table(comparison), cost_table(comparison)]
    yield (
        say("Where these numbers come from"),
        [
            provenance(
                source=comparison.source,
                created_at=comparison.created_at,
                command=comparison.command,
                versions=comparison.versions,
                machine=comparison.machine,
            )
        ],
    )


def comparison_files(folder: Path) -> list[Path]:
    """List the files of a comparison in a folder: `compare.json`, `compare.csv` and `compare.html`."""
    return [folder / f"compare.{kind}" for kind in ("json", "csv", "html")]


def written(folder: Path) -> str:
    """Say where the files of a comparison are."""
    return f"Written: {', '.join(map(str, comparison_files(folder)))}"


def require_same_comparison(folder: Path, comparison: Comparison) -> None:
    """Refuse a folder that holds a comparison of other profiles, runs, series, candles or epochs.

    Args:
        folder: Where its files would be replaced; it need not exist.
        comparison: What is to be compared.

    Raises:
        ProfileError: If the folder holds another comparison, which may have taken hours.
        ArtifactError: If its `compare.json` is damaged, or of an unknown format.
    """
    file = comparison_files(folder)[0]
    if not file.exists():
        return
    fix = "Choose another param:out, or add param:overwrite to replace it"
    content = read_json_object(file, fix=fix)
    check_format(content, COMPARISON_FORMAT, kind="comparison", where=str(file), fix=fix)
    planned = json.loads(json.dumps(asdict(comparison)))
    keys = ("source", "series", "num_bars", "epochs", "num_repeats", "baseline")
    others = [key for key in keys if content.get(key) != planned[key]]
    if others:
        raise ProfileError(
            where=f"param:out {folder}",
            rule="a comparison is replaced only by the same one, measured again",
            got=f"a comparison there with another {listed(others)}",
            fix=fix,
        )


def write_comparison(folder: Path, comparison: Comparison) -> None:
    """Write `compare.json`, `compare.csv` and `compare.html` into a folder, each atomically."""
    files = comparison_files(folder)
    content = {
        "format": COMPARISON_FORMAT,
        **asdict(comparison),
        "assumption": assumption(comparison),
        "figures": comparison.figures,
        "ratios": comparison.ratios,
        "num_windows": comparison.num_windows,
        "num_shared_windows": comparison.num_shared_windows,
        "best_baselines": comparison.best_baselines,
        "claims": {name: claim for name, claim in CLAIMS.items() if name in comparison.num_bars},
    }
    write_json(files[0], content)
    write_text(files[1], comparison_csv(comparison))
    with language():
        write_text(files[2], comparison_page(comparison))


def comparison_csv(comparison: Comparison) -> str:
    """Return one line per profile and figure: median, smallest and largest, and its ratio to the baseline."""
    names = list(STATISTICS.values())
    columns = [*COMPARISON_COLUMNS, *names, *(f"ratio_{name}" for name in names)]
    rows: list[list[object]] = []
    for profile, figures in comparison.figures.items():
        for figure_name, spread in figures.items():
            ratio = comparison.ratios[profile].get(figure_name, {})
            ratios = [ratio.get(name) for name in names]
            unit, _, _ = FIGURES[figure_name].unit.partition(",")
            rows.append([profile, figure_name, unit, *spread.values(), *ratios])
    return Table(columns, rows).csv()


def comparison_page(comparison: Comparison) -> Html:
    """Return the page; charts on it need a browser, tables do not."""
    body = [verdict_box("", *advice(comparison))]
    body.append(row_of_cards(_profile_cards(comparison)))
    all_errors = profile_errors(comparison)
    explanations = []
    if all_errors:
        rows = {errors.profile: errors.dots for errors in all_errors}
        times = {errors.profile: duration(errors.projected_s, is_estimate=True) for errors in all_errors}
        label = say(
            "Error compared with the naive forecast's, difference in %: a dot is a series, the mean of its "
            "tasks; a diamond is the median of the series. Below the name, the projected time of 40 models."
        )
        chart = spread_figure(rows, dict.fromkeys(rows, "blue"), is_tested=False, second_lines=times)
        body.append(plot(chart, label))
        is_recommended = not reason_for_none(comparison, all_errors)
        explanations.append(_chart_note(is_recommended=is_recommended))
    for sentence in (*windows_note(comparison), *formula_notes(comparison), budget_sentence(comparison)):
        body.append(element("p", sentence, class_="soft"))
    explanations += cautions(comparison)
    if explanations:
        paragraphs = [element("p", sentence, class_="soft") for sentence in explanations]
        body.append(folded(say("How to read these figures"), *paragraphs))
    shown = windows_note(comparison)  # above
    for heading, parts in contents(comparison):
        content = [_to_markup(part) for part in parts if part not in shown]
        is_open = heading in {say("Failed"), say("Worth and cost")}
        if is_open:
            body += [element("h2", heading), *content]
        else:
            body.append(folded(heading, *content))
    names = say(", ").join(marked(name, comparison.formulas) for name in comparison.num_bars)
    title = say("Profiles compared: {names}", names=names)
    return document(f"v8: {title}", title, body, is_demo=comparison.is_demo)


def _profile_cards(comparison: Comparison) -> Iterator[Html]:
    """Show the error and the cost of each profile, the recommended one first, and how sure its place is."""
    ordered, has_recommended = recommended_first(comparison)
    for place, errors in enumerate(ordered[:MOST_CARDS]):
        strong = element("strong", change(1.0 + errors.change_pct / 100.0))
        lines = [element("span", say("than the naive forecast; {cost}", cost=errors.cost))]
        if has_recommended:
            others = [other for other in ordered if other is not errors]
            num_lower, num_series = num_series_lower(errors, others)
            sureness = say("Smallest error in {n} of {num} series", n=num_lower, num=num_series)
            lines.append(element("span", sureness))
        title = errors.profile
        if has_recommended and place == 0:
            title = say("{name}, recommended", name=title)
        figure = element("div", strong, *lines, class_="figure")
        yield element("section", element("h2", title), figure, class_="card")


def _chart_note(*, is_recommended: bool) -> str:
    """Explain the chart, and how a profile is chosen if one is recommended."""
    sentences = [
        say("A profile is a set of settings from which models are trained."),
        say(
            "In the naive forecast the close stays where it is; left of 0 the error is lower than its error."
        ),
    ]
    if is_recommended:
        rule = say(
            "Medians that are at most {points} points apart count as equal, and the fastest of those with "
            "the lowest is recommended.",
            points=NEGLIGIBLE_PCT,
        )
        sentences.append(rule)
    sentences.append(say("Whether the differences of profiles are significant is not tested here."))
    return " ".join(sentences)


def _to_markup(part: str | Table) -> Html:
    if isinstance(part, Table):
        return shown_table(part, class_="wrapped figures")
    return part if isinstance(part, Html) else element("p", part, class_="soft")


def error_table(comparison: Comparison) -> Table:
    """Return the figures to decide by: errors, the time of 40 models and memory, with claimed times."""
    errors = ["num_windows", "num_shared_windows", *(f"{task}_relative_mae" for task in TASKS)]
    errors += [f"{task}_relative_mae_to_best" for task in TASKS]
    costs = ["peak_process_bytes", "projected_40_s"]
    table = _figure_table("", comparison.figures, errors, comparison.formulas)
    table.rows += _certainty_rows(comparison)
    for task, by_profile in comparison.best_baselines.items():
        title = say("{task}: best baseline", task=titled(task))
        names = [baseline_in_words(by_profile.get(profile, ABSENT)) for profile in comparison.figures]
        table.rows.append([title, *names])
    table.rows += _figure_table("", comparison.figures, costs, comparison.formulas).rows
    for name, title in CLAIMED.items():
        claims = [CLAIMS.get(profile, {}).get(name) for profile in comparison.figures]
        if any(claims):
            cells = [between(map(duration, claim)) if claim else ABSENT for claim in claims]
            table.rows.append([term(title), *cells])
    return table


def _certainty_rows(comparison: Comparison) -> Iterator[list[object]]:
    """Yield how sure the errors relative to the best baselines are: their intervals, and shares of series."""
    to_best = comparison.to_best
    for task in comparison.best_baselines:
        summaries = [to_best[profile].get(task) for profile in comparison.figures]
        intervals = []
        shares = []
        for summary in summaries:
            interval = summary["interval"] if summary else None
            intervals.append(between(map(number, interval)) if interval else ABSENT)
            share = (
                say("{best} of {run}", best=summary["num_better"], run=summary["num_series"])
                if summary
                else ABSENT
            )
            shares.append(share)
        yield [say("{task}: 95 % interval of error ÷ best baseline", task=titled(task)), *intervals]
        yield [say("{task}: series with a lower error than the best baseline", task=titled(task)), *shares]


def cost_table(comparison: Comparison) -> Table:
    """Return every figure of every profile, with its spread if there are several repeats."""
    title = say(
        "Medians over {repeats} (smallest to largest), seconds are means of {num} series",
        repeats=plural(comparison.num_repeats, "repeat"),
        num=len(comparison.series),
    )
    return _figure_table(title, comparison.figures, FIGURES, comparison.formulas)


def ratio_table(comparison: Comparison) -> Table:
    """Return the figures of every profile as multiples of the baseline profile's."""
    baseline = marked(comparison.baseline, comparison.formulas)
    title = say("As multiples of {name}, within the same repeat", name=baseline)
    return _figure_table(
        title, comparison.ratios, FIGURES, comparison.formulas, lambda ratio: f"× {digits(ratio)}"
    )


def _figure_table(
    title: str,
    spreads: Spreads,
    names: Iterable[str],
    formulas: Mapping[str, str],
    write: Callable[[float], str] | None = None,
) -> Table:
    """Return a row a figure and a column a profile; figures that no profile has are left out."""
    table = Table(["", *(marked(profile, formulas) for profile in spreads)], [], title)
    for name in names:
        row_spreads = [figures.get(name) for figures in spreads.values()]
        if any(row_spreads):
            figure = FIGURES[name]
            write_figure = write or UNITS[figure.unit]
            cells = [_format_spread(spread, write_figure) for spread in row_spreads]
            table.rows.append([term(figure.title), *cells])
    return table


def _format_spread(spread: Mapping[str, float] | None, write: Callable[[float], str]) -> str:
    if spread is None:
        return ABSENT
    median, low, high = map(write, spread.values())
    return median if low == median == high else f"{median} ({between((low, high))})"


def budget_sentence(comparison: Comparison) -> str:
    """Say on what the profiles were trained, and what the budget is too small for."""
    num_bars = say(" or ").join(f"{number:,}" for number in sorted(set(comparison.num_bars.values())))
    data = say(
        "{num} series ({names}), {bars} newest candles each",
        num=len(comparison.series),
        names=say(", ").join(comparison.series),
        bars=num_bars,
    )
    if comparison.epochs is None:
        return say("Every profile trained its own epochs with early stopping on {what}.", what=data)
    return say(
        "Budget: at most {epochs} on {what}. That measures speed; compare-profiles with --full "
        "shows how well a profile forecasts, too.",
        epochs=plural(comparison.epochs, "epoch"),
        what=data,
    )


def cautions(comparison: Comparison) -> list[str]:
    """Warn of wrong conclusions from the figures, where there is reason to."""
    sentences = []
    if len(set(comparison.horizons.values())) > 1:
        formulas = comparison.formulas
        by_profile = [f"{marked(name, formulas)} {bars}" for name, bars in comparison.horizons.items()]
        horizons = say(", ").join(by_profile)
        sentences.append(
            say(
                "The profiles look differently far ahead, in bars: {horizons}. Near bars are easier, so "
                "error ÷ naive compares only profiles of equal horizon.",
                horizons=horizons,
            )
        )
    if comparison.num_repeats == 1:
        sentences.append(
            say(
                "One repeat has no spread: whatever else the machine did during a profile's turn counts as "
                "that profile's cost. compare-profiles with --repeat 3 shows how much that is."
            )
        )
    return sentences


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
    # Errors are compared where they are of the same steps, after a whole training.
    are_comparable = comparison.epochs is None and len(set(comparison.horizons.values())) == 1
    result = fastest.cost if reason and not are_comparable else str(fastest)
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


def windows_note(comparison: Comparison) -> list[str]:
    """Say on how many windows the profiles are compared; nothing if none was measured."""
    if not comparison.measurements:
        return []
    num_own = {marked(name, comparison.formulas): num for name, num in comparison.num_windows.items()}
    return [shared_windows_note(comparison.num_shared_windows, num_own)]
