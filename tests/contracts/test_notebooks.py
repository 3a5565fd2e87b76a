"""The gallery of notebooks: what is stored was made from its source, and runs."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from documentation import notebooks

NAMES = notebooks.names()


def stored(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((notebooks.NOTEBOOKS / f"{name}.ipynb").read_text("utf-8"))
    return content


def sources(cells: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(cell["cell_type"], "".join(cell["source"])) for cell in cells]


def test_the_gallery_has_four_notebooks_and_each_is_stored() -> None:
    assert NAMES == ["evaluation_by_hand", "own_candles_and_plugins", "trading_tools", "train_and_forecast"]
    assert {file.stem for file in notebooks.NOTEBOOKS.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_notebook_has_the_cells_of_its_source_and_outputs_of_no_machine(name: str) -> None:
    notebook = stored(name)
    assert sources(notebook["cells"]) == sources(notebooks.cells_of(name)), f"scripts/docs notebooks {name}"
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs
    assert {output["output_type"] for output in outputs} <= {"stream", "execute_result", "display_data"}
    for output in outputs:
        image = output.get("data", {}).get("image/png")
        assert image is None or len(base64.b64decode(image)) <= notebooks.MAX_IMAGE_BYTES
        text = "".join(output.get("text", "")) + "".join(output.get("data", {}).get("text/plain", ""))
        assert not re.search(r"(^|[\s'\"])/(?!api)\w+/", text), text
    for cell in code:
        compile("".join(cell["source"]), name, "exec")


def test_a_page_of_the_gallery_shows_text_code_and_outputs() -> None:
    page = notebooks.page("train_and_forecast")
    assert page.startswith("# Train and forecast")
    assert "[train_and_forecast.ipynb](train_and_forecast.ipynb)" in page
    assert (
        page.count("```python") == len(re.findall(r"^```text", page, re.MULTILINE)) + page.count("<img ") + 1
    )
    assert 'src="data:image/png;base64,' in page


@pytest.mark.nightly
@pytest.mark.tf
@pytest.mark.process
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_has_the_outputs_that_are_stored(name: str) -> None:
    made = notebooks.executed(name)
    kinds = [[output["output_type"] for output in cell.get("outputs", ())] for cell in made["cells"]]
    assert kinds == [
        [output["output_type"] for output in cell.get("outputs", ())] for cell in stored(name)["cells"]
    ]
