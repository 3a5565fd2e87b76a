"""The report of a run as one self-contained page, `report.html`: first screen, leaderboard, sections.

The first screen shows the verdicts that are stored with the series (`v8.model.evaluation.leaderboard`), as
medians over the series; nothing is computed another way here.

All text passes through `v8.publish.report.markup`, which escapes it and builds the page: `filled` puts parts
into a template, `element` makes one tag. `say` translates a sentence and `term` a word (`v8.base.wording`).
Every series has a folded section (`v8.publish.report.series_section`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from v8.base.errors import listed
from v8.base.wording import ABSENT, Table, count, duration, epochs, number, p_value, percent, say, term
from v8.forecaster.series_artifact import ForecastSample
from v8.model.baselines.baselines import BASELINES, NAIVE
from v8.model.baselines.paths import RANGE_SHARE, RangeCoverage, pooled
from v8.model.evaluation.bootstrap import ErrorInterval
from v8.model.evaluation.leaderboard import (
    BEST,
    LeaderboardRow,
    compared,
    median,
)
from v8.model.evaluation.significance import (
    ALPHA,
    BEATS,
    LOSES,
    BaselineComparison,
    ComparisonResult,
    is_equal,
)
from v8.profile.columns import TASK_OHLC
from v8.profile.tasks import TASKS
from v8.publish.report import figures
from v8.publish.report.charts import candle_chart, has_candle_chart, plot, sample_note
from v8.publish.report.markup import (
    CHART_NOTICE,
    Html,
    content_in_language,
    document,
    element,
    facts,
    filled,
    folded,
    join,
    shown_table,
)
from v8.publish.report.series_section import ends_in_words, has_few_windows, series_section
from v8.publish.report.verdict import (
    RelativeError,
    TaskVerdict,
    baseline_in_words,
    best_baselines_in_words,
    best_in_words,
    in_words,
    scope_of,
    source_in_words,
    task_verdicts,
    titled,
)
from v8.runs.run_folder import RunRecord

MARK: Final = "●"
"""Follows a ratio that differs from 1 significantly."""

MOST_IN_ONE_FILE: Final = 40
"""A page of so many series, those of the default universe, is one file that can be sent as it is."""


@dataclass(frozen=True)
class RunPage:
    """The page of a run and its leaderboard, in the current language."""

    run: RunRecord
    rows: Sequence[LeaderboardRow]  # the leaderboard
    bodies: Mapping[str, Html | None]
    """For each series its `series_body`, or None where that is in a file."""
    sample: ForecastSample | None = None  # forecasts of one series, for the first screen
    intervals: Mapping[str, ErrorInterval] = field(default_factory=dict)
    """By task, how sure the headline is: the 95 % interval of its error relative to the best baseline's.

    Computed by `v8.publish.report.verdict.headline_intervals`.
    """

    @property
    def title(self) -> str:
        """What the browser's tab shows."""
        return f"v8: {self.run.profile_name}"

    @property
    def heading(self) -> str:
        """The headline."""
        return say("Run of profile {name}", name=self.run.profile_name)

    @property
    def is_demo(self) -> bool:
        """Whether a market was simulated."""
        return not self.run.is_publishable or any(row.is_demo for row in self.rows)

    def whole(self, languages: Mapping[str, str] = MappingProxyType({})) -> Html:
        """Return the page; `languages` as of `document`."""
        return document(
            self.title,
            self.heading,
            [self.content()],
            is_demo=self.is_demo,
            has_files=is_in_files(self.run),
            has_candles=True,
            languages=languages,
        )

    def in_language(self, languages: Iterable[str]) -> str:
        """Return the file that a page in another language loads; `languages` are all, that one's first."""
        return content_in_language(
            self.title, self.heading, [self.content()], is_demo=self.is_demo, languages=languages
        )

    def content(self) -> Html:
        """Return what is below the headline."""
        run = self.run
        rows = self.rows
        # The first screen offers the series whose candle chart is in this page already.
        with_chart = sorted(row.series for row in rows if has_candle_chart(self.bodies[row.series] or ""))
        unevaluated: str = ""
        if not run.is_evaluated:
            unevaluated = element("p", say("The models of this run were not evaluated."))
        origin = provenance(
            source=run.source,
            created_at=run.created_at,
            command=run.command,
            profile_digest=run.profile_digest,
            versions=run.versions,
            machine=run.machine,
        )
        return filled(
            "v8.publish.report",
            "run.html",
            opening=first_screen(rows, self.sample, with_chart, self.intervals) if rows else "",
            # A series may be done whose files cannot be read: it has no row and is not counted.
            done=len(rows) if run.is_evaluated else len(run.done),
            num=len(run.series),
            failed=say(" {num} failed.", num=len(run.reasons)) if run.reasons else "",
            unevaluated=unevaluated,
            holes=_few_windows(rows),
            failures=_failures(run),
            leaderboard=_leaderboard(rows, self.bodies) if rows else "",
            provenance=origin,
        )


def is_in_files(run: RunRecord) -> bool:
    """Return whether the sections of a run are in files of their own."""
    return len(run.series) > MOST_IN_ONE_FILE


def first_screen(
    rows: Sequence[LeaderboardRow],
    sample: ForecastSample | None,
    others: Sequence[str] = (),
    intervals: Mapping[str, ErrorInterval] | None = None,
) -> Html:
    """Return the first screen of a report of at least one evaluated series: verdicts and forecasts.

    Args:
        rows: The leaderboard.
        sample: Candles and forecasts of one series; None without stored forecasts.
        others: Names of the series whose charts can be chosen instead, see `candle_chart`.
        intervals: By task that of the error relative to the best baseline's, see `headline_intervals`.
    """
    compared_tasks = {task for task, _ in compared(rows)}
    candles = Html()
    if sample:
        is_demo = any(row.is_demo for row in rows)
        candles = candle_chart(sample, sample_note(sample), others, is_demo=is_demo)
    return filled(
        "v8.publish.report",
        "opening.html",
        scope=scope_of(rows),
        candles_of=_candles_of(rows),
        cards=join(task_cards(rows, intervals)),
        price_range=_price_range(rows),
        candles=candles,
        charts=join(plot(chart, chart.title) for chart in figures.verdict_figures(rows)),
        tasks=facts((titled(task), term(TASKS[task].sentence)) for task in TASKS if task in compared_tasks),
        alpha=percent(ALPHA, 0),
    )


def _candles_of(rows: Sequence[LeaderboardRow]) -> str:
    """Say whose candles were evaluated, and from when to when."""
    spans = [row.split["test"] for row in rows if "test" in row.split]
    if not spans:
        return ""
    return say(
        "Candles: {source}, test spans from {first} to {last}.",
        source=listed(sorted({source_in_words(row.source) for row in rows})),
        first=min(span["first_open"] for span in spans)[:10],
        last=max(span["last_open"] for span in spans)[:10],
    )


def task_cards(
    rows: Sequence[LeaderboardRow], intervals: Mapping[str, ErrorInterval] | None = None
) -> Iterator[Html]:
    """Show the verdict on each task, in the order of `TASKS`; arguments as of `task_verdicts`."""
    best_names = best_baselines_in_words(rows)
    for of_task in task_verdicts(rows, intervals):
        yield task_card(of_task, best_names)


def task_card(verdict: TaskVerdict, best_names: str = "") -> Html:
    """Return a card with the verdict on a task, in figures; a pointer shows which baselines `BEST` is."""
    naive = verdict.naive
    best = verdict.best
    chip = _chip(naive)
    best_chip = _chip(best) if best else Html()
    shared: list[Html] = []
    if best and chip == best_chip:  # what is the same for both is written once, below them
        shared = [chip]
        chip = best_chip = Html()
    figures_of_task = [_figure(naive, say("the naive forecast"), chip, _assumption(NAIVE))]
    if best:
        meaning = best_names if verdict.best_name == BEST else _assumption(verdict.best_name)
        other = best_in_words(verdict.best_name, is_below_naive=best.is_below(naive), has_key=False)
        figures_of_task.append(_figure(best, other, best_chip, meaning))
    else:
        nothing = say("No baseline is better than the naive forecast.")
        figures_of_task.append(element("p", nothing, class_="soft"))
    # A class: the policy of the app allows no style in an element.
    title = element("h2", titled(verdict.task), class_=f"task-{TASKS[verdict.task].colour}")
    return element("section", title, element("div", *figures_of_task), *shared, class_="card")


def row_of_cards(cards: Iterable[Html]) -> Html:
    """Put cards side by side."""
    return element("div", *cards, class_="cards row")


def _assumption(name: str) -> str | None:
    """Say what a baseline assumes, for a pointer; None where its name is not known."""
    baseline = BASELINES.get(name)
    return term(baseline.sentence) if baseline else None


def _figure(error: RelativeError, other: str, chip: Html, title: str | None = None) -> Html:
    """Show a difference of errors in per cent, and whose error the other one is; then comes its chip."""
    multiple = error.multiple
    if multiple is None or is_equal(multiple, 1.0):
        label = say("compared with {other}", other=other)
    else:
        label = say("than {other}", other=other)
    strong = element("strong", change(multiple), class_=_style(error))
    certainty = element("span", error.certainty) if error.certainty else ""
    return element("div", strong, element("span", label, title=title), chip, certainty, class_="figure")


def _chip(error: RelativeError) -> Html:
    """Say whether a difference is significant; empty where there is no difference."""
    if not error.significance:
        return Html()
    # Its mark is filled where most series differ significantly, and half where some do.
    part = " some" if error.is_of_some and not error.is_of_most else ""
    return element("span", error.significance, class_=f"chip {_style(error)}{part}")


def _style(error: RelativeError) -> str:
    """Return the CSS class of a difference: it has a colour where most series differ significantly."""
    if not error.is_of_most:
        return "unclear"
    return "better" if (error.multiple or 1.0) < 1.0 else "worse"


def change(multiple: float | None) -> Html:
    """Write by how many per cent an error is lower or higher than another, given their ratio.

    The direction is a word: a sign alone reads as a gain where the error is higher.

    >>> change(0.854), change(1.0204)
    ('14.6 %<small>lower error</small>', '2.0 %<small>higher error</small>')
    >>> change(1.0), change(1.0003), change(None)
    ('<small>the same error</small>', '&lt; 0.1 %<small>higher error</small>', '–')
    """
    if multiple is None:
        return join([ABSENT])
    if is_equal(multiple, 1.0):
        return element("small", say("the same error"))
    direction = say("lower error") if multiple < 1.0 else say("higher error")
    return join([figures.amount(figures.change_pct(multiple)), element("small", direction)])


def _price_range(rows: Sequence[LeaderboardRow]) -> Html:
    """Say how often all bars ahead stayed within the range of prices; empty where that is not evaluated."""
    coverage = pooled(row.price_range for row in rows)
    if coverage is None:
        return Html()
    words, style = _range_verdict(coverage)
    sentence = say(
        "In {share} of {num} forecasts all bars ahead stayed inside the forecast range, "
        "which should hold them in {stated}: {verdict}.",
        share=percent(coverage.share),
        num=count(coverage.num_windows),
        stated=percent(RANGE_SHARE, 0),
        verdict=words,
    )
    strong = element("strong", percent(coverage.share), class_=style)
    figure = element("div", strong, element("span", sentence), class_="figure")
    return element("section", element("h2", say("Range of prices")), figure, class_="card")


def _range_verdict(coverage: RangeCoverage) -> tuple[str, str]:
    """Compare a share of windows with the stated one: in words, and the CSS class for it.

    They differ clearly beyond two standard errors.
    """
    if not coverage.has_enough_windows:
        return say("too few windows to tell"), "unclear"
    if coverage.is_too_narrow:
        return say("too narrow here"), "worse"
    if coverage.share > RANGE_SHARE + 2.0 * coverage.standard_error:
        return say("wider than needed here"), "unclear"
    return say("about as often as stated"), "unclear"


def _failures(run: RunRecord) -> Html:
    """Show why series failed; empty where none did."""
    if not run.reasons:
        return Html()
    table = Table(["Series", "Reason"], sorted(run.reasons.items()), is_prose=True)
    return join([element("h2", say("Failed series")), shown_table(table)])


def provenance(
    *,
    source: str,
    created_at: str,
    command: str,
    versions: Mapping[str, Any],
    machine: Mapping[str, Any],
    profile_digest: str | None = None,
) -> Html:
    """List where the numbers of a page come from.

    Args:
        source: Name of the candle source.
        created_at: When the work began, ISO 8601.
        command: Command line that did it.
        versions: Versions of packages, by name.
        machine: Description of the machine, by property.
        profile_digest: Digest of the profile, where there is one.
    """
    pairs = [("candle source", source_in_words(source)), ("started", created_at), ("command", command)]
    if profile_digest is not None:
        pairs.append(("profile digest", element("span", profile_digest[:12], title=profile_digest)))
    pairs += [(say("version of {name}", name=name), str(value)) for name, value in versions.items()]
    for name, value in machine.items():
        words = f"machine: {name.removesuffix('_bytes').replace('_', ' ')}"
        is_size = name.endswith("_bytes") and isinstance(value, int)
        pairs.append((words, f"{value / 1e6:,.0f} MB" if is_size else str(value)))
    pairs.append(("charts", CHART_NOTICE))
    return folded(say("Where these numbers come from"), facts(pairs))


def _leaderboard(rows: Sequence[LeaderboardRow], bodies: Mapping[str, Html | None]) -> Html:
    """Show the medians, a line for each series, every baseline explained, then the sections.

    A pointer over a ratio shows the outcome and the p-value.
    """
    comparisons = compared(rows)
    num_columns = Counter(TASKS[task].title for task, _ in comparisons)
    header = ["Series", *(_column_head(name) for _, name in comparisons)]
    header += ["direction, step 1", "best epoch", "time"]
    lines = [_median_cells(rows, comparisons)]
    lines += [_leaderboard_cells(row, comparisons) for row in rows]
    groups = [("", 1), *num_columns.items(), ("", 3)]
    order = say("Ordered by {task} × naive, the lowest error first.", task=titled(TASK_OHLC))
    names = {name for row in rows for errors in row.evaluation.errors.values() for name in errors}
    best = best_baselines_in_words(rows)
    briefs = [
        say("{name}: {words}", name=baseline_in_words(name, has_key=True), words=term(baseline.brief))
        for name, baseline in BASELINES.items()
        if name in names and baseline.brief
    ]
    brief = say("In a few words: {parts}.", parts=say("; ").join(briefs))
    baselines = facts(
        (baseline_in_words(name, has_key=True), term(baseline.sentence))
        for name, baseline in BASELINES.items()
        if name in names
    )
    return filled(
        "v8.publish.report",
        "leaderboard.html",
        table=shown_table(Table(header, lines, order), groups=groups, class_="wrapped"),
        mark=MARK,
        num=len(rows),
        brief=element("p", brief, class_="soft") if briefs else "",
        p_table=shown_table(_p_table(rows, comparisons), groups=groups[:-1], class_="wrapped"),
        best=element("p", say("Best baselines: {names}.", names=best), class_="soft") if best else "",
        baselines=baselines,
        sections=join(series_section(row, bodies[row.series]) for row in rows),
    )


def _column_head(name: str) -> str:
    """Name the forecast that a column compares with; the sign is never alone on a line."""
    return f"×\u00a0{baseline_in_words(name)}"


_Comparisons = Mapping[tuple[str, str], Mapping[str, BaselineComparison]]
"""By task and the name of a baseline: the comparison of each series, as `leaderboard.compared` returns it."""


def _median_cells(rows: Sequence[LeaderboardRow], comparisons: _Comparisons) -> list[str]:
    cells = [say("median")]
    for by_series in comparisons.values():
        cells.append(number(median(comparison.relative_mae for comparison in by_series.values())))
    best_epoch = median(row.best_epoch for row in rows) or 0
    epochs_run = median(row.epochs_run for row in rows) or 0
    cells.append(percent(median(row.hit_rate for row in rows)))
    cells.append(epochs(best_epoch, epochs_run))
    cells.append(duration(median(row.total_seconds for row in rows)))
    return cells


def _leaderboard_cells(row: LeaderboardRow, comparisons: _Comparisons) -> list[str]:
    cells: list[str] = [element("a", row.series, href=f"#{row.series}")]
    for (_, name), by_series in comparisons.items():
        comparison = by_series.get(row.series)
        if comparison:
            p = comparison.corrected_p_value
            cells.append(marked(comparison.relative_mae, comparison.outcome, name, p))
        else:
            # The naive forecast is compared in every task, so the profile of this row lacks the task.
            cells.append(say("no such task") if name == NAIVE else ABSENT)
    cells.append(element("span", percent(row.hit_rate), title=f"95 %: {ends_in_words(row.hit_rate_95)}"))
    return [*cells, epochs(row.best_epoch, row.epochs_run), duration(row.total_seconds)]


def _p_table(rows: Sequence[LeaderboardRow], comparisons: _Comparisons) -> Table:
    """Show the corrected p-values of the leaderboard, where nothing can be pointed at."""
    header = ["Series", *(_column_head(name) for _, name in comparisons)]
    lines = []
    for row in rows:
        of_row = [by_series.get(row.series) for by_series in comparisons.values()]
        lines.append([row.series, *(p_value(one.corrected_p_value if one else None) for one in of_row)])
    return Table(header, lines)


def marked(multiple: float | None, outcome: ComparisonResult, name: str, p: float | None) -> Html:
    """Show a ratio of errors, coloured and marked where it is significant; a pointer shows outcome and p."""
    style = {BEATS: "better", LOSES: "worse"}.get(outcome)
    mark = element("span", MARK if style else "", class_="mark")
    tooltip = say("{outcome}, corrected p {p}", outcome=in_words(outcome, name), p=p_value(p))
    return element("span", number(multiple), mark, class_=style, title=tooltip)


def _few_windows(rows: Sequence[LeaderboardRow]) -> Html:
    """Name the series of which holes leave too few windows; empty without one."""
    few = [row.series for row in rows if has_few_windows(row)]
    if not few:
        return Html()
    sentence = say(
        "Holes in the candles, and the warm-up of the indicators after each, leave less than half of the "
        "windows of: {names}.",
        names=listed(few),
    )
    return element("p", sentence)
