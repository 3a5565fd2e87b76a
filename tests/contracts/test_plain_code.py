"""What makes code hard to read is counted right, and is below its limits in package, scripts and tests."""

from __future__ import annotations

import re
from pathlib import Path

import plain
import pytest

REPOSITORY = Path(__file__).parents[2]

SAMPLE = """
import os

a, b = 1, 2
if (n := len(os.name)) > 1:
    print(*os.name)


def about(found, size):
    \"\"\"Text that is no part of the body.\"\"\"
    for one in found:
        size += [each for each in one]
    return size
"""


def counted(folder: Path, text: str) -> plain.Figures:
    (folder / "sample.py").write_text(text, encoding="utf-8")
    return plain.measure(folder)


def test_each_kind_is_counted_with_its_place(tmp_path: Path) -> None:
    figures = counted(tmp_path, SAMPLE)
    file = tmp_path / "sample.py"
    assert figures.places[plain.PARALLEL] == [f"{file}:4: a, b = (1, 2)"]
    assert figures.places[plain.WALRUS] == [f"{file}:5: (n := len(os.name))"]
    assert figures.places[plain.STARRED] == [f"{file}:6: print(*os.name)"]
    # `each` is a comprehension's.
    assert sorted(figures.places[plain.VAGUE]) == [
        f"{file}:11: one",
        f"{file}:9: about",
        f"{file}:9: found",
    ]
    # import, two assignments (a, b and size), if, print, def, docstring, for, return
    assert figures.num_statements == 9
    # a, b, n, about, found, size, one, size
    assert figures.num_names == 8
    assert figures.value(plain.VAGUE) == pytest.approx(100 * 3 / 8)
    assert figures.value(plain.WALRUS) == pytest.approx(1_000 / 9)


def test_nested_calls_of_one_statement_are_counted_from_the_eighth_on(tmp_path: Path) -> None:
    seven = "x = f(f(f(f(f(f(f(1)))))))\n"
    eight = "x = f(f(f(f(f(f(f(f(1))))))))\n"
    assert not counted(tmp_path, seven).places[plain.NESTED]
    assert len(counted(tmp_path, eight).places[plain.NESTED]) == 1


@pytest.mark.parametrize(("num_lines", "num_places"), [(60, 0), (61, 1)])
def test_a_body_is_too_long_from_61_lines_on_without_its_docstring(
    tmp_path: Path, num_lines: int, num_places: int
) -> None:
    text = 'def work() -> None:\n    """Two\n\n    paragraphs."""\n' + "    print()\n" * num_lines
    assert len(counted(tmp_path, text).places[plain.LONG]) == num_places


def test_only_limits_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sample.py").write_text(SAMPLE, encoding="utf-8")
    plain.main([str(tmp_path), "--worst", "1"])
    out = capsys.readouterr().out
    assert "vague names, % of names   37.50, at most 0.3 (3 places)  TOO HIGH" in out
    assert "sample.py:4: a, b = (1, 2)" in out
    with pytest.raises(SystemExit, match="1"):
        plain.main([str(tmp_path), "--limits"])


def test_plain_code_passes(tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text("total = 1 + 2\n", encoding="utf-8")
    plain.main([str(tmp_path), "--limits"])


@pytest.mark.nightly
@pytest.mark.parametrize("folder", ["v8", "scripts", "tests"])
def test_the_code_is_below_its_limits(folder: str) -> None:
    figures = plain.measure(REPOSITORY / folder)
    worst = {kind: figures.places[kind][:5] for kind in figures.above_limits(plain.limits_of(Path(folder)))}
    assert not worst, f"harder to read than allowed; python scripts/plain.py {folder} --worst 30 lists all"


def test_no_sentence_cites_a_guarantee_by_its_number() -> None:
    """Nothing in the repository defines one."""
    files = [file for folder in ("v8", "scripts", "tests") for file in (REPOSITORY / folder).rglob("*.py")]
    assert len(files) > 400
    assert [file for file in files if re.search(r"\bG[12]?\d\b", file.read_text("utf-8"))] == []
