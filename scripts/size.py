#!/usr/bin/env python
"""Print how large the package is: modules and statements of each folder, and the layers of its core.

    python scripts/size.py [DIR]

It informs and fails nothing. Lines are not counted: a trick that saves a line makes code harder to read.
"""

import ast
import sys
from collections import defaultdict
from configparser import ConfigParser
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
AIMED_STATEMENTS: Final = 25_000
AIMED_MODULES: Final = 170
AIMED_LINES: Final = 600
"""Lines of a module that a reader can still find their way in."""


def main() -> None:
    """Print the table, what is aimed at, and the modules that are longer than aimed at."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else REPOSITORY / "v8")
    statements: defaultdict[str, list[int]] = defaultdict(list)
    long_modules = []
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(root).parts
        statements[parts[0] if len(parts) > 1 else "."].append(num_statements(text))
        num_lines = len(text.splitlines())
        if num_lines > AIMED_LINES:
            long_modules.append(f"{path.relative_to(root)}: {num_lines:,} lines")
    print(f"{'package':12}{'modules':>12}{'statements':>12}")
    for name, counts in sorted(statements.items(), key=lambda item: -sum(item[1])):
        print(f"{name:12}{len(counts):>12,}{sum(counts):>12,}")
    counts_of_all = [count for counts in statements.values() for count in counts]
    print(f"{'all':12}{len(counts_of_all):>12,}{sum(counts_of_all):>12,}")
    print(f"{'aim':12}{AIMED_MODULES:>12,}{AIMED_STATEMENTS:>12,}")
    print(f"layers of the core: {num_layers()}")
    print(f"modules over {AIMED_LINES} lines: {len(long_modules)}, aim 0")
    for line in long_modules:
        print(f"    {line}")


def num_statements(text: str) -> int:
    """Count the statements of a module; a docstring is none."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    return sum(not is_text(node) for node in nodes)


def is_text(node: ast.stmt) -> bool:
    """Return whether a statement is a text that stands alone."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def num_layers() -> int:
    """Count the layers of the core in the contract of import-linter."""
    settings = ConfigParser()
    settings.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    return len(settings["importlinter:contract:core"]["layers"].split())


if __name__ == "__main__":
    main()
