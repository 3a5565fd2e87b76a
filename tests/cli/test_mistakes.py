"""Mistakes of newcomers: each answer says where, the rule, what was got and how to mend it.

Each row is a command line as somebody wrote it and what the answer must hold: its end, which mends it, and
where it needs saying the beginning. None of them needs TensorFlow or a network, and none writes anything.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from v8.base.errors import UnknownSeriesError
from v8.cli.app import app
from v8.data.market.series import Series, load_universe
from v8.data.market.sources import with_nearest

CALLED = "python -m v8"

MISTAKES = {
    # A word of another program.
    "train frontier": "Did you mean `{v8} run`?",
    "--profile frontier": "Write the command first, such as `{v8} run --profile ...`",
    "run help": "Call {v8} run --help.",
    "leaderboard": "Did you mean `{v8} report`?",
    "forecast runs/tiny --every 5m": "--every takes no value: write it alone.",
    # Series.
    "run --series BTCUSDT": "Write for example BTCUSDT-15m.",
    "run --series BTCUSDT --timeframe 15m": "--series BTCUSDT-15m",
    "run --series BTCUSDT-15min": "Did you mean BTCUSDT-15m.",
    "run --series BTCUSDT-1h,ETHUSDT-1h": "Repeat it: --series BTCUSDT-1h --series ETHUSDT-1h.",
    "run --series BTCUSDT-1h ETHUSDT-1h": "Write --series ETHUSDT-1h.",
    "run --series": "Write --series BTCUSDT-15m, or leave it out.",
    "run -series BTCUSDT-1h": "Write --series, with two dashes",
    "run --csv my.csv": "--source files --data-dir DIR",
    "predict --csv runs/tiny": "Write --format csv",
    "data BTCUSDT-15m": "Write --series BTCUSDT-15m.",
    # Profiles.
    "run profile=aligned": "Write --profile aligned.",
    "run --profile alignd": "Did you mean aligned",
    "run --profile aligned.yaml": "Did you mean --profile aligned, which is shipped.",
    "run --profile broken.yaml": "mapping values are not allowed here, line 2.",
    "run --profile binary.yaml": "got byte 0xff at position 0. Save it as UTF-8",
    "run runs/frontier": "got the run folder runs/frontier. Name its profile; ",
    "run --lookback 30": "lookback_bars is a key of profiles",
    "run --config aligned": "Did you mean --profile?",
    # Numbers, choices, dates.
    "run --epochs 0": "at least 1; got '0'. Write for example --epochs 1.",
    "worth runs/frontier --fee-bps -1": "from 0 to 1,000; got '-1'.",
    "run --since 2030-01-01": "--bars N takes the newest N candles",
    "run --fresh --resume": "got --resume together with it.",
    "run --smoke=yes": "Write --smoke alone.",
    "run --lang de": "'en', 'zh-TW'; got 'de'.",
    "predict runs/frontier --format JSON": "Did you mean json.",
    "predict runs/frontier --plot a.jpg": "Write --plot a.png.",
    # Sources and files.
    "run --source binance": "Write --source vision (its public archive) or live",
    "run --source candles": "Write --source files --data-dir candles.",
    "run --source files": "Add --data-dir FOLDER.",
    "run --source files --data-dir nothere": "got nothere, which is no folder.",
    "run --runs broken.yaml --source demo": "got the file broken.yaml.",
    # Runs.
    "report": "Write for example {v8} report runs/frontier.",
    "report runs/fronteir": "Did you mean runs/frontier.",
    "report empty": "Train one with `{v8} run`.",
    "report runs": "Name one of its runs, such as runs/frontier.",
    "report frontier": "Did you mean runs/frontier.",
    "report BTCUSDT-15m": "Name the run first, such as runs/frontier",
    # The Hub, and what is written.
    "export runs/frontier": "Write for example {v8} export runs/frontier --out",
    "pull": "Write for example {v8} pull --repo you/models.",
    "publish runs/frontier": "Write for example {v8} publish runs/frontier --repo",
    "run --publish models": "Write for example --publish you/models.",
}


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder as newcomers have it: a run, an empty folder, files that are something else."""
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/frontier", "empty", "candles"):
        Path(folder).mkdir(parents=True)
    Path("runs/frontier/run.json").write_text("{}")
    Path("broken.yaml").write_text("name: x\n  bad: [\n")
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00")
    before = sorted(Path().rglob("*"))
    yield
    assert sorted(Path().rglob("*")) == before, "nothing is written"


def call(line: str) -> Any:
    result = CliRunner().invoke(app, shlex.split(line), prog_name=CALLED)
    assert isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.parametrize(("line", "said"), MISTAKES.items(), ids=[*MISTAKES])
def test_the_answer_mends_the_mistake(line: str, said: str) -> None:
    process = call(line)
    (answer,) = [text for text in process.stderr.splitlines() if text.startswith("error: ")]
    assert said.format(v8=CALLED) in answer
    assert process.exit_code in (2, 3)
    assert answer.count("; got ") == 1, "where: rule; got what. How to mend it."


def test_a_coin_in_dollars_is_asked_about_on_every_source() -> None:
    for name, meant in (("BTCUSD-15m", "BTCUSDT-15m"), ("PEPEUSD-1h", "PEPEUSDT-1h")):
        unknown = UnknownSeriesError(where=name, rule="is there", got="none", fix="Check it")
        error = with_nearest(unknown, Series.parse(name), "vision", load_universe())
        assert error.fix.startswith(f"Did you mean {meant}")


WAYS = [
    ("PROFILE", ["run", "backtest", "search", "doctor", "features"], "--profile"),
    (
        "RUN",
        ["report", "export", "worth", "publish", "predict", "forecast", "track", "update", "app"],
        "--run",
    ),
]


@pytest.mark.parametrize(("metavar", "names", "option"), WAYS)
def test_profiles_and_runs_are_named_the_same_way_in_every_command(
    metavar: str, names: list[str], option: str
) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name in names:
        arguments = [each for each in commands[name].params if each.param_type_name == "argument"]
        assert [each.metavar for each in arguments] == [metavar], name
        assert option in {word for each in commands[name].params for word in each.opts}, name
    assert {name for name, each in commands.items() if any(option in one.opts for one in each.params)} == {
        *names,
        "compare-profiles",
    }
