"""Runs that are cut off for real, with signals, and go on to the weights they would have had."""

from __future__ import annotations

import json
import shutil
import signal
from typing import Any

import numpy as np
import pytest
from published_weights import weights

pytestmark = pytest.mark.process

SERIES = "BTCUSDT-15m"


def cut_off(place: Any, after: str, how: signal.Signals) -> tuple[int, str]:
    """Start the run, send the signal when the line comes, return exit status and all output."""
    process = place.start(place.words(SERIES, more=("--verbose",)))
    lines = []
    for line in process.stdout:
        lines.append(line)
        if after in line:
            process.send_signal(how)
            break
    rest, _ = process.communicate(timeout=120)
    return process.returncode, "".join(lines) + rest


@pytest.fixture(scope="module")
def cut_place(trained: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The workplace of the finished run, without its runs."""
    original, _ = trained
    folder = tmp_path_factory.mktemp("cut")
    shutil.copytree(original.folder, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("runs"))
    return type(original)(folder, original.env)


@pytest.fixture(scope="module")
def interrupted(cut_place: Any) -> tuple[Any, int, str]:
    """A run that got a Ctrl-C in its second epoch."""
    return cut_place, *cut_off(cut_place, "epoch 1 of 12", signal.SIGINT)


def test_ctrl_c_saves_the_state_says_how_to_go_on_and_exits_130(interrupted: tuple[Any, int, str]) -> None:
    place, status, output = interrupted
    assert status == 130, output
    assert f"interrupted: {place.run} is saved. Continue with: python -m v8 run " in output
    assert "Traceback" not in output
    state = json.loads((place.run / "run.json").read_text())["series"][SERIES]
    assert state["status"] == "pending"
    assert sorted(path.name for path in (place.run / SERIES).iterdir()) == [".training"]


@pytest.mark.nightly
def test_g12_a_run_killed_mid_epoch_goes_on_to_identical_weights(
    interrupted: tuple[Any, int, str], trained: tuple[Any, Any]
) -> None:
    place, _, _ = interrupted
    status, output = cut_off(place, "epoch 4 of 12", signal.SIGKILL)
    assert status == -signal.SIGKILL, output
    assert "epoch 1 of 12" not in output  # the Ctrl-C had kept it
    state = json.loads((place.run / "run.json").read_text())["series"][SERIES]
    assert state["status"] == "running"
    result = place.call(place.words(SERIES, more=("--verbose",)))
    assert result.returncode == 0, result.stdout + result.stderr
    # At least the first epoch of every process is saved, here the second of the training.
    assert "epoch 2 of 12" not in result.stdout
    metadata = json.loads((place.run / SERIES / "metadata.json").read_text())
    assert metadata["training"]["resumed_from_epoch"] >= 2
    straight = weights(trained[0].run / SERIES / "model.keras")
    resumed = weights(place.run / SERIES / "model.keras")
    assert straight.keys() == resumed.keys()
    for name in straight:
        np.testing.assert_array_equal(resumed[name], straight[name], err_msg=name)
    assert not (place.run / SERIES / ".training").exists()


def test_two_runs_of_one_folder_do_not_mix(workplace: Any) -> None:
    import fcntl

    with (workplace.run / ".lock").open("a+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        second = workplace.call(workplace.words(SERIES))
    assert second.returncode == 3
    assert "; got process " in second.stderr
