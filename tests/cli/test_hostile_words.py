"""Command lines that nobody means: one line, the right exit code, no traceback, nothing written."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner, Result

from v8.base.errors import MAX_MESSAGE
from v8.cli.app import app
from v8.data.market.series import load_universe

LONG = "x" * 4_000
DEMO = ("--source", "demo")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "a-file").write_text("mine")
    for name in (*os.environ,):  # what `place` sets
        if name.startswith(("TF_", "OMP_", "XLA_", "OPENBLAS_")):
            monkeypatch.setenv(name, os.environ[name])


def call(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def require_one_line(done: Result) -> str:
    assert isinstance(done.exception, SystemExit), done.exception
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.isprintable()
    assert len(line) <= MAX_MESSAGE + len("error: ")
    assert not any(Path().iterdir())
    return line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--flag-of-nobody"], "run: .*; got --flag-of-nobody. `"),
        ([LONG], ": .*commands; got xxx"),
        (["x" * 5_000], "each at most 4,096 letters; got xxx"),
        (["data", "--bars", LONG], "--bars: .* 1 to 10,000,000; got "),
        (["forecast"], "forecast: .* --repo; got neither"),
        (["forecast", "a", "--repo", "b/c"], " --repo; got both"),
        (["forecast", "a", *DEMO], "; got a simulated market"),
        (["forecast", "a", "--ledger", "no/such/l.sqlite"], "--ledger: .*; got no folder no/such. .* mkdir"),
        (["track", "a", "--format", "xml"], "--format: .*; got 'xml'"),
        (["predict", "a", "--bars", "0"], "--bars: .* 1 to 10,000,000; got "),
        (["run", *DEMO, "--workers", str(10**30)], "--workers: .* 10,000"),
        (["run", *DEMO, "--fleet-size", "0"], "--fleet-size: .* at least 1"),
        (["run", "--series", LONG], "--series: .*; got 'xxx"),
        (["run", *DEMO, "--device", "tpu"], "--device: .*; got 'tpu'"),
        (["run", *DEMO, "--precision", "float8"], "training.precision"),
        (
            ["run", "--no-mixed-precision", "--precision", "mixed_float16"],
            "--no-mixed-precision: trains in float32",
        ),
        (["run", "--redo", "BTCUSDT-15m", "--series", "ETHUSDT-1h"], "--redo: .*BTCUSDT-15m"),
        (["run", "--series", "BTCUSDT-15m\n"], "control characters, .* 4,096 letters; got"),
        (["run", "--runs", "a\x1b[31m\x07"], r"got a\\x1b\[31m\\x07. Write that word otherwise"),
        (["report", "a\udcff"], r"got a\\udcff. Write that word otherwise"),
        (["data", "--source", "files", "--data-dir", "../a-file"], "got ../a-file, which is no folder"),
        (["predict", "a", *DEMO, "--plot", "none/a.png"], "got no folder none. .*: mkdir -p none."),
        (["predict", "a", "--all", "--series", "BTCUSDT-15m"], "--all: .*; got --series or --universe "),
        (["predict", "a", "--all", "--universe", "b.yaml"], "--all: .*; got --series or --universe "),
        (["data", "upgrade"], "; got 'upgrade'"),
        (["data", "update", *DEMO], "up to date; got --source demo"),
        (["data", "update", "--data-dir", "x"], "up to date; got --data-dir"),
        (["compare-profiles", "--out", "../a-file"], "--out: .*; got the file ../a-file"),
    ],
)
def test_a_word_without_a_meaning_is_one_line_and_exits_2(words: list[str], said: str) -> None:
    process = call(*words)
    assert re.search(said, require_one_line(process))
    assert process.exit_code == 2
    assert not [*Path().iterdir()], "nothing is made"


@pytest.mark.parametrize(
    "words",
    [
        ["run", *DEMO, "--dry-run", "--runs"],
        ["data", "--source", "files", "--data-dir"],
        ["compare-profiles", "--out"],
        ["report"],
        ["predict", "a", "--plot"],
    ],
)
def test_a_path_that_is_too_long_is_one_line(words: list[str]) -> None:
    long = "y" * 300
    process = call(*words, f"{long}.png" if "--plot" in words else long)
    assert "File name too long" in require_one_line(process)
    assert process.exit_code in (3, 6)


def test_ten_thousand_series_are_counted_at_once() -> None:
    names = [f"A{number}-1h" for number in range(10_000)]
    words = [word for name in [*names, names[0]] for word in ("--series", name)]
    start_s = time.process_time()
    assert "got A0-1h 2 times" in require_one_line(call("data", *words))
    assert time.process_time() - start_s < 20  # a guard: to count each one among all took minutes
    assert len(load_universe()) == 40


@pytest.mark.parametrize("content", ["mine", "[]", "{}", '{"format": 2}'])
def test_a_comparison_never_replaces_files_that_none_wrote(content: str, tmp_path: Path) -> None:
    for kind in ("json", "csv", "html"):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / f"compare.{kind}").write_text(content)
        process = call("compare-profiles", "aligned", *DEMO, "--out", str(folder))
        line = require_one_line(process)
        assert re.search(f"--out: .*; got another file at {folder}/compare.", line)
        assert "--overwrite" in line
        assert (folder / f"compare.{kind}").read_text() == content


def test_a_picture_replaces_only_a_picture_of_ours(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    Path(tmp_path / "text.png").write_text("mine")
    Figure().savefig(tmp_path / "theirs.png")
    (tmp_path / "link.png").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.png")
    for file in sorted(tmp_path.glob("*.png")):
        process = call("predict", "a", *DEMO, "--plot", str(file))
        assert re.search("--plot: .*; got another file", require_one_line(process))
        assert process.exit_code == 2


# An empty value, as a shell writes it for a variable that is not set, is refused by every option


def parameters() -> Iterator[tuple[str, str]]:
    """List every option and argument that takes a value, with a command; arguments by their metavar."""
    seen = set()
    for name, command in sorted(typer.main.get_command(app).commands.items()):
        for parameter in command.params:
            is_argument = parameter.param_type_name == "argument"
            place = str(parameter.metavar) if is_argument else max(parameter.opts, key=len)
            if place not in seen and (is_argument or not parameter.is_flag):
                seen.add(place)
                yield name, place


def words_before(name: str, place: str) -> list[str]:
    """Return the words in front of the empty one: the option, or the arguments that come first."""
    return [name, place] if place.startswith("--") else [name]


def refusal(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2, (words, result.output)
    (line,) = result.stderr.splitlines()
    assert not any(Path().iterdir())
    return line


def test_an_empty_value_of_an_option_or_argument_is_a_usage_error() -> None:
    for name, place in parameters():
        line = refusal(*words_before(name, place), "")
        assert line.startswith(f"error: {place}: ") and "; got an empty one. " in line
    assert "error: --series: needs a value" in refusal("run", "--series", "BTCUSDT-15m", "--series", "  ")
    assert "error: --plugin: needs a value" in refusal("track", "a", "--plugin", "b.py", "--plugin=")


def test_an_empty_value_is_refused_by_the_interface_of_python() -> None:
    from v8.api.runs import OPTIONS, train

    empty: dict[str, Any] = {name: "" for name, kind in OPTIONS.items() if "str" in str(kind)}
    assert {"publish", "address", "tables", "redo", "plugin"} <= empty.keys()
    for name, value in {**empty, "runs": "", "profile": "", "series": "", "candles": ""}.items():
        with pytest.raises(ValueError, match=rf"v8.train, {name}=: is of 1 to 4,096 printable letters"):
            train(**{name: value})
    for name in ("series", "redo", "track", "plugin"):
        with pytest.raises(ValueError, match=rf"v8.train, {name}=: is "):
            train(**{name: [""]})
