"""The report of a run as one self-contained page, `report.html`, and the leaderboard of any page.

All text passes through `v8.views.markup`, which escapes it and makes the page. A series
has a folded section: forecasts, errors by horizon, training, candles, time.

A section with its charts is 50 to 100 kB, so a page of a thousand would be 80 MB. Beyond `MOST_IN_ONE_FILE`
series the page holds a line each, and a section comes from its file when its line is opened, such as
`report/series/BTCUSDT-15m.js`. A page that was opened from a disk may not read files, but it may run one that
its own script names: so each file is a call of that script's `v8Section` with the name and the markup as two
texts, and says nothing else but, in its first line, what it was drawn from; one that is up to date is not
drawn again.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from v8.artifacts.metadata import HISTORY_FILE, METADATA_FILE
from v8.artifacts.run_folder import RunRecord
from v8.artifacts.series_artifact import FORECASTS_FILE, ForecastSample
from v8.formulas.baselines import BASELINES, NAIVE, called
from v8.losses.judgement import MODEL, Judgement, QuantileJudgement
from v8.losses.leaderboard import History, LeaderboardRow, SeriesResult, Wins, compared, median, rank_results
from v8.losses.metrics import StepDirection
from v8.losses.table import ALPHA, BEATS, LOSES, Against
from v8.quantile_levels import interval_names
from v8.records import MAX_FILE_BYTES
from v8.storage import digest_bytes, open_given, read_given, write_text
from v8.tasks import TASKS
from v8.version import VERSION
from v8.views import figures, markup
from v8.views.markup import Html, element, facts, join, plot, shown_table
from v8.wording import ABSENT, Table, count, duration, epochs, number, p_value, percent, price, spaced

if TYPE_CHECKING:
    from v8.views.comparison import Comparison

MARK: Final = "●"
"""Stands beside a number that differs from 1 by more than chance."""

LEADERBOARD_NOTE: Final = (
    "The model's mean absolute error on the test span, over all steps and columns, in returns, as a "
    "multiple of that of the forecast named above it: below 1 it is the smaller one. Ordered by the "
    f"candles' multiple of naive, best first. {MARK}, in blue or orange: better or worse by more than "
    "chance; without it there is no real difference. The best baseline "
    "of a task is the forecast without a network whose multiple of naive has the smallest median over "
    "these series."
)

_SPAN_KEYS: Final = ("first_open", "last_open", "rows", "num_windows")
"""What the table of spans shows of each, in the order of its columns."""

_DIRECTION_COLUMNS: Final = (
    *("step", "hit rate", "95 %", "always up", "windows counted"),
    *("worth, independent", "truth flat", "forecast flat"),
)

SECTIONS_FOLDER: Final = "report/series"
"""Beside `report.html`."""

MOST_IN_ONE_FILE: Final = 40
"""A page of so many series, those of the default universe, is one file that can be sent as it is."""

_MAX_STAMP: Final = 200
"""Letters of the first line, and more."""


def run_page(run: RunRecord, results: Sequence[SeriesResult], sections: Mapping[str, Html]) -> Html:
    """Return the whole page of a run and its finished series, in any order.

    Sections are each one's `series_section`, or its `series_line` where the section lies in a file.
    """
    rows, is_folded = rank_results(results), is_in_files(run)
    failed = f" {len(run.reasons)} failed." if run.reasons else ""
    said = f"{len(rows)} of {len(run.series)} series are finished.{failed}"
    parts = [element("p", said), summary_cards(rows)]
    if run.reasons:
        failures = Table(["Series", "Reason"], sorted(run.reasons.items()), is_prose=True)
        parts += [element("h2", "Failed series"), shown_table(failures)]
    if rows:
        charts = _folded("Charts of all series", *_leaderboard_charts(rows), is_folded=is_folded)
        parts += [element("h2", "Leaderboard"), charts, *leaderboard(rows, "#{}")]
    parts += _reading_guide(results)
    if rows:
        stages = figures.stage_figure({row.series: row.seconds for row in rows})
        label = "Wall time per stage and series, in seconds; members of one fleet share its time evenly."
        shown = _folded("Time of each series", plot(stages, label), is_folded=is_folded)
        parts += [element("h2", "Series"), *(sections[row.series] for row in rows)]
        parts += [element("h2", "Time per stage"), shown]
    parts += [element("h2", "Where these numbers come from"), provenance(run)]
    title, heading = f"v8 run: {run.profile_name}", f"Run of profile {run.profile_name}"
    is_demo = not run.is_publishable or any(result.is_demo for result in results)
    return markup.document(title, heading, parts, is_demo=is_demo, has_files=is_folded)


def is_in_files(run: RunRecord) -> bool:
    """Tell whether the sections of a run lie in files of their own."""
    return len(run.series) > MOST_IN_ONE_FILE


def _folded(title: str, *content: Html, is_folded: bool) -> Html:
    """Fold charts of very many rows away: a thousand take seconds to draw, and the page opens at once."""
    return element("details", element("summary", title), *content) if is_folded else join(content)


def _reading_guide(results: Iterable[SeriesResult]) -> list[Html]:
    shown = {name for one in results for errors in one.judgement.errors.values() for name in errors}
    return [
        element("h2", "How to read this"),
        element(
            "p",
            "Every error stands beside forecasts that need no training. The naive one is "
            f"“{spaced(NAIVE)}”. The best baseline is the hardest of the others to beat: a model that "
            "loses to it was not worth its training. Skill is 1 minus the error divided by that of the "
            "forecast beside it: 1 is perfect, 0 is equal, negative is worse. The close of a coin is close "
            "to a random walk, so 1.000 times naive is an honest result for it; ranges, bands and volatility "
            "can be forecast better.",
        ),
        element(
            "p",
            "“Beats” and “loses to” compare two averages on one test span, and are said only where chance "
            f"alone would part them as far in fewer than {ALPHA:.0%} of the cases (p); otherwise there is no "
            "real difference. Windows overlap, so the test reckons with errors that move together, and with "
            "many tests at once. Direction counts windows in which both forecast and truth moved; its 95 % "
            "interval takes them for the fewer independent ones they are worth. "
            "None of this is advice to trade.",
        ),
        facts((spaced(name), about.sentence) for name, about in BASELINES.items() if name in shown),
    ]


def provenance(made: "RunRecord | Comparison") -> Html:
    """List where the numbers of a page come from."""
    digest = [("profile digest", made.profile_digest)] if isinstance(made, RunRecord) else []
    return facts(
        [
            ("candle source", made.source),
            ("started", made.created_at),
            ("command", made.command),
            *digest,
            *((f"version of {name}", str(value)) for name, value in made.versions.items()),
            *((f"machine: {name.replace('_', ' ')}", str(value)) for name, value in made.machine.items()),
        ]
    )


def summary_cards(rows: Sequence[LeaderboardRow]) -> Html:
    """Show one card a task: the median beside naive and the best baseline, and how many beat them."""
    every, cards = compared(rows), []
    for of in dict.fromkeys(task for task, _ in every):
        said = chain.from_iterable(_said_of(wins) for (task, _), wins in every.items() if task == of)
        cards.append(element("div", element("h3", TASKS[of].title), *said))
    return element("div", *cards, class_="cards")


def _said_of(wins: Wins) -> Iterator[Html]:
    is_naive = wins.name == called(NAIVE)
    beside = "the naive forecast" if is_naive else f"{spaced(wins.name)}, the best baseline"
    yield element("p", element("b", f"× {number(wins.median_multiple)}"), beside, class_="lead")
    yield element(
        "p",
        f"Of {wins.num_series}, {wins.num_beating} beat it and {wins.num_losing} lose to it by more than "
        f"chance; {wins.num_undecided} without a real difference.",
    )


def _leaderboard_charts(rows: Sequence[LeaderboardRow]) -> Iterator[Html]:
    for beside, its in figures.BESIDE.items():
        label = (
            f"Mean absolute error as a multiple of that of {beside}: left of 1 is less. Filled dots differ "
            f"from 1 by more than chance (corrected p below {ALPHA:g}), hollow ones may be luck."
        )
        yield plot(figures.multiples_figure(rows, its), label)


def leaderboard(rows: Sequence[LeaderboardRow], link: str) -> Iterator[Html]:
    """Show one line a series, of at least one, the median first, and fold away verdicts and p-values.

    `link` has `{}` in place of the name of a series.
    """
    every = compared(rows)
    spans = Counter(TASKS[task].title for task, _ in every)
    head = ["Series", *(f"× {spaced(name)}" for _, name in every), "direction, step 1", "best epoch", "time"]
    best, run = (median(getattr(row, name) for row in rows) for name in ("best_epoch", "epochs_run"))
    middle = [number(wins.median_multiple) for wins in every.values()]
    middle += [percent(median(row.hit_rate for row in rows)), epochs(best or 0, run or 0)]
    lines = [["median", *middle, duration(median(row.total_seconds for row in rows))]]
    for row in rows:
        told = row.compared
        cells: list[str] = [element("a", row.series, href=link.format(row.series))]
        for key in every:
            lacking = "no such task" if key[1] == called(NAIVE) else ABSENT
            cells.append(_multiple_cell(told[key]) if key in told else lacking)
        cells.append(element("span", percent(row.hit_rate), title=f"95 %: {_ends(row.hit_rate_95)}"))
        lines.append([*cells, epochs(row.best_epoch, row.epochs_run), duration(row.total_seconds)])
    groups = [("", 1), *spans.items(), ("", 3)]
    yield element("p", LEADERBOARD_NOTE, class_="soft")
    yield shown_table(Table(head, lines), groups=groups, class_="wrapped")
    yield _verdicts(rows)


def _multiple_cell(against: Against) -> Html:
    """Show a multiple, coloured and marked where it is better or worse and no luck; a pointer finds p."""
    style = {BEATS: "better", LOSES: "worse"}.get(against.outcome)
    mark = element("span", MARK if style else "", class_="mark")
    said = f"{against.verdict}, corrected p {p_value(against.corrected_p_value)}"
    return element("span", number(against.multiple), mark, class_=style, title=said)


def _verdicts(rows: Sequence[LeaderboardRow]) -> Html:
    """Fold away one line a comparison: what the leaderboard tells by colour and mark, in words and digits."""
    head = ["Series", "task", "× error", "skill", "verdict", "p", "p, corrected"]
    cells = (
        [
            *(row.series, TASKS[task].title, number(one.multiple), number(one.skill), one.verdict),
            *map(p_value, (one.p_value, one.corrected_p_value)),
        ]
        for row in rows
        for (task, _), one in row.compared.items()
    )
    note = (
        "Skill is 1 minus the multiple. p: chance of a difference this large if there were none "
        f"(Diebold-Mariano), corrected for {len(rows)} series at once (Benjamini-Hochberg). The same "
        "numbers, and the 95 % intervals of direction, are in leaderboard.csv."
    )
    title = element("summary", "Verdicts and p-values")
    return element("details", title, element("p", note, class_="soft"), shown_table(Table(head, cells)))


def _ends(interval: tuple[float, float] | None) -> str:
    return ABSENT if interval is None else " to ".join(map(percent, interval))


def series_section(result: SeriesResult, history: History, sample: ForecastSample | None) -> Html:
    """Return the folded section of one series; `sample` is None beside models that were saved without."""
    return element("details", _summary(result), series_body(result, history, sample), id=result.series)


def series_line(result: SeriesResult) -> Html:
    """Return the folded section of one series whose body comes from its file when it is opened."""
    waiting = element("p", f"Comes from {SECTIONS_FOLDER} beside this page.", class_="soft far")
    file = quote(section_file(result.series))
    return element("details", _summary(result), waiting, id=result.series, data_file=file)


def _summary(result: SeriesResult) -> Html:
    """Compare one series with naive and with the baseline that is best on this series alone."""
    judgement, told = result.judgement, []
    for task in judgement.tasks:
        verdicts = [judgement.verdict(task, one) for one in (NAIVE, judgement.best_baseline(task))]
        told.append(f"{TASKS[task].title} {', '.join(dict.fromkeys(verdicts))}")
    return element("summary", result.series, element("span", "; ".join(told)))


def series_body(result: SeriesResult, history: History, sample: ForecastSample | None) -> Html:
    """Return what is in the section of one series, drawn from what `series_section` gets."""
    judgement, total_s = result.judgement, result.total_seconds
    charts = (
        plot(figures.error_figure([judgement], task), f"{TASKS[task].title}: mean absolute error ÷ naive's")
        for task in judgement.tasks
    )
    # What did not occur among the candles is left out: zeros, empty lists and None.
    found = ((spaced(name), _shown(value)) for name, value in result.candle_report.items() if value)
    times = [
        [spaced(stage), join([markup.share_bar(stage_s / total_s if total_s else 0.0), duration(stage_s)])]
        for stage, stage_s in result.seconds.items()
    ]
    parts = [
        element("h3", "Forecasts of the test span's end"),
        _forecasts(sample),
        element("h3", "Error by step ahead"),
        element("p", "A click on a name shows or hides its line.", class_="soft"),
        element("div", *charts, class_="charts"),
        *(_error_table(judgement, task) for task in judgement.errors),
        *(_interval_tables(result.quantiles) if result.quantiles else ()),
        element("h3", "Direction of the close"),
        shown_table(Table(_DIRECTION_COLUMNS, map(_direction_cells, judgement.direction))),
        element("h3", "Training"),
        *_training(result, history),
        element("h3", "Spans"),
        *_split(result.split),
        element("h3", f"Candles, from {result.source}"),
        facts(found),
        element("h3", "Time per stage"),
        shown_table(Table(["stage", "wall time"], [*times, ["all", duration(total_s)]])),
    ]
    return join(parts)


def _forecasts(sample: ForecastSample | None) -> Html:
    if sample is None:
        return element("p", "No forecasts are kept beside this model.")
    num_steps = len(next(iter(sample.issued[0].values.values())))
    every = "every bar" if num_steps == 1 else f"every {num_steps} bars"
    spans = "the forecast low to high. It is no interval: nothing says how often the truth stays within."
    if told := " and ".join(interval_names(sample.levels)):
        spans = f"the {told} interval of the close: so often should the truth stay within, at each step."
    note = (
        f"Newest {len(sample.open_time_s)} candles of the test span, times in UTC. A forecast was issued "
        f"{every}; each shaded area opens at the close it knew last and spans {spans}"
    )
    return plot(figures.forecast_figure(sample), note)


def _error_table(judgement: Judgement, task: str) -> Html:
    units = ("of last close", "price") if TASKS[task].is_price else ("in %", "as is")
    head = ["", *(f"{kind} {unit}" for unit in units for kind in ("MAE", "RMSE"))]
    rows = []
    for name in (MODEL, *judgement.tasks[task].significance):
        errors, beside = judgement.errors[task][name], [ABSENT] * 3
        if name != MODEL:
            absolute, squared = (number(judgement.skill(task, kind, name)) for kind in ("mae", "rmse"))
            beside = [absolute, p_value(judgement.p_value(task, name)), squared]
        cells = [percent(grid.overall, 4) for grid in (errors.mae_return, errors.rmse_return)]
        cells += [price(grid.overall) for grid in (errors.mae_price, errors.rmse_price)]
        rows.append([spaced(name), *cells, *beside])
    head += ["model's skill, MAE", "p of it", "model's skill, RMSE"]
    columns = ", ".join(map(spaced, TASKS[task].columns))
    return shown_table(Table(head, rows, f"{TASKS[task].title}, over all steps and {columns}"))


def _interval_tables(judged: QuantileJudgement) -> Iterator[Html]:
    """Show how the quantiles of one series did, beside those of the baselines."""
    yield element("h3", "Quantiles and intervals")
    note = (
        "CRPS is twice the mean pinball loss over the levels, in returns: what the mean absolute error is "
        "for one number. Within: how many of the truths lay in the interval; width: its mean, in returns."
    )
    yield element("p", note, class_="soft")
    names, by_step = judged.named_intervals(), []
    each = [f"{what} {name}" for name in names for what in ("within", "width of")]
    head = ["", "CRPS", *each, "model's CRPS ÷ its", "p of it"]
    for task, about in judged.tasks.items():
        title, rows = TASKS[task].title, []
        for name, errors in about.errors.items():
            cells = [spaced(name), percent(errors.crps, 4)]
            for place in range(len(names)):
                cells += [percent(errors.mean_coverage(place)), percent(errors.mean_width(place), 3)]
            test = about.significance.get(name)
            told = [number(about.multiple(name)), p_value(test.p_value)] if test else [ABSENT] * 2
            rows.append([*cells, *told])
        yield shown_table(Table(head, rows, f"{title}, over all steps"))
        ours = [about.errors[MODEL].coverage_by_step(place) for place in range(len(names))]
        for step in range(len(about.errors[MODEL].pinball[0])):
            by_step.append([f"{title}, {step + 1}", *(percent(shares[step]) for shares in ours)])
    within = [f"within {name}" for name in names]
    yield shown_table(Table(["task and step", *within], by_step, "The model's, step by step"))


def _direction_cells(step: StepDirection) -> list[str]:
    always_up = step.num_rises / step.num_counted if step.num_counted else None
    counts = (step.num_counted, round(step.num_effective), step.num_flat_truth, step.num_flat_forecast)
    shares = [percent(step.rate), _ends(step.interval), percent(always_up)]
    return [str(step.step), *shares, *map(count, counts)]


def _training(result: SeriesResult, history: History) -> Iterator[Html]:
    kept = f"Weights of epoch {result.best_epoch} of {result.epochs_run} were kept."
    if result.epochs_run == 0:
        kept = "There is no network: the formula was fitted to the train span."
    elif result.best_epoch == 0:
        kept = f"None of {result.epochs_run} epochs beat the untrained network, which was kept."
    yield element("p", kept)
    if history:
        curve = figures.learning_figure(history, result.best_epoch)
        yield plot(curve, "Loss per epoch and the epoch kept (dashed)")


def _split(split: Mapping[str, Any]) -> Iterator[Html]:
    spans = {name: span for name, span in split.items() if isinstance(span, Mapping)}
    rows, ranges = [], {}
    for at, (name, span) in enumerate(spans.items()):
        colour = element("rect", width=12, height=12, class_=f"split{at}")
        swatch = element("svg", colour, width=12, height=12, class_="bar")
        rows.append([join([swatch, name]), *(_shown(span.get(key)) for key in _SPAN_KEYS)])
        match span.get("rows"):
            case [int(first), int(end)]:
                ranges[name] = first, end
    note = "Row by row in time order; red: the embargo, which no window may touch from both sides."
    yield element("figure", element("figcaption", note), markup.split_bar(ranges), class_="wide")
    yield shown_table(Table(["span", *map(spaced, _SPAN_KEYS)], rows))
    yield facts((spaced(name), _shown(value)) for name, value in split.items() if name not in spans)


def _shown(value: object) -> str:
    """Write a JSON value for people, nested ones on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{spaced(str(name))} {_shown(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(_shown(item) for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return count(value) if isinstance(value, int) else f"{value:.4g}"
    return ABSENT if value is None else str(value)


def section_file(series: str) -> str:
    """Return where the section of a series lies, beside the page.

    >>> section_file("BTCUSDT-15m")
    'report/series/BTCUSDT-15m.js'
    """
    return f"{SECTIONS_FOLDER}/{series}.js"


def write_section(run: Path, series: str, served: Path, draw: Callable[[], Html], *, is_anew: bool) -> None:
    """Write the section of a series beside the page of a run, atomically.

    It is drawn anew if asked, or if it was drawn from other files than lie in `served`, the model shown.
    """
    parts = [VERSION.encode("ascii")]
    for name in (METADATA_FILE, HISTORY_FILE, FORECASTS_FILE):
        with suppress(FileNotFoundError):  # older models have no forecasts beside them
            parts.append(read_given(served / name, MAX_FILE_BYTES))
    file, stamp = run / section_file(series), f"// drawn from {digest_bytes(*parts)}"
    if not is_anew:
        with suppress(OSError), open_given(file) as stream:
            if stream.readline(_MAX_STAMP) == f"{stamp}\n".encode():
                return
    # ASCII only, and nothing in it that ends a script.
    name, markup = (json.dumps(text).replace("<", "\\u003c") for text in (series, draw()))
    write_text(file, f"{stamp}\nv8Section({name}, {markup});\n")
