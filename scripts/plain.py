#!/usr/bin/env python
"""Measure how plainly Python code is written, and fail where it is harder to read than the limits allow.

    python scripts/plain.py v8 scripts                    print the figures of each folder
    python scripts/plain.py v8 --worst 30                 also list up to 30 places of each kind
    python scripts/plain.py v8 scripts tests --limits     exit with status 1 if a figure is above its limit

Most figures are counts per 1,000 statements. The limits are about twice the highest figure of httpx,
neuralforecast, darts and freqtrade, which this script measured, too.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeGuard

PARALLEL: Final = "parallel assignments"
WALRUS: Final = "walrus"
STARRED: Final = "starred calls"
VAGUE: Final = "vague names, % of names"
NESTED: Final = "long lines of logic"
LONG: Final = "functions too long"

LIMITS: Final = {PARALLEL: 8.0, WALRUS: 2.5, STARRED: 5.0, VAGUE: 0.3, NESTED: 3.0, LONG: 0.0}
"""Largest figure allowed of each kind: per 1,000 statements, except for vague names and long functions."""

LIMITS_OF_TESTS: Final = {**LIMITS, PARALLEL: 0.5, STARRED: 6.5, VAGUE: 2.8, LONG: 1.0}
"""Those of the folder `tests`, which is not yet as plain as the package: lower them with every rewrite."""

VAGUE_NAMES: Final = frozenset(
    """
    about asked begun done each found given here kept known made one seen shown stuff taken tell that there
    these thing things this those told way ways what where which who
    """.split()  # noqa: SIM905 - a list would take a line for each
)
"""Names that could stand for anything. They are refused for variables, arguments and functions; a variable
of a comprehension, which lives for one line, is free."""

MOST_BODY_LINES: Final = 60
"""Lines of a function's body, without its docstring, that a reader can still hold in mind."""

MOST_PARTS: Final = 7
"""Calls, conditions and comprehensions that one assignment, `return` or expression may hold."""

_PARTS: Final = (ast.Call, ast.IfExp, ast.comprehension, ast.BoolOp, ast.Lambda)
_MOST_SHOWN: Final = 110  # characters of a statement that `--worst` prints


class Place(NamedTuple):
    """A place in the code that one of the figures counts."""

    kind: str
    line: int
    text: str


@dataclass
class Figures:
    """What was counted in the files of one folder."""

    num_statements: int = 0
    num_names: int = 0
    places: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def value(self, kind: str) -> float:
        """Return the figure of a kind, in the unit of its limit."""
        count = len(self.places[kind])
        if kind == LONG:
            return float(count)
        if kind == VAGUE:
            return 100 * count / max(1, self.num_names)
        return 1_000 * count / max(1, self.num_statements)

    def above_limits(self, limits: Mapping[str, float] = LIMITS) -> list[str]:
        """List the kinds whose figure is above its limit."""
        return [kind for kind, limit in limits.items() if self.value(kind) > limit]


def main(words: Sequence[str] | None = None) -> None:
    """Measure the folders that the command line names, and print the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, help="folders of Python files, or single files")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="list up to N places of each kind")
    parser.add_argument("--limits", action="store_true", help="fail where a figure is above its limit")
    options = parser.parse_args(words)
    is_above = False
    for folder in options.folders:
        figures = measure(folder)
        limits = limits_of(folder)
        print_figures(folder, figures, options.worst, limits)
        is_above = is_above or bool(figures.above_limits(limits))
    if options.limits and is_above:
        sys.exit(1)


def limits_of(folder: Path) -> Mapping[str, float]:
    """Return the limits that a folder is held to."""
    return LIMITS_OF_TESTS if folder.name == "tests" else LIMITS


def print_figures(folder: Path, figures: Figures, num_places: int, limits: Mapping[str, float]) -> None:
    """Print a line for each figure of a folder, and some of the places behind it."""
    print(f"{folder}: {figures.num_statements:,} statements, {figures.num_names:,} names")
    for kind, limit in limits.items():
        places = figures.places[kind]
        verdict = "  TOO HIGH" if figures.value(kind) > limit else ""
        print(f"  {kind:24} {figures.value(kind):6.2f}, at most {limit:g} ({len(places)} places){verdict}")
        for place in places[:num_places]:
            print(f"    {place}")


def measure(folder: Path) -> Figures:
    """Count in every Python file of a folder, or in one file.

    Raises `SyntaxError` if a file is not Python.
    """
    figures = Figures()
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        nodes = list(ast.walk(tree))
        names = list(bound_names(tree))
        figures.num_statements += sum(isinstance(node, ast.stmt) for node in nodes)
        figures.num_names += len(names)
        places = [place for node in nodes for place in hard_places(node)]
        places += [Place(VAGUE, line, name) for name, line in names if name.strip("_") in VAGUE_NAMES]
        for place in places:
            figures.places[place.kind].append(f"{file}:{place.line}: {place.text}")
    return figures


def hard_places(node: ast.AST) -> Iterator[Place]:
    """Yield what makes a node of the syntax tree hard to read."""
    if is_parallel_assignment(node):
        yield Place(PARALLEL, node.lineno, _shortened(node))
    match node:
        case ast.NamedExpr():
            yield Place(WALRUS, node.lineno, _shortened(node))
        case ast.Call() if any(isinstance(argument, ast.Starred) for argument in node.args):
            yield Place(STARRED, node.lineno, _shortened(node))
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            num_lines = body_lines(node)
            if num_lines > MOST_BODY_LINES:
                yield Place(LONG, node.lineno, f"{node.name} has {num_lines} lines")
        case ast.Assign() | ast.Return() | ast.Expr() if num_parts(node) > MOST_PARTS:
            yield Place(NESTED, node.lineno, _shortened(node))


def is_parallel_assignment(node: ast.AST) -> TypeGuard[ast.Assign]:
    """Say whether a statement assigns several values to several names, as in `a, b = 1, 2`."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    )


def num_parts(node: ast.AST) -> int:
    """Count the calls, conditions and comprehensions within a node."""
    return sum(isinstance(part, _PARTS) for part in ast.walk(node))


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each name that a variable, an argument or a function gets, and its line; no comprehension's."""
    in_comprehensions = {
        id(name)
        for node in ast.walk(tree)
        if isinstance(node, ast.comprehension)
        for name in ast.walk(node.target)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) if id(node) not in in_comprehensions:
                yield name, node.lineno
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node.lineno


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function's body, from behind its docstring to its end."""
    statements = function.body
    if ast.get_docstring(function, clean=False) is not None:
        statements = statements[1:]
    if not statements:
        return 0
    return (statements[-1].end_lineno or statements[-1].lineno) - statements[0].lineno + 1


def _shortened(node: ast.AST) -> str:
    """Return the source text of a node in one line, cut to a width that fits a terminal."""
    return ast.unparse(node)[:_MOST_SHOWN].replace("\n", " ")


if __name__ == "__main__":
    main()
