"""What a comparison of profiles measured, the figures that follow from it, and the tables and files of both.

Every figure is computed per repeat and then shown as the median over repeats with the smallest and the
largest. Ratios are taken within one repeat, whose measurements lie close together in time, so that a
machine that becomes slower does not favour whoever was measured first.

`compare.json` holds everything, `compare.csv` the figures; `compare.html` shows the tables and sentences of
the terminal between its charts.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from v8.artifacts.comparison_results import (
    FIGURES,
    PROJECTED_MODELS,
    SPREAD_ENDS,
    Comparison,
    Spreads,
)
from v8.errors import ProfileError, listed
from v8.language import language, say, term
from v8.own_files import COMPARISON_COLUMNS
from v8.records import check_format, read_json_object
from v8.reports.figures import Dot, change_pct, spread_figure
from v8.reports.markup import Html, document, element, folded, plot, shown_table
from v8.reports.page import provenance
from v8.reports.verdict import opening, relative_to_naive
from v8.storage import write_json, write_text
from v8.tasks import TASKS
from v8.wording import ABSENT, Table, between, count, digits, duration, plural

COMPARISON_FORMAT: Final = 1  # version of the keys of `compare.json`

NEGLIGIBLE_PCT: Final = 0.5  # errors, in per cent of naive's, that are no further apart count as equal

CLAIMS: Final[Mapping[str, Mapping[str, Any]]] = {
    profile: {"ancestor": ancestor, "model_s": model_s, "all_s": all_s}
    for profile, ancestor, model_s, all_s in (
        ("stable", "V8_STABLE.py", (60, 90), (40 * 60, 60 * 60)),
        ("aligned", "V8_ALIGNED_WITH_V7.py", (30, 45), (20 * 60, 30 * 60)),
        ("v4_transformer", "v4_train_transformer.py", (3 * 60, 5 * 60), (2 * 3600, 3 * 3600)),
        ("v4_gru", "v4_train_fast_gru.py", (5 * 60, 8 * 60), (3 * 3600, 5 * 3600)),
        ("v4_lstm", "v4_train_unified.py", (10 * 60, 15 * 60), (6 * 3600, 10 * 3600)),
    )
}
"""What the ancestors' guides say of "Colab GPU" trainings with the profile's own epochs: from and to."""

CLAIMED: Final = {"all_s": "40 models, claimed", "model_s": "one model, claimed"}
CLAIM_NOTE: Final = "Claimed: by guides of the lineage, for an unnamed GPU, without a log; no measurement."


UNITS: Final[Mapping[str, Callable[[float], str]]] = {
    "s": lambda value: f"{value * 1e3:.3g} ms" if value < 1 else duration(value),
    "/s": lambda value: f"{value:,.0f}" if value >= 10 else digits(value),
    "bytes": lambda value: f"{value / 1e6:,.0f} MB",
    "flop": lambda value: f"{value / 1e6:,.0f} MFLOP" if value >= 1e7 else f"{digits(value / 1e6)} MFLOP",
    "%": lambda value: f"{value:.1f} %" if value >= 1 else f"{digits(value)} %",
    "epochs": count,
    "": lambda value: count(value) if value == int(value) else f"{value:.3f}",
}
"""How a figure of each unit is written."""


def assumption(comparison: Comparison) -> str:
    """Say what the projected time takes for granted."""
    return say(
        "Projected, not measured: {num} models like the measured ones, each training all of the profile's "
        "own epochs at the measured speed, so early stopping would end sooner. On a CPU {workers} "
        "single-threaded processes work side by side without slowing each other down and import and compile "
        "at the same time; on a GPU one process trains fleets of the measured size, although larger ones "
        "would be faster.",
        num=PROJECTED_MODELS,
        workers=comparison.num_workers,
    )


class Worth(NamedTuple):
    """What a profile is worth, and what that costs."""

    profile: str
    dots: Sequence[Dot]  # by series, its error beside naive's, the mean over the tasks that all models have
    change_pct: float  # by how many per cent its error is larger than naive's, median over series
    projected_s: float  # seconds of 40 models with its own epochs

    def __str__(self) -> str:
        told = relative_to_naive(1.0 + self.change_pct / 100.0)
        time = duration(self.projected_s, is_estimate=True)
        cost = say("{num} models take about {time}", num=PROJECTED_MODELS, time=time)
        return say("{told}, mean over tasks; {cost}", told=told, cost=cost)


def worths(comparison: Comparison) -> list[Worth]:
    """Put worth beside cost, the smallest error first; nothing where models have no error in common."""
    figures = comparison.figures
    if not figures:
        return []
    multiples = comparison.models.filter(like="multiples.").dropna(axis="columns")
    changes = multiples.mean(axis="columns").dropna().map(change_pct)
    found = []
    for profile, those in changes.groupby(level="profile", sort=False):
        middles = those.groupby(level="series", sort=False).median()  # over repeats
        dots = [Dot(str(series), pct) for series, pct in middles.items()]
        time_s = figures[str(profile)]["projected_40_s"]["median"]
        found.append(Worth(str(profile), dots, float(middles.median()), time_s))
    return sorted(found, key=lambda one: one.change_pct)


def advice(comparison: Comparison) -> list[str]:
    """Say which profile is the one to take, at what cost, and what is had for more or less; or why not."""
    those = worths(comparison)
    if not those:
        return []
    quickly = sorted(those, key=lambda one: one.projected_s)
    fastest = say("The fastest is {name}: {told}.", name=quickly[0].profile, told=quickly[0])
    if comparison.epochs is not None:
        return [say("So short a training tells what is fast, and not yet what to take."), fastest]
    if len({*comparison.horizons.values()}) > 1:
        return [say("No profile is the one to take: they look differently far ahead."), fastest]
    best = those[0]
    if best.change_pct >= 0.0:
        return [say("No profile is the one to take: none errs less than if nothing changed."), fastest]
    chosen = next(one for one in quickly if one.change_pct - best.change_pct <= NEGLIGIBLE_PCT)
    said = [say("Take {name}: {told}.", name=chosen.profile, told=chosen)]
    if best is not chosen:
        said.append(say("The smallest error has {name}: {told}.", name=best.profile, told=best))
    return [*said, *([fastest] if quickly[0] is not chosen else [])]


def contents(comparison: Comparison) -> Iterator[tuple[str, list[str | Table]]]:
    """Tell what was found as sections: a heading, and sentences, tables, and markup for the page alone."""
    if comparison.failures:
        reasons = sorted(comparison.failures.items())
        yield say("Failed"), [shown_table(Table(["Profile", "Reason"], reasons, is_prose=True))]
    if comparison.measurements:
        claims = [term(CLAIM_NOTE)] if CLAIMS.keys() & comparison.figures.keys() else []
        yield say("Worth and cost"), [worth_table(comparison), *claims, assumption(comparison)]
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
    """List the files that a comparison has in a folder: `compare.json`, `compare.csv` and `compare.html`."""
    return [folder / f"compare.{kind}" for kind in ("json", "csv", "html")]


def require_same_comparison(folder: Path, comparison: Comparison) -> None:
    """Refuse a folder that holds a comparison of other profiles, runs, series, candles or epochs.

    Args:
        folder: Where its files would be replaced; it need not exist.
        comparison: What is to be compared.

    Raises:
        ProfileError: If another comparison lies there, which may have taken hours.
        ArtifactError: If its `compare.json` is damaged, or of an unknown format.
    """
    file, *_ = comparison_files(folder)
    if not file.exists():
        return
    fix = "Choose another param:out, or add param:overwrite to replace it"
    content = read_json_object(file, fix=fix)
    check_format(content, (COMPARISON_FORMAT,), kind="comparison", where=str(file), fix=fix)
    planned = json.loads(json.dumps(asdict(comparison)))
    keys = ("source", "series", "num_bars", "epochs", "num_repeats", "baseline")
    others = [key for key in keys if content.get(key) != planned[key]]
    if others:
        rule = "a comparison is replaced only by the same one, measured again"
        got = f"a comparison there with another {listed(others)}"
        raise ProfileError(where=f"param:out {folder}", rule=rule, got=got, fix=fix)


def write_comparison(folder: Path, comparison: Comparison) -> list[Path]:
    """Write `compare.json`, `compare.csv` and `compare.html` into a folder, each atomically; return them."""
    files = comparison_files(folder)
    content = {
        "format": COMPARISON_FORMAT,
        **asdict(comparison),
        "assumption": assumption(comparison),
        "figures": comparison.figures,
        "ratios": comparison.ratios,
        "claims": {name: claim for name, claim in CLAIMS.items() if name in comparison.num_bars},
    }
    write_json(files[0], content)
    write_text(files[1], comparison_csv(comparison))
    with language():
        write_text(files[2], comparison_page(comparison))
    return files


def comparison_csv(comparison: Comparison) -> str:
    """Return one line per profile and figure: median, smallest and largest, and its ratio to the baseline."""
    ends = [*SPREAD_ENDS.values()]
    columns = [*COMPARISON_COLUMNS, *ends, *(f"ratio_{end}" for end in ends)]
    lines: list[list[object]] = []
    for profile, figures in comparison.figures.items():
        for name, spread in figures.items():
            ratio = comparison.ratios[profile].get(name, {})
            lines.append([profile, name, FIGURES[name].unit, *spread.values(), *map(ratio.get, ends)])
    return Table(columns, lines).csv()


def comparison_page(comparison: Comparison) -> Html:
    """Return the page; charts on it need a browser, tables do not."""
    body = [opening("", *advice(comparison))]
    those = worths(comparison)
    if those:
        rows = {f"{one.profile}, {duration(one.projected_s, is_estimate=True)}": one.dots for one in those}
        label = say("Error beside that of no change, mean over tasks, and the time of 40 models.")
        body.append(plot(spread_figure(rows, dict.fromkeys(rows, "blue")), label))
        note = say(
            "A dot is a series, a diamond their median. Medians that are at most {points} points apart count "
            "as equal, and the fastest of them is the one to take. Whether profiles differ by more than "
            "chance is not tested here.",
            points=NEGLIGIBLE_PCT,
        )
        body.append(element("p", note, class_="soft"))
    said = [budget_sentence(comparison), *cautions(comparison)]
    body += [element("p", sentence, class_="soft") for sentence in said]
    for heading, parts in contents(comparison):
        shown = [_on_page(part) for part in parts]
        is_open = heading in {say("Failed"), say("Worth and cost")}
        body += [element("h2", heading), *shown] if is_open else [folded(heading, *shown)]
    heading = say("Profiles compared: {names}", names=", ".join(comparison.num_bars))
    return document(f"v8: {heading}", heading, body, is_demo=comparison.is_demo)


def _on_page(part: str | Table) -> Html:
    if isinstance(part, Table):
        return shown_table(part, class_="wrapped figures")
    return part if isinstance(part, Html) else element("p", part, class_="soft")


def worth_table(comparison: Comparison) -> Table:
    """Return what decides: errors, the time of 40 models and memory, and beside them what guides claim."""
    wanted = [f"{task}_multiple{which}" for which in ("", "_of_best") for task in TASKS]
    table = _figure_table("", comparison.figures, [*wanted, "peak_process_bytes", "projected_40_s"])
    for name, title in CLAIMED.items():
        ends = [CLAIMS.get(profile, {}).get(name) for profile in comparison.figures]
        cells = (between(map(duration, each)) if each else ABSENT for each in ends)
        table.rows += [[term(title), *cells]] if any(ends) else []
    return table


def cost_table(comparison: Comparison) -> Table:
    """Return every figure of every profile, with its spread where there are several repeats."""
    told = {"repeats": plural(comparison.num_repeats, "repeat"), "num": len(comparison.series)}
    title = say("Medians over {repeats} (smallest to largest), seconds are means of {num} series", **told)
    return _figure_table(title, comparison.figures, FIGURES)


def ratio_table(comparison: Comparison) -> Table:
    """Return the figures of every profile as multiples of the baseline profile's."""
    title = say("As multiples of {name}, within the same repeat", name=comparison.baseline)
    return _figure_table(title, comparison.ratios, FIGURES, lambda ratio: f"× {digits(ratio)}")


def _figure_table(
    title: str, found: Spreads, names: Iterable[str], write: Callable[[float], str] | None = None
) -> Table:
    table = Table(["", *found], [], title)
    for name in names:
        spreads = [figures.get(name) for figures in found.values()]
        if any(spreads):
            figure = FIGURES[name]
            cells = (_shown(spread, write or UNITS[figure.unit]) for spread in spreads)
            table.rows.append([term(figure.title), *cells])
    return table


def _shown(spread: Mapping[str, float] | None, write: Callable[[float], str]) -> str:
    if spread is None:
        return ABSENT
    middle, low, high = map(write, spread.values())
    return middle if low == middle == high else f"{middle} ({between((low, high))})"


def budget_sentence(comparison: Comparison) -> str:
    """Say what was trained, and what that is too little for."""
    num = len(comparison.series)
    names = ", ".join(comparison.series)
    bars = say(" or ").join(f"{number:,}" for number in sorted({*comparison.num_bars.values()}))
    what = say("{num} series ({names}), {bars} newest candles each", num=num, names=names, bars=bars)
    if comparison.epochs is None:
        return say("Every profile trained its own epochs with early stopping on {what}.", what=what)
    return say(
        "Budget: at most {epochs} on {what}. That measures speed; skill and epochs to best need --full.",
        epochs=plural(comparison.epochs, "epoch"),
        what=what,
    )


def cautions(comparison: Comparison) -> list[str]:
    """Say what the figures must not be taken for; nothing when there is nothing to say."""
    far = say(
        "The profiles look differently far ahead, in bars: {told}. Near bars are easier, so error ÷ naive "
        "compares only profiles of equal horizon.",
        told=", ".join(f"{name} {bars}" for name, bars in comparison.horizons.items()),
    )
    once = say(
        "One repeat has no spread: whatever else the machine did during a profile's turn counts as that "
        "profile's cost. --repeat 3 shows how much that is."
    )
    said = {far: len({*comparison.horizons.values()}) > 1, once: comparison.num_repeats == 1}
    return [sentence for sentence, is_so in said.items() if is_so]
