"""Tables fit the terminal: too many columns make several parts, and no cell is broken within a word."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from narrow import require_narrow
from typer.testing import CliRunner

from v8.base.terminal import print_table
from v8.base.wording import Table
from v8.cli.app import app

WORDS = some.text("abcdefgh0123456789.%*×", min_size=1, max_size=14)
CELLS = some.lists(WORDS, min_size=1, max_size=2).map(" ".join)


@some.composite
def tables(draw: Any) -> Table:
    num = draw(some.integers(2, 14))
    columns = draw(
        some.lists(some.lists(WORDS, min_size=1, max_size=4).map(" ".join), min_size=num, max_size=num)
    )
    cells = some.lists(CELLS, min_size=num - 1, max_size=num - 1)
    rows = draw(some.lists(cells, min_size=1, max_size=5))
    return Table(columns, [[f"COIN{number}USDT-15m", *row] for number, row in enumerate(rows)], "Title")


@given(table=tables())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_cell_stands_whole_beside_the_name_of_its_row(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    print_table(table)
    printed = capsys.readouterr().out
    require_narrow(printed)
    for name, *cells in table.rows:
        mine = " ".join(line for line in printed.splitlines() if line.startswith(f"{name} "))
        assert mine.replace(str(name), "").split() == " ".join(map(str, cells)).split()


def test_as_many_first_columns_are_repeated_as_tell_the_rows_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [("all folds", task, *("wide " * 7, "more " * 6)) for task in ("ohlc", "bands")]
    print_table(Table(("fold", "task", "one", "other"), rows))
    starts = [line.split()[:3] for line in capsys.readouterr().out.splitlines() if line.startswith("all")]
    assert starts == [["all", "folds", task] for _ in range(2) for task in ("ohlc", "bands")]


def test_prose_is_broken_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "needs at least seventy bars, and there are forty-one of them. " * 3
    print_table(Table(("series", "reason"), [("BTCUSDT-15m", reason)], "Failed", is_prose=True))
    printed = capsys.readouterr().out
    require_narrow(printed, "BTCUSDT-15m  needs at least")
    lines = [line.removeprefix("BTCUSDT-15m").strip() for line in printed.splitlines()[3:]]
    assert " ".join(lines).split() == reason.split()


@pytest.mark.tf
def test_the_tables_of_commands_fit_80_columns(trained_run: Any, tmp_path: Path) -> None:
    shutil.copytree(trained_run.path, tmp_path / "run")
    for words in (["features", "--profile", "frontier"], ["report", str(tmp_path / "run")]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        require_narrow(result.stdout)
