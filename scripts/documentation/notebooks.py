"""The gallery of notebooks: made from scripts, executed on the simulated market, shown on the site.

    scripts/docs notebooks [NAME...]

A source is `docs/notebooks/NAME.py`, in which `# %%` begins a cell and `# %% [markdown]` one of text, as
Jupytext reads it. The notebook with its outputs is `docs/notebooks/NAME.ipynb`; only this call writes it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Final

from documentation.reference import REPOSITORY

NOTEBOOKS: Final = REPOSITORY / "docs" / "notebooks"
MAX_IMAGE_BYTES: Final = 100_000
TIMEOUT_S: Final = 300
_CELL: Final = re.compile(r"^# %%(?: \[(markdown)\])?\n", re.MULTILINE)
_MACHINE: Final = re.compile(r"(?:/[\w.+-]+)*/(?=runs/)")
"""Folders before a run folder, which are those of one machine."""


def names() -> list[str]:
    """Return the notebooks of the gallery."""
    return sorted(source.stem for source in NOTEBOOKS.glob("*.py"))


def cells_of(name: str) -> list[dict[str, Any]]:
    """Return the cells of a notebook's source, without outputs, in the form of nbformat 4.5."""
    text = (NOTEBOOKS / f"{name}.py").read_text("utf-8")
    _, *parts = _CELL.split(text)
    cells: list[dict[str, Any]] = []
    for number, (kind, body) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        cell: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}}
        if kind:
            lines = [line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()]
            cell |= {"cell_type": "markdown", "source": "\n".join(lines)}
        else:
            cell |= {"cell_type": "code", "source": body.strip(), "outputs": [], "execution_count": None}
        cells.append(cell)
    return cells


def execute(wanted: Sequence[str]) -> None:
    """Execute notebooks from top to bottom and store them with their outputs; all if none is named."""
    for name in wanted or names():
        file = NOTEBOOKS / f"{name}.ipynb"
        aside = file.with_suffix(".new")
        aside.write_text(json.dumps(executed(name), indent=1, ensure_ascii=False) + "\n", "utf-8")
        aside.replace(file)
        print(f"{file.relative_to(REPOSITORY)}: {file.stat().st_size:,} bytes")


def executed(name: str) -> dict[str, Any]:
    """Return a notebook with the outputs of its cells, computed in an empty folder."""
    try:
        import nbformat  # noqa: PLC0415
        from nbclient import NotebookClient  # noqa: PLC0415
    except ImportError:
        sys.exit("notebooks: need nbclient and ipykernel. Install the extra `test`.")
    language = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {
        "cells": cells_of(name),
        "metadata": {"kernelspec": language},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    read: Any = nbformat.reads  # it has no type hints
    notebook = read(json.dumps(content), as_version=4)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=TIMEOUT_S, resources={"metadata": {"path": folder}})
        client.execute(env=environment)
    made: dict[str, Any] = json.loads(json.dumps(notebook))
    for cell in made["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            cell["outputs"] = [output for output in map(_shared, cell["outputs"]) if output]
    made["metadata"] = {"kernelspec": language}
    return made


def _shared(output: dict[str, Any]) -> dict[str, Any] | None:
    """Return an output as it is stored: without messages to standard error and folders of this machine."""
    if output.get("name") == "stderr":
        return None
    for key in ("metadata", "transient"):
        if key in output:
            output[key] = {}
    if "text" in output:
        output["text"] = _MACHINE.sub("", "".join(output["text"]))
    data = output.get("data", {})
    data.pop("text/html", None)  # tables are stored as text
    image = data.get("image/png")
    if image and len(base64.b64decode(image)) > MAX_IMAGE_BYTES:
        sys.exit(f"notebooks: an image must have at most {MAX_IMAGE_BYTES:,} bytes. Lower its dpi.")
    return output


def page(name: str) -> str:
    """Write a stored notebook as a page of the site."""
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text("utf-8"))
    parts = []
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            if number == 0:
                parts.append(
                    f"Download this notebook: [{name}.ipynb]({name}.ipynb). Outputs are stored in it."
                )
        else:
            parts.append(f"```python\n{source}\n```")
            parts += _shown(cell["outputs"])
    return "\n\n".join(parts) + "\n"


def _shown(outputs: Sequence[dict[str, Any]]) -> Iterator[str]:
    for output in outputs:
        data = output.get("data", {})
        image = data.get("image/png")
        if image:
            encoded = "".join(image).replace("\n", "")
            yield f'<img alt="Figure of the cell above" src="data:image/png;base64,{encoded}">'
            continue
        text = "".join(output.get("text", "") or data.get("text/plain", "")).rstrip("\n")
        if text:
            yield f"```text\n{text}\n```"
