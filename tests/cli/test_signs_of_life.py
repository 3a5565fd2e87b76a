"""Every command says what it begins before it imports anything that takes a second."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from v8.base.process import reporting_waiting_to, with_progress
from v8.cli.shared import opening

REPOSITORY = Path(__file__).parents[2]

COMMANDS = {
    "predict runs/some": "Opening runs/some: TensorFlow starts, which takes some seconds.",
    "predict --repo you/some --source demo --format json": "Opening you/some",
    "forecast runs/some --every": "Opening runs/some: TensorFlow starts, which takes some seconds.",
    "app runs/some": "Opening runs/some: TensorFlow starts, which takes some seconds.",
    "export runs/some --out all.csv": "Opening runs/some: TensorFlow starts, which takes some seconds.",
    "track runs/some": "Reading runs/ledger.sqlite.",
    "pull --repo you/some": "Reading you/some on the Hub.",
    "pull --repo you/some --offline": "Reading you/some from the cache.",
    "publish runs/some --repo you/some": "Reading runs/some for you/some.",
    "publish --repo you/some --space you/page": "Reading what the page needs for you/page.",
    "data --source demo": "Reading candles from demo.",
    "data update": "Reading candles from live.",
    "features": "Looking for the features of 40 series.",
    "features --profile frontier": "Reading the features of profile frontier.",
    "report runs/some": "Reading the models of runs/some.",
    "doctor --json": "Asking for the driver, and starting what computes.",
}

PROGRAM = """
import sys
from importlib.machinery import ModuleSpec
from v8.cli.app import main

class Heavy:
    def find_spec(self, name, path, target=None):
        if name in ("pandas", "pyarrow", "scipy", "tensorflow", "keras", "huggingface_hub", "rich"):
            return ModuleSpec(name, self)  # it is there, and to import it ends the process

    def create_module(self, spec):
        raise SystemExit(99)

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Heavy())
for words in sys.argv[1:]:
    print("$", words, file=sys.stderr)
    try:
        main(words.split())
    except SystemExit as end:
        print("exit", end.code, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What each command says on standard error before its first heavy import, which ends it."""
    place = tmp_path_factory.mktemp("signs")
    (place / "runs" / "some").mkdir(parents=True)
    (place / "runs" / "ledger.sqlite").touch()
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, *COMMANDS],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout == ""
    blocks = process.stderr.split("$ ")[1:]
    return {block.splitlines()[0]: block.splitlines()[1:] for block in blocks}


@pytest.mark.process
@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_says_what_it_begins_before_anything_heavy_is_imported(
    words: str, said: dict[str, list[str]]
) -> None:
    sign, *_, end = said[words]
    assert sign.startswith(COMMANDS[words])
    assert end == "exit 99"


def test_where_there_is_no_tensorflow_none_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert opening(tmp_path).rpartition(": ")[2].startswith("TensorFlow starts")
    for package in ("tensorflow", "onnxruntime"):
        monkeypatch.setitem(sys.modules, package, None)  # what Python takes for: not there
    for runtime in ("keras", "auto", "onnx"):
        assert opening(tmp_path, runtime) == f"Opening {tmp_path}."


def test_long_work_tells_how_much_of_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = list[str]()
    with reporting_waiting_to(messages.append):
        assert [*with_progress("abc", "Opening models")] == ["a", "b", "c"]
        assert messages == []  # it took no time
        monkeypatch.setattr("v8.base.process.PROGRESS_INTERVAL_S", -1.0)
        assert [*with_progress("abc", "Opening models")] == ["a", "b", "c"]
    assert messages == [f"Opening models: {num} of 3" for num in range(3)]
