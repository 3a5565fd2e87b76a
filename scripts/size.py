#!/usr/bin/env python
"""Print how large the package is, by subpackage. It informs and fails nothing.

    python scripts/size.py [DIR]

A line is documentation if a docstring covers it, blank or a comment if it holds nothing else, and code
otherwise; imports are code, too.
"""

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

KINDS = ("files", "lines", "code", "imports", "documentation")


def main() -> None:
    """Print the table."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "v8")
    packages: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root).parts
        packages[inside[0] if len(inside) > 1 else "."] += measure(path)
    total = sum(packages.values(), Counter())
    for name, counts in [
        ("package", None),
        *sorted(packages.items(), key=lambda item: -item[1]["lines"]),
        ("all", total),
    ]:
        print(f"{name:12}" + "".join(f"{kind if counts is None else counts[kind]:>15}" for kind in KINDS))


def measure(path: Path) -> Counter[str]:
    """Count the lines of a file by kind."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    lines = text.splitlines()
    documentation = {number for node in ast.walk(tree) for number in documented(node)}
    imports = {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for number in span(node)
    }
    code = {
        number
        for number, line in enumerate(lines, 1)
        if number not in documentation and line.strip() and not line.strip().startswith("#")
    }
    counts = (1, len(lines), len(code), len(imports), len(documentation))
    return Counter(dict(zip(KINDS, counts, strict=True)))


def documented(node: ast.AST) -> Iterator[int]:
    """List the lines of texts that stand alone in a module, a class or at the head of a function."""
    match node:
        case ast.Module() | ast.ClassDef():
            statements = node.body
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            statements = node.body[:1]
        case _:
            return
    for statement in statements:
        match statement:
            case ast.Expr(value=ast.Constant(value=str())):
                yield from span(statement)


def span(node: ast.stmt) -> range:
    """Return the numbers of a statement's lines."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


if __name__ == "__main__":
    main()
