"""The displays of a run in which several series train at the same time."""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_doubles import new_plan
from tiny_profiles import tiny_profile

from v8.api.results import ProgressLines
from v8.base.terminal import print_lines
from v8.cli.runs import MOST_PROGRESS_BARS, RunDisplay, print_leaderboard, print_summary, print_without_onnx
from v8.data.market.series import Series
from v8.model.evaluation.leaderboard import LeaderboardRow, Verdict
from v8.model.evaluation.significance import BaselineComparison
from v8.model.training.progress import EpochRecord
from v8.profile.tasks import TASKS
from v8.publish.report.outputs import RunResults
from v8.runs.events import (
    EpochEnded,
    Event,
    GettingReady,
    Note,
    RunSummary,
    SeriesOutcome,
    SeriesStarted,
    StageStarted,
    Waiting,
    observed,
)
from v8.runs.plan import Plan

ONE, TWO, THREE, FOUR = (Series(name, "1h") for name in ("BTCUSDT", "ETHUSDT", "XRPUSDT", "ADAUSDT"))


class Terminal(io.StringIO):
    """Standard output that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Put a wide terminal where standard output is."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    return screen


@pytest.fixture
def make_plan(tmp_path: Path) -> Any:
    def make(*series: Series) -> Plan:
        return new_plan(tiny_profile(), series, tmp_path)

    return make


@contextmanager
def display(
    plan: Plan, *, opens: bool = False, is_verbose: bool = False
) -> Iterator[Callable[[Event], None]]:
    """Show a plan; yields what shows an event."""
    with observed(RunDisplay(opens=opens, is_verbose=is_verbose), plan, "demo") as observer:
        yield observer.on_event


def epoch_ended(series: Series) -> EpochEnded:
    return EpochEnded(series, EpochRecord(2, 0.5, 0.25, 1e-3, 1.0, 1234.4, is_best=True), 6)


def plain_lines(
    capsys: pytest.CaptureFixture[str], plan: Plan, events: Sequence[Event], *, is_verbose: bool = False
) -> list[str]:
    with display(plan, is_verbose=is_verbose) as listen:
        for event in events:
            listen(event)
    return capsys.readouterr().out.splitlines()


def test_plain_lines_name_their_series_because_several_write_in_turn(
    capsys: pytest.CaptureFixture[str], make_plan: Any
) -> None:
    events = [
        StageStarted(ONE, "candles"),
        Waiting(ONE, "waiting for a.zip, 5 s of at most 300 s; try 1 of 6"),
        SeriesStarted(ONE),
        SeriesStarted(TWO),
        StageStarted(ONE, "train"),
        epoch_ended(TWO),
        Note("Something to know."),
        epoch_ended(ONE),
    ]
    assert plain_lines(capsys, make_plan(ONE, TWO), events, is_verbose=True) == [
        "BTCUSDT-1h: reading candles",
        "BTCUSDT-1h: waiting for a.zip, 5 s of at most 300 s; try 1 of 6",
        "BTCUSDT-1h: started (1 of 2)",
        "ETHUSDT-1h: started (2 of 2)",
        "ETHUSDT-1h: epoch 2 of 6, loss 0.50000, validation 0.25000 (best), 1,234 windows/s "
        "(0 of 2 ended, 2 still training)",
        "Something to know.",
        "BTCUSDT-1h: epoch 2 of 6, loss 0.50000, validation 0.25000 (best), 1,234 windows/s "
        "(0 of 2 ended, 2 still training)",
    ]


def test_of_epochs_one_is_written_after_a_minute_without_a_line(make_plan: Any) -> None:
    epochs_s = (50.0, 59.9, 60.0, 61.0, 119.0, 120.5)
    clock_s = [0.0]
    lines: list[str] = []
    display_lines = ProgressLines(lines.append, clock=lambda: clock_s[-1])
    with observed(display_lines, make_plan(ONE, TWO), "demo") as observer:
        observer.on_event(SeriesStarted(ONE))
        observer.on_event(SeriesStarted(TWO))
        for epoch_s in epochs_s:
            clock_s.append(epoch_s)
            observer.on_event(epoch_ended(ONE))
        observer.on_event(SeriesOutcome(TWO, seconds=60.0))
        clock_s.append(180.0)  # 59.5 s after the outcome's line
        observer.on_event(epoch_ended(ONE))
    of_epochs = [line for line in lines if "epoch 2 of 6" in line]
    assert len(of_epochs) == 2  # at 60.0 and at 120.5
    assert of_epochs[0].endswith("(0 of 2 ended, 2 still training)")


def test_a_finished_series_says_what_it_is_worth_and_how_much_is_left(
    capsys: pytest.CaptureFixture[str], make_plan: Any
) -> None:
    events = [
        SeriesStarted(ONE),
        SeriesStarted(TWO),
        SeriesOutcome(
            ONE, seconds=12.3, comparisons=(against("naive", 0.966), against("range_paths", 0.999))
        ),
        SeriesStarted(THREE),
        SeriesOutcome(THREE, seconds=4.5, comparisons=(against("naive", 1.002),)),
        SeriesStarted(FOUR),
        SeriesOutcome(TWO, seconds=60.0),
        SeriesOutcome(FOUR, seconds=90.0),
    ]
    lines = plain_lines(capsys, make_plan(ONE, TWO, THREE, FOUR), events)
    # All of it takes milliseconds here; tests/runs/test_estimate.py sets the clock.
    assert [line for line in lines if "ended" in line] == [
        "BTCUSDT-1h: candles: 3.4 % lower error than the naive forecast, 12 s "
        "(1 of 4 ended, 1 still training)",
        "XRPUSDT-1h: candles: 0.2 % higher error than the naive forecast, 4.50 s "
        "(2 of 4 ended, 1 still training, a few seconds left)",
        "ETHUSDT-1h: finished, 1 min 0 s (3 of 4 ended, 1 still training, a few seconds left)",
        "ADAUSDT-1h: finished, 1 min 30 s (4 of 4 ended)",
    ]


def against(baseline: str, multiple: float) -> BaselineComparison:
    return BaselineComparison(baseline, multiple, 1.0)


def test_series_without_the_onnx_file_that_was_wanted_are_listed_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcome = SeriesOutcome(ONE, onnx_fault="model.onnx: forecasts something else.")
    print_without_onnx([])
    assert capsys.readouterr().out == ""
    print_without_onnx([outcome])
    printed = capsys.readouterr().out
    assert "1 without ONNX file" in printed
    assert "BTCUSDT-1h" in printed and "forecasts something else" in printed


def test_failures_tell_nothing_about_time_and_a_second_try_is_not_counted_twice(
    capsys: pytest.CaptureFixture[str], make_plan: Any
) -> None:
    events = [
        SeriesOutcome(ONE, reason="BTCUSDT-1h: no candles."),
        SeriesStarted(TWO),
        SeriesStarted(TWO),
        SeriesStarted(THREE),
        SeriesOutcome(TWO, reason="ETHUSDT-1h: lost."),
    ]
    assert plain_lines(capsys, make_plan(ONE, TWO, THREE), events) == [
        "failed: BTCUSDT-1h: no candles. (1 of 3 ended)",
        "ETHUSDT-1h: started (2 of 3)",
        "ETHUSDT-1h: started (2 of 3)",
        "XRPUSDT-1h: started (3 of 3)",
        "failed: ETHUSDT-1h: lost. (2 of 3 ended, 1 still training)",
    ]


def test_no_full_bar_stands_while_something_is_done_once_or_after_epochs(
    monkeypatch: pytest.MonkeyPatch, make_plan: Any
) -> None:
    screen = terminal(monkeypatch)

    def drawn(listen: Any, *told: Event) -> str:
        for event in told:
            listen(event)
        num_before = len(screen.getvalue())
        time.sleep(0.3)  # it is drawn ten times a second
        return screen.getvalue()[num_before:]

    with display(make_plan(ONE, TWO)) as listen:
        assert "1 of 2: BTCUSDT-1h" in drawn(listen, StageStarted(ONE, "candles"))
        assert "2 of 2: ETHUSDT-1h" in drawn(listen, StageStarted(TWO, "candles"))
        ready = drawn(listen, GettingReady("Getting ready to train 2 series."))
        assert "getting ready" in ready and "candles" not in ready
        training = drawn(listen, SeriesStarted(ONE), StageStarted(ONE, "train"), epoch_ended(ONE))
        assert "BTCUSDT-1h train" in training and "epoch 2 of 6" in training
        evaluating = drawn(listen, StageStarted(ONE, "evaluate"))
        assert "BTCUSDT-1h evaluate" in evaluating and "of 6" not in evaluating
        assert "series" in evaluating and "0 of 2, 1 still training" in evaluating


def test_a_terminal_shows_one_bar_per_series_at_work_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch, make_plan: Any
) -> None:
    screen = terminal(monkeypatch)
    many = [Series(f"COIN{number}USDT", "1h") for number in range(MOST_PROGRESS_BARS + 2)]
    with display(make_plan(*many)) as listen:
        for series in many:
            listen(SeriesStarted(series))
        for series in many:
            listen(StageStarted(series, "train"))
            listen(epoch_ended(series))
        listen(SeriesOutcome(many[0], seconds=3.0))
        listen(SeriesOutcome(many[1], seconds=4.0))
    last = screen.getvalue().rpartition("4.00")[2]
    shown = [series for series in many if f"{series} train" in last]
    assert shown == many[2:MOST_PROGRESS_BARS]
    expected = "2 of 10, 8 still training, a few seconds left"
    assert expected in " ".join(last.replace("\x1b[0m", "").split())


def score(multiple: float, *p_values: float, beside: str = "naive") -> Verdict:
    """P-values: as it is and corrected, of naive and of another baseline, which errs half as much."""
    naive = BaselineComparison("naive", multiple, 1.0, *p_values)
    return Verdict(
        naive, naive if beside == "naive" else BaselineComparison(beside, multiple, 0.5, *p_values)
    )


def board_row(name: str, **scores: Verdict) -> LeaderboardRow:
    evaluated: Any = SimpleNamespace(direction=[SimpleNamespace(rate=0.5, interval=(0.4, 0.6))])
    return LeaderboardRow(
        series=name,
        source="vision",
        is_demo=False,
        best_epoch=3,
        epochs_run=9,
        seconds={"train": 61.0},
        evaluation=evaluated,
        split={},
        candle_report={},
        tasks=scores,
    )


def test_a_mark_says_which_multiples_differ_by_more_than_chance(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        board_row("AUSDT-1h", ohlc=score(0.9, 0.01, 0.02)),
        board_row("BUSDT-1h", ohlc=score(0.95, 0.04, 0.06)),
        board_row("CUSDT-1h", ohlc=score(1.2, 1e-5, 3e-5)),
        board_row("DUSDT-1h", ohlc=score(1.0)),
    ]
    print_leaderboard(RunResults(rows))
    lines = capsys.readouterr().out.splitlines()
    marks = {line.split()[0]: line.split()[1] for line in lines if "USDT" in line}
    assert lines[:2] == [
        "Median of 4 series, on candles that training had not seen:",
        "Candles: 2.5 % lower error than the naive forecast "
        "(significantly lower for 1 of 4 series, significantly higher for 1), and no baseline is better.",
    ]
    assert marks == {"AUSDT-1h": "0.900*", "BUSDT-1h": "0.950", "CUSDT-1h": "1.200*", "DUSDT-1h": "1.000"}
    assert lines[-1] == (
        "Below 1 the model has the lower error. * statistically significant: Diebold-Mariano test, p < 0.05, "
        "corrected for 4 series together (Benjamini-Hochberg)."
    )


@pytest.mark.parametrize("series", ["DOGEUSDT-15m", "1000SHIBUSDT.P-15m"])
def test_a_board_of_four_tasks_is_one_table_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, series: str
) -> None:
    screen = terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    tasks = {task: score(0.8, 0.01, 0.02, beside="range_paths") for task in TASKS}
    print_leaderboard(RunResults([board_row(series, **tasks)]))
    lines = re.sub(r"\x1b\[\d+m", "", screen.getvalue()).splitlines()
    (row,) = [line for line in lines if line.startswith(f"{series} ")]
    assert len(row.split()) == 1 + 2 * len(TASKS) and len(row.rstrip()) <= 80


def test_where_all_series_of_a_call_failed_the_board_of_others_is_not_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [board_row("AUSDT-1h", ohlc=score(0.9, 0.01, 0.02))]
    failed = SeriesOutcome(Series("CUSDT", "1h"), reason="too few candles")
    print_summary(RunSummary(0, 0, (failed,)), Path("runs/some"), RunResults(rows))
    output = capsys.readouterr().out
    assert "Leaderboard" not in output and "not part of this call: AUSDT-1h." in output
    print_summary(RunSummary(0, 1, (failed,)), Path("runs/some"), RunResults(rows))
    assert "Leaderboard" in capsys.readouterr().out


def test_a_board_names_the_series_whose_spans_are_too_short_to_test(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [board_row("AUSDT-1h", ohlc=score(0.9, 0.01, 0.02)), board_row("BUSDT-1h", ohlc=score(0.9))]
    print_leaderboard(RunResults(rows))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "Not tested, too few windows: BUSDT-1h."
    assert {line.split()[0]: line.split()[1] for line in lines if "USDT-1h " in line} == {
        "AUSDT-1h": "0.900*",
        "BUSDT-1h": "0.900",
    }


def test_prose_on_a_terminal_breaks_at_spaces_whatever_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    width = 40
    screen = terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", str(width))
    rows = [board_row(f"{coin}USDT-1h", bands=score(0.8, 0.01, 0.02, beside="har")) for coin in "AB"]
    print_leaderboard(RunResults(rows))
    print_lines("Forecast: python -m v8 predict runs/a-name-that-is-long --source files --data-dir candles")
    text = re.sub(r"\x1b\[\d+m", "", screen.getvalue())
    lines = [line.rstrip() for line in text.splitlines()]
    command = "python -m v8 predict runs/a-name-that-is-long --source files --data-dir candles"
    assert any(line.endswith(command) for line in lines), "a command is one line"
    assert max(len(line) for line in lines if command not in line) <= width
    prose = " ".join(lines)
    for sentence in ("on candles that training had not seen:", "20.0 % lower error than the naive forecast"):
        assert sentence in prose
