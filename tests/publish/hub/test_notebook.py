"""scripts/notebook.ipynb, executed from top to bottom in a real kernel: demo candles, a Hub on loopback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from nbclient import NotebookClient
from signs import without_signs
from tiny_profiles import tiny_profile

import v8
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.profile.columns import OHLC

NOTEBOOK = Path(__file__).parents[3] / "scripts" / "notebook.ipynb"
REPO = "someone/notebook"
SERIES = "BTCUSDT-1h"


def read_notebook() -> Any:
    return nbformat.read(NOTEBOOK, as_version=nbformat.NO_CONVERT)


def tagged(notebook: Any, tag: str) -> int:
    (place,) = [place for place, cell in enumerate(notebook.cells) if tag in cell.metadata.get("tags", ())]
    return place


def with_settings(notebook: Any, **settings: Any) -> Any:
    """Set what a user sets, in a cell after that of the settings, as papermill does."""
    said = notebook.cells[tagged(notebook, "parameters")].source
    assert settings.keys() <= set(re.findall(r"^([A-Z_0-9]+) = ", said, re.MULTILINE))
    source = "\n".join(f"{name} = {value!r}" for name, value in settings.items())
    notebook.cells.insert(tagged(notebook, "parameters") + 1, nbformat.v4.new_code_cell(source))
    return notebook


def texts(cell: Any) -> Iterator[str]:
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        yield output.get("text", "")
        yield data.get("text/html") or ("" if "image/png" in data else data.get("text/plain", ""))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A small profile, and candles of the demo market as a file of the user: as `demo` none are published."""
    small = {"features": OHLC, "tasks": {"ohlc": {"weight": 1.0, "loss": "mae"}}, "calibration": "none"}
    small |= {"lookback_bars": 2, "horizon_bars": 1, "newest_bars": 400}
    profile = tiny_profile("dense_newest", **small)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(profile.model_dump(mode="json")))
    (tmp_path / "candles").mkdir()
    frame = open_source("demo").candles(Series.parse(SERIES), profile.newest_bars).to_frame()
    frame.to_csv(tmp_path / "candles" / f"{SERIES}.csv")
    return tmp_path


@pytest.mark.nightly
@pytest.mark.process
def test_the_notebook_runs_from_top_to_bottom(
    place: Path, hub: Any, tokens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("V8_HOME", str(place / "home"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    settings = {"SERIES": [SERIES], "PROFILE": "tiny.yaml", "V8_FROM": "", "EPOCHS": 1}
    settings |= {"SOURCE": "files", "DATA_DIR": "candles", "REPO": REPO}
    notebook = with_settings(read_notebook(), **settings)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(place)}}).execute()
    said = {cell.id: "".join(texts(cell)) for cell in notebook.cells}
    assert "Not on Kaggle" in said["kaggle"]
    assert f"v8 {v8.__version__}; GPU: " in said["install"]
    assert without_signs(said["data"]).startswith(f"Candles of 1 series: {SERIES}: ")
    assert "1 of 1 series" in said["run"]
    assert f"<th>{SERIES}</th>" in said["run"]  # the errors
    assert "<iframe srcdoc=" in said["page"]
    assert f"Published: {hub.url}/{REPO}/commit/" in said["publish"]
    assert f"models/{SERIES}/model.keras" in hub.files(REPO)
    # What is printed while a cell works is one line, which changes.
    words = {cell.id: "".join(texts(cell)).strip() for cell in notebook.cells if cell.cell_type == "code"}
    assert [name for name, text in words.items() if "\n" in text.partition("<")[0].strip()] == []
    pictures = [
        one
        for cell in notebook.cells
        for one in cell.get("outputs", ())
        if "image/png" in one.get("data", {})
    ]
    assert len(pictures) == 1
    assert tokens.write not in nbformat.writes(notebook)


def test_the_file_holds_no_outputs_and_is_in_both_languages() -> None:
    notebook = read_notebook()
    nbformat.validate(notebook)
    assert notebook.nbformat == 4
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None), cell.id
        for title in re.findall(
            r"^#+ (.*)", cell.source if cell.cell_type == "markdown" else "", re.MULTILINE
        ):
            assert re.search(r"[a-z].* · .*[\u4e00-\u9fff]", title), title
    text = "\n".join(cell.source for cell in notebook.cells)
    assert re.findall(r"^## (\d)", text, re.MULTILINE) == list("123456")
