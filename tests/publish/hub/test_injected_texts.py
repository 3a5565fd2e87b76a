"""Hostile texts in every text of a run, a profile, a plug-in and a candle file, and in names of folders.

Each is put into one place after the other; then everything that shows the run is drawn: terminal, report, the
page of `app`, its API, card, the README of a model, CSV files and the manifest. Either the text is refused in
one sentence, or nothing comes through that a terminal, a browser, Markdown or a spreadsheet would obey.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import os
import re
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from html.parser import HTMLParser
from itertools import cycle
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from odd_values import paths
from outputs import write_outputs
from typer.testing import CliRunner

from v8.annexes.live.app import answers
from v8.annexes.live.app.page import overview_page, series_page
from v8.annexes.live.app.service import ModelSource
from v8.base.errors import MAX_MESSAGE, V8Error
from v8.base.terminal import print_lines, print_message, print_table
from v8.base.wording import Table, for_spreadsheet, frame_csv
from v8.cli.app import app
from v8.cli.runs import print_summary
from v8.data.market.series import Series
from v8.forecaster.metadata import read_metadata
from v8.forecaster.series_artifact import artifact_readme, covariate_note
from v8.profile.profile import Profile, load_profile
from v8.publish.hub.staging import stage_run
from v8.publish.report.markup import DRAW, STYLE, WATCH, Html, candle_library, plotly_library
from v8.publish.report.outputs import RunResults
from v8.runs.events import RunSummary, SeriesOutcome
from v8.runs.run_folder import SeriesState, read_run

pytestmark = pytest.mark.tf

SERIES = "BTCUSDT-15m"
FILES = ("run.json", f"{SERIES}/metadata.json")

TEXTS = {
    "escape sequences": "vision\x1b[31m\x1b]0;title\x07\x9b2J",
    "bidirectional controls": "vision\u202egpj.exe\u2066\u200f",
    "line ends": "vision\nerror: forged\r\x0b\u2028forged",
    "HTML": "\"><script>alert(1)</script><img src=x onerror=alert(1)>'",
    "Markdown": "[x](http://x) ![y](//y) `|` <b>",
    "formula": '=HYPERLINK("http://x")',
    "formula behind a sign": "@SUM(1+1)|x",
}

CONTROLS = ("escape sequences", "bidirectional controls", "line ends")

IN_RECORDS = {
    "control characters": "".join(text for name, text in TEXTS.items() if name in CONTROLS),
    "formula and markup": "".join(TEXTS[name] for name in ("formula", "HTML", "Markdown")),
}
"""Texts that are tried at each place of a record, which has a hundred."""

Change = Callable[[Any], None]
"""Puts a text into the content of a record."""


def at(node: Any, path: tuple[Any, ...]) -> Any:
    """Return the value at a path."""
    for key in path:
        node = node[key]
    return node


def require_safe_line(line: str) -> None:
    assert line.isprintable(), ascii(line)


def require_safe_terminal(printed: str) -> None:
    for line in printed.split("\n"):
        require_safe_line(line)


def require_safe_csv(text: str) -> None:
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            require_safe_line(cell)
            assert for_spreadsheet(cell) == cell, cell


def require_no_controls(text: str) -> None:
    kinds = {unicodedata.category(letter) for letter in set(text) - {"\n"}}
    assert not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}, ascii(text)


SCRIPTS = {f"/{name}.js" for name in ("page", "overview", "alerts", "chart", "touch", "lightweight-charts")}
"""Of the app, from its own server."""


class Elements(HTMLParser):
    """Collects what a browser would run or fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.found += [name for name in told if name.startswith("on")]
        is_ours = tag == "script" and (told.get("src") in SCRIPTS or told.get("type") == "application/json")
        if tag in ("img", "iframe", "object", "embed", "base", "script") and not is_ours:
            self.found.append(tag)


def require_safe_page(page: str) -> None:
    for ours in (plotly_library(), candle_library(), WATCH, DRAW, STYLE):
        page = page.replace(f"<script>{ours}</script>", "").replace(ours, "")
    require_no_controls(page)
    assert not Elements(page).found
    assert not re.search(r"<script>|<b>|<img", page)


def require_safe_markdown(text: str) -> None:
    require_no_controls(text)
    assert "<script" not in text
    assert "](http://x" not in text and "](//y" not in text
    assert "<b>" not in text and "<img" not in text


def require_safe_error(error: V8Error) -> None:
    assert str(error).isprintable() and len(str(error)) <= MAX_MESSAGE


@contextmanager
def refused_well(refusals: list[V8Error] | None = None) -> Iterator[None]:
    try:
        yield
    except V8Error as error:
        require_safe_error(error)
        if refusals is not None:
            refusals.append(error)


def show_all(run: Path, capsys: pytest.CaptureFixture[str]) -> bool:
    """Draw all that shows a run, and look at each; return whether nothing was refused."""
    errors: list[V8Error] = []
    with refused_well(errors):
        rows = write_outputs(run, errors.append)
        print_summary(RunSummary(1, 0, ()), run, RunResults(rows))
        require_safe_page((run / "report.html").read_text("utf-8"))
        require_safe_csv((run / "leaderboard.csv").read_text("utf-8"))
    with refused_well(errors):
        require_safe_markdown(artifact_readme(read_metadata(run / SERIES)))
    with refused_well(errors):
        fleet = ModelSource(run).refresh()
        require_safe_line(fleet.label)
        for page in (overview_page(fleet, Html("")), series_page(fleet, Series.parse(SERIES), Html(""))):
            require_safe_page(re.sub(r"<(script|style)>.*?</\1>", "", page, flags=re.DOTALL))
        for content in (answers.series_list(fleet), answers.leaderboard(fleet)):
            require_no_controls(answers.encode_json(content).decode("utf-8"))
    with tempfile.TemporaryDirectory(dir=run.parent) as folder, refused_well(errors):
        staged = stage_run(run, Path(folder) / "staged", "someone/fleet", is_partial=True).folder
        for name in ("README.md", f"models/{SERIES}/README.md"):
            require_safe_markdown((staged / name).read_text("utf-8"))
        require_safe_csv((staged / "leaderboard.csv").read_text("utf-8"))
        require_no_controls((staged / "manifest.json").read_text("utf-8"))
    for error in errors:
        require_safe_error(error)
    printed = capsys.readouterr()
    require_safe_terminal(printed.out)
    require_safe_terminal(printed.err)
    return not errors


def show_together(
    run: Path, file: Path, kept: Any, changes: list[Change], capsys: pytest.CaptureFixture[str]
) -> None:
    """Show a record with all of some changes; where that is refused, with each half of them."""
    content = copy.deepcopy(kept)
    for change in changes:
        change(content)
    file.write_text(json.dumps(content), "utf-8")
    if not show_all(run, capsys) and len(changes) > 1:
        middle = len(changes) // 2
        for half in (changes[:middle], changes[middle:]):
            show_together(run, file, kept, half, capsys)


def show_what_is_read(
    run: Path, name: str, changes: list[Change], capsys: pytest.CaptureFixture[str]
) -> None:
    """Read a record with each change alone, which may be refused; show it with all that are read."""
    file = run / name
    kept = json.loads(file.read_text("utf-8"))
    accepted = []
    for change in changes:
        content = copy.deepcopy(kept)
        change(content)
        file.write_text(json.dumps(content), "utf-8")
        with refused_well():
            read_run(run)
            _ = read_metadata(run / SERIES).result
            accepted.append(change)
    show_together(run, file, kept, accepted, capsys)


@pytest.fixture
def run(make_run: Any) -> Path:
    folder: Path = make_run([SERIES])
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("text", IN_RECORDS.values(), ids=IN_RECORDS)
@pytest.mark.parametrize("name", FILES)
def test_every_text_of_a_record_is_shown_harmlessly_or_refused(
    run: Path, name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = json.loads((run / name).read_text("utf-8"))
    places = [path for path in paths(kept) if isinstance(at(kept, path), str)]
    assert len(places) > 20

    def put(content: Any, path: tuple[Any, ...]) -> None:
        at(content, path[:-1])[path[-1]] = text

    show_what_is_read(run, name, [partial(put, path=path) for path in places], capsys)


@pytest.mark.nightly
@pytest.mark.parametrize("name", FILES)
def test_every_key_of_a_record_is_shown_harmlessly_or_refused(
    run: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = json.loads((run / name).read_text("utf-8"))
    sections = [path for path in paths(kept) if isinstance(at(kept, path), dict) and len(path) <= 3]

    def put(content: Any, path: tuple[Any, ...], text: str) -> None:
        section = at(content, path)
        section[text] = next(iter(section.values()), None)

    texts = zip(sections, cycle(IN_RECORDS.values()), strict=False)
    show_what_is_read(run, name, [partial(put, path=path, text=text) for path, text in texts], capsys)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names of folders")
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_name_of_a_run_folder_and_the_reason_of_a_failure_are_shown_harmlessly(
    make_run: Any, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run([SERIES], unfinished={"ETHUSDT-1h": SeriesState("failed", reason=text)})
    named = run.with_name(text.replace("/", "∕"))
    run.rename(named)
    show_all(named, capsys)
    outcome = SeriesOutcome(Series("ETHUSDT", "1h"), reason=text)
    print_summary(RunSummary(1, 0, (outcome,)), named, RunResults())
    require_safe_terminal(capsys.readouterr().out)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_whatever_is_printed_is_one_line_for_each_text(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(text)
    print_message(text)
    told = capsys.readouterr()
    for printed in (told.out, told.err):
        assert printed.endswith("\n") and printed.count("\n") == 1
        require_safe_terminal(printed)
    print_table(Table((text, "b"), [(text, text)], text))
    require_safe_terminal(capsys.readouterr().out)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_tables_are_written_harmlessly(text: str) -> None:
    table = Table((text, "number"), [(text, -1.5), ("-0.25", None)])
    require_safe_csv(table.csv())
    *_, last = csv.reader(io.StringIO(table.csv()))
    assert last == ["-0.25", ""]
    assert all("\n" not in line for line in table.markdown().split("\n"))
    require_no_controls(table.markdown())
    frame = pd.DataFrame({text: [text, "-0.25"], "number": [-1.5, 2.0]}, index=[text, "x"])
    for written in (frame_csv(frame), frame_csv(frame, index_label="name")):
        require_safe_csv(written)
    assert pd.read_csv(io.StringIO(frame_csv(frame)))["number"].tolist() == [-1.5, 2.0]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_texts_of_a_profile_are_shown_harmlessly_or_refused(
    run: Path, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = Profile.of("frontier").model_dump(mode="json")
    content["features"] = [*content["features"], "csv.funding_rate"]
    table = {"file": "funding.csv", "time": "time", "columns": ["funding_rate"]}
    content["covariates"] = [{**table, "available_after_s": 0, "max_age_s": 90_000}]
    places = [path for path in paths(content) if isinstance(at(content, path), str)]
    assert ("covariates", 0, "time") in places and ("description",) in places
    file = tmp_path / "own.yaml"
    accepted = copy.deepcopy(content)
    for path in places:
        changed = copy.deepcopy(content)
        at(changed, path[:-1])[path[-1]] = text
        file.write_text(yaml.safe_dump(changed), "utf-8")
        with refused_well():
            load_profile(str(file))
            at(accepted, path[:-1])[path[-1]] = text
        metadata = json.loads((run / FILES[1]).read_text())
        metadata["profile"]["covariates"] = changed["covariates"]
        (run / FILES[1]).write_text(json.dumps(metadata), "utf-8")
        with refused_well():
            note = covariate_note(read_metadata(run / SERIES))
            require_no_controls(note)
            require_safe_markdown(re.sub(r"(`+).*?\1", "", note))
    for shown in (accepted, content | {"name": text}):  # a refusal comes through the command line, too
        file.write_text(yaml.safe_dump(shown), "utf-8")
        for words in (["features"], ["run", "--dry-run", "--source", "demo"]):
            result = CliRunner().invoke(app, [*words, "--profile", str(file)])
            assert result.exit_code in (0, 2, 3), result.output
            require_safe_terminal(result.stdout)
            require_safe_terminal(result.stderr)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names of files")
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_names_and_columns_of_candle_files_are_shown_harmlessly(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "candles"
    folder.mkdir()
    head = "open_time,open,high,low,close,volume"
    rows = "".join(f"{1_700_000_100 + 900 * row},1,2,1,1.5,7\n" for row in range(200))
    name = text.replace("/", "∕")
    quoted = '"' + text.replace('"', '""') + '"'
    files = {
        f"{name}BTCUSDT-15m.csv": f"{head}\n{rows}",
        f"{name}.csv": f"{head}\n{rows}",
        "ETHUSDT-15m.csv": f"{head.replace('close', quoted)}\n{rows}",
        "XRPUSDT-15m.csv": f"{head}\n{rows}{text},1,2,1,1.5,7\n",
        "ADAUSDT-15m.json": json.dumps([{text: 1}]),
    }
    for place, content in files.items():
        with suppress(OSError):
            (folder / place).write_text(content, "utf-8")
    for words in ([], *(["--series", each] for each in ("ETHUSDT-15m", "XRPUSDT-15m", "ADAUSDT-15m"))):
        result = CliRunner().invoke(
            app, ["data", "--source", "files", "--data-dir", str(folder), "--bars", "100", *words]
        )
        assert result.exit_code in (0, 2, 3, 4), result.output
        require_safe_terminal(result.stdout)
        require_safe_terminal(result.stderr)
