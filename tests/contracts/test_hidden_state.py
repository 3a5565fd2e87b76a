"""A call's result depends on its arguments: nothing of one call stays in the process for the next."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "v8"
WRITING_CALLS = {"setdefault", "pop", "popitem", "update", "clear", "__setitem__", "__delitem__"}
WRITERS = {
    "cli": "the process is the command's own",
    "base/process.py": "it takes back what it gave a block; processes are started within such a block",
}
CONTEXTS = {
    "base/wording.py": "the language of a page, which thousands of sentences have in common",
    "base/process.py": "who is told what the program waits for; no result depends on it",
}
SAMPLE = """
import os
os.environ["A"] = "1"
os.environ |= {"A": "1"}
del os.environ["A"]
environ.setdefault("A", "1")
os.putenv("A", "1")
os.environ = {}
print(os.environ["A"], os.environ.get("A"), {**os.environ})
"""


def writes(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript | ast.Attribute | ast.Name) and not isinstance(node.ctx, ast.Load):
            place = node.value if isinstance(node, ast.Subscript) else node
            if ast.unparse(place) in {"os.environ", "environ"}:
                yield node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            if owner in {"os.environ", "environ"} and node.func.attr in WRITING_CALLS:
                yield node.lineno
            if owner == "os" and node.func.attr in {"putenv", "unsetenv"}:
                yield node.lineno


def contexts(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = {f"{getattr(node, 'module', '')}.{name.name}".lstrip(".") for name in node.names}
            if names & {"contextvars", "contextvars.ContextVar"}:
                yield node.lineno


def places(kind: object) -> list[str]:
    """Return where in the package something is done, as `path:line`."""
    assert callable(kind)
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 100
    return [
        f"{file.relative_to(PACKAGE).as_posix()}:{line}"
        for file in files
        for line in kind(ast.parse(file.read_text("utf-8")))
    ]


def test_every_kind_of_writing_is_seen() -> None:
    assert sorted(writes(ast.parse(SAMPLE))) == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(("kind", "allowed"), [(writes, WRITERS), (contexts, CONTEXTS)])
def test_only_these_places_keep_something_outside_of_their_arguments(
    kind: object, allowed: dict[str, str]
) -> None:
    others = [place for place in places(kind) if not place.startswith((*allowed,))]
    assert not others
