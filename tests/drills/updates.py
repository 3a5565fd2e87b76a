"""Drills with SIGKILL at each write of `update`: the old model serves until a decision is saved.

The candles of a tiny run are extended by more than its test span. One update is undisturbed; another, of a
copy of the run, is killed before and after each of its writes and called again. After every kill the models
that serve are complete, and the decision is always the same.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

from later_candles import with_future

from drills.ground import SERIES, Ground, Place, drill, train_on_past, weights_of
from drills.kills import FATAL_WRITES, NEVER, NUM_WRITES_OF_SIZE
from v8.base.storage import digest_file
from v8.runs.serving import read_serving

KIND = "updates"
NUM_PAST = 900
NUM_LATER = 200


def update_words(place: Place, run: Path) -> list[str]:
    candles = str(place.folder / "candles")
    return ["update", str(run), "--data-dir", candles, "--workers", "1", "--device", "cpu"]


def decided(run: Path) -> list[dict[str, Any]]:
    """Return what was decided about a run, without when and who began it."""
    decisions = json.loads((run / "serving.json").read_text())["decisions"]
    return [
        {key: decision[key] for key in decision.keys() - {"decided_at", "stale"}} for decision in decisions
    ]


def require_whole(place: Place) -> None:
    """Note a model that serves and is not the one that its metadata describe."""
    folder = read_serving(place.run).folder(SERIES)
    recorded = json.loads((folder / "metadata.json").read_text())["model_sha256"]
    place.require(digest_file(folder / "model.keras") == recorded, f"what serves in {folder} is not whole")


@drill(KIND, "`update` killed before and after a write, then at the next one, and so on")
def kill_an_update(ground: Ground, place: Place) -> str:
    train_on_past(place, (SERIES,), NUM_PAST)
    with_future(SERIES, NUM_PAST, NUM_LATER).to_csv(place.folder / "candles" / f"{SERIES}.csv")
    straight = place.runs / "straight"
    shutil.copytree(place.run, straight)
    place.make(update_words(place, straight))
    place.more_env["V8_DRILL_SEEN"] = str(place.folder.parent / "seen")
    num_kills = 0
    words = update_words(place, place.run)
    while num_kills < NUM_WRITES_OF_SIZE[ground.size]:
        process = place.start(words, program=FATAL_WRITES)
        if place.finish(process, is_killed=True).status != -signal.SIGKILL:
            break
        require_whole(place)
        num_kills += 1
    place.require(num_kills < NEVER, f"not finished after {num_kills} kills")
    (expected,) = (straight / "generations").iterdir()
    place.continued(words, weights_of(expected), place.run / "generations" / expected.name)
    place.require(decided(place.run) == decided(straight), "another decision than the undisturbed update's")
    num_generations = len([*(place.run / "generations").iterdir()])
    place.require(num_generations == 1, f"{num_generations} generations instead of one")
    return f"{num_kills} kills, one generation, the same weights and decision"
