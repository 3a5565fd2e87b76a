"""An empty value, as a shell writes it for a variable that is not set, is refused by every option."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from v8.cli.app import app


def parameters() -> Iterator[tuple[str, str]]:
    """List every option and argument that takes a value, with its command; arguments by their metavar."""
    for name, command in sorted(typer.main.get_command(app).commands.items()):
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                yield name, str(parameter.metavar)
            elif not parameter.is_flag:
                yield name, max(parameter.opts, key=len)


def words_before(name: str, place: str) -> list[str]:
    """Return the words in front of the empty one: the option, or the arguments that come first."""
    return [name, place] if place.startswith("--") else [name]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusal(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2, (words, result.output)
    (line,) = result.stderr.splitlines()
    assert not any(Path().iterdir())
    return line


@pytest.mark.parametrize("empty", ["", "  "])
@pytest.mark.parametrize(("name", "place"), list(parameters()))
def test_an_empty_value_of_an_option_or_argument_is_a_usage_error(name: str, place: str, empty: str) -> None:
    line = refusal(*words_before(name, place), empty)
    assert line.startswith(f"error: {place}: ") and "; got an empty one. " in line


def test_an_empty_value_among_several_is_refused() -> None:
    assert "error: --series: needs a value" in refusal("run", "--series", "BTCUSDT-15m", "--series", "")
    assert "error: --plugin: needs a value" in refusal("track", "a", "--plugin", "b.py", "--plugin=")


def test_an_empty_publish_beside_what_is_right_is_refused() -> None:
    """At 967f431 this printed the record, sent nothing, and ended with 0."""
    assert "error: --publish: needs a value" in refusal("track", "runs/a", "--publish", "")
    assert "error: --publish: needs a value" in refusal("run", "--source", "demo", "--publish", "")
    assert "error: --post: needs a value" in refusal("forecast", "runs/a", "--post", "")


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
