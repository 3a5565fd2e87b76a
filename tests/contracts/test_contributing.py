"""CONTRIBUTING.md names what is there, and its spine is short."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
TEXT: Final = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")


def definition_lines(path: str, names: list[str]) -> int:
    """Count the lines of a module's docstring and of some of its definitions, all of which it must have.

    A method is named `Class.method`; what its class has before the first method is counted, too, once.
    """
    module = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    sizes: dict[str, int] = {}
    heads: dict[str, int] = {}
    for node in module.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            sizes[node.name] = num_lines(node)
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            sizes |= {f"{node.name}.{method.name}": num_lines(method) for method in methods}
            heads[node.name] = methods[0].lineno - node.lineno if methods else 0
    assert not set(names) - set(sizes), f"{path} has no longer what CONTRIBUTING.md names"
    classes = {name.partition(".")[0] for name in names if "." in name}
    docstring = ast.get_docstring(module) or ""
    return (
        len(docstring.splitlines())
        + sum(heads[name] for name in classes)
        + sum(sizes[name] for name in names)
    )


def num_lines(node: ast.ClassDef | ast.FunctionDef) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def test_the_spine_is_six_files_of_which_335_lines_are_to_be_read() -> None:
    rows = re.findall(r"^\| `(v8/[^`]+)` \| ([^|]+) \|", TEXT.partition("## Packages")[0], flags=re.MULTILINE)
    spine = {path: re.findall(r"`([\w.]+)`", names) for path, names in rows}
    assert len(spine) == len(rows) == 6
    assert all(spine.values())
    assert sum(definition_lines(path, names) for path, names in spine.items()) <= 335


def test_every_file_that_is_named_is_there() -> None:
    named = set(re.findall(r"`((?:v8|tests|scripts|configs)/[\w./]+)`", TEXT))
    named |= {f"tests/contracts/{name}" for name in re.findall(r"`(test_toy_\w+\.py)`", TEXT)}
    assert len(named) > 30
    assert not [path for path in sorted(named) if not (REPOSITORY / path).exists()]
