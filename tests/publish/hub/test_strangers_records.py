"""Any JSON at any key of a stranger's run: a report and a plan to publish, or one sentence.

Valid files are changed by hypothesis: a key gone, a value of any kind in its place, the file cut. Nothing but
an error of ours may come out, one line of at most 600 characters.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from odd_values import paths
from outputs import write_outputs

from v8.base.errors import MAX_MESSAGE, V8Error
from v8.cli.runs import print_leaderboard
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import read_metadata
from v8.forecaster.series_artifact import SAMPLE_FORMAT
from v8.publish.hub.staging import stage_run
from v8.publish.report.outputs import RunOutputs, RunResults, draw_pictures

pytestmark = pytest.mark.tf

SERIES = "BTCUSDT-15m"
FILES = ("run.json", f"{SERIES}/metadata.json", f"{SERIES}/forecasts.json", f"{SERIES}/history.csv")

CANDLE = [100.0, 102.0, 99.0, 101.0]
SAMPLE = {
    "format": SAMPLE_FORMAT,
    "columns": {"ohlc": ["open", "high", "low", "close"]},
    "series": SERIES,
    "bar_s": 900,
    "open_time_s": [900 * row for row in range(6)],
    "actual": {"ohlc": [CANDLE] * 6},
    "forecasts": [{"last_known": 2, "values": {"ohlc": [CANDLE] * 3}}],
}

RAW = [
    *("1e400", "-1e400", "NaN", "Infinity", "9" * 5_000, "1" + "0" * 400, "1e308", "-0.0", "5e-324"),
    *("[" * 5_000, "[" * 60 + "]" * 60, '"\\ud800"', '"' + "x" * 1_000_000 + '"', f"[{'0,' * 99_999}0]"),
]
"""Values that no Python object writes."""

VALUES = [
    *(None, True, False, 0, 1, -1, 2**31, 2**62, 2**70, 0.5, 1e99, 1e300, -1e-300, "", "x", "=1+1"),
    *("\x1b[31m\a", "\u202eevil", "a\nb", "[x](http://x)", "<script>", "`|`", [], {}, [[]], [None]),
    *("2024-01-01", "2024-01-01T00:00:00+00:00", "1e5", ["x"], [1, 2], [1.5, "x"], {"": {}}, {"x": 1}),
    *("../../x", "BTCUSDT-15m"),
]


@st.composite
def changes(draw: st.DrawFn, text: str) -> str:
    """Return a file's text with one or two things wrong."""
    if draw(st.integers(0, 9)) == 0:
        return text[: draw(st.integers(0, len(text)))]
    content = json.loads(text)
    raw: list[str] = []
    for _ in range(draw(st.integers(1, 2))):
        *parents, last = draw(st.sampled_from([*paths(content)][1:] or [("x",)]))
        place = content
        for key in parents:
            place = place[key]
        kind = draw(st.sampled_from(["drop", "value", "raw", "add"]))
        if kind == "drop":
            del place[last]
        elif kind == "value":
            place[last] = draw(st.sampled_from(VALUES))
        elif kind == "raw":
            place[last] = f"RAW{len(raw)}"
            raw.append(draw(st.sampled_from(RAW)))
        elif isinstance(place, dict):
            place[draw(st.sampled_from(["x", "\x1b", "../x", "", "a" * 5_000]))] = draw(
                st.sampled_from(VALUES)
            )
        if not isinstance(content, dict | list) or not content:
            break
    text = json.dumps(content)
    for number, value in enumerate(raw):
        text = text.replace(f'"RAW{number}"', value)
    return text


def said_well(error: V8Error) -> None:
    assert len(str(error)) <= MAX_MESSAGE
    assert str(error).isprintable()


def attack(run: Path, *, draws: bool = False) -> None:
    """Do all that is done with a run that somebody else made; only if asked to, draw its pictures."""

    def show() -> None:
        rows = write_outputs(run)
        print_leaderboard(RunResults(rows))
        if draws:
            draw_pictures(run, rows)

    for attempt in (show, lambda: Forecaster(read_metadata(run / SERIES), None)):
        try:
            attempt()
        except V8Error as error:
            said_well(error)
    with tempfile.TemporaryDirectory(dir=run.parent) as folder:
        try:
            staged = stage_run(run, Path(folder) / "staged", "someone/fleet", is_partial=True)
        except V8Error as error:
            said_well(error)
            return
        for name in ("README.md", f"models/{SERIES}/README.md", "leaderboard.csv", "manifest.json"):
            text = (staged.folder / name).read_text("utf-8")
            assert "<script>" not in text
            assert "](http" not in text
            assert not set(text) & set("\x1b\a\u202e")


@pytest.fixture
def run(make_run: Any) -> Path:
    folder: Path = make_run([SERIES])
    (folder / FILES[2]).write_text(json.dumps(SAMPLE))
    RunOutputs(folder, pytest.fail).write()  # the verdicts are stored once, before anything is changed
    return folder


@pytest.mark.nightly
@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_value_at_any_key_is_shown_or_refused_in_one_sentence(run: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FILES[:3]))
    text = (run / name).read_text()
    (run / name).write_text(data.draw(changes(text)))
    try:
        attack(run, draws=True)
    finally:
        (run / name).write_text(text)


HEAD = "epoch,train_loss,validation_loss\n"
HISTORIES = [
    *("", "\x00", "epoch", HEAD.replace("\n", "\r") + "1,2,3\r", f"{HEAD}1\n", HEAD + "1,1,1\n" * 50_000),
    *(f"{HEAD}1,1e308,1e308\n2,1e308,1e308\n", f'{HEAD}1,"{"2" * 200_000}",3\n', f"{HEAD}-5e99,0,0\n"),
    *(
        f"{HEAD}0,5e-324,1e99\n",
        f"{HEAD}1,0,0\n2,1e99,1\n",
        f"{HEAD}1.5,1,1\n",
        f"{HEAD}1,1,5e-324\n2,1,9e99\n",
    ),
]


@pytest.mark.nightly
def test_any_history_is_drawn_or_refused_in_one_sentence(run: Path) -> None:
    for text in HISTORIES:
        (run / FILES[3]).write_bytes(text.encode())
        attack(run)


@pytest.mark.parametrize("name", FILES)
def test_bytes_that_are_no_text_are_one_sentence(run: Path, name: str) -> None:
    for content in (b"\xff\xfe", b"null", b"", b"\xef\xbb\xbf{}"):
        (run / name).write_bytes(content)
        attack(run, draws=name == FILES[3])
        with suppress(V8Error):
            stage_run(run, run.parent / f"staged{len(content)}", "someone/fleet")
            assert name == FILES[2]  # which is not published
