"""SIGKILL: at random times to everything, to the parent or to a worker, and at each write of a run.

The same command again and again must end with the weights of a run that nobody disturbed, to the bit.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from drills.archive import serving_folder
from drills.ground import DRILLS, Drill, Ended, Ground, Place, drill, kill, weights_of

KIND = "kills"
FATAL_WRITES = (str(Path(__file__).with_name("fatal_writes.py")),)
NEVER = 80
"""A chain of kills at new writes that does not end by then, never ends."""

NUM_WRITES_OF_SIZE = {"small": 3, "usual": NEVER, "long": NEVER}

PAIR = ("BTCUSDT-1h", "ETHUSDT-1h")
PROFILES = {"aligned": ("--bars", "850", "--epochs", "2"), "frontier": ("--bars", "1500", "--epochs", "6")}
KILLS_OF_SIZE = {"small": 1, "usual": 4, "long": 20}
KILLS_PER_RUN = 5
"""A run that is killed so often goes on undisturbed, is compared, and the next begins in a new folder."""

WHOM = ("everything", "everything", "the parent", "a worker")


def profile_words(profile: str, place: Place, source: Sequence[str], folder: str) -> list[str]:
    """Return the main job of two series under a shipped profile on a small budget."""
    chosen = [word for name in PAIR for word in ("--series", name)]
    words = ["run", "--profile", profile, *chosen, *PROFILES[profile], *source, "--precision", "float32"]
    return [*words, "--workers", "2", "--device", "cpu", "--runs", str(place.folder / folder)]


def kill_at_random(profile: str, ground: Ground, place: Place) -> str:
    """Kill runs of a profile at random times until there were enough kills."""
    with serving_folder(ground.archive, place) as source:
        straight = place.call(profile_words(profile, place, source, "straight"))
        if straight.status != 0:
            raise RuntimeError(f"the run that nobody disturbs ended with {straight.status}: {straight.said}")
        expected = weights_of(place.folder / "straight" / profile)
        wanted, num_kills, number, longest_s = KILLS_OF_SIZE[ground.size], 0, 0, straight.seconds
        while num_kills < wanted:
            number += 1
            words = profile_words(profile, place, source, f"killed-{number}")
            for _ in range(min(KILLS_PER_RUN, wanted - num_kills)):
                ended = kill_once(place, words, longest_s)
                if ended:  # by itself: the machine is faster now than it was
                    longest_s = min(longest_s, ended.seconds)
                    break
                num_kills += 1
            place.continued(words, expected, place.folder / f"killed-{number}" / profile)
    return f"{num_kills} kills, the same weights to the bit"


def kill_once(place: Place, words: Sequence[str], seconds: float) -> Ended | None:
    """Start a call and kill it, or a part of it, at a random time; return how it ended if it was faster."""
    started, process = time.monotonic(), place.start(words)
    _wait(process, place.chance.uniform(0.05, 1.0) * seconds)
    if process.poll() is not None:
        return replace(place.finish(process), seconds=time.monotonic() - started)
    whom = place.chance.choice(WHOM)
    if whom == "a worker" and _kill_a_worker(place, process):  # its series goes on within the same call
        place.finish(process)
        return None
    if whom == "the parent":
        process.kill()
    else:
        kill(process)
    place.finish(process, is_killed=True)
    return None


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait, but not beyond the end of a process."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.05)


def _kill_a_worker(place: Place, process: subprocess.Popen[bytes]) -> bool:
    """Kill one of a call's workers; tell whether there was one."""
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children()
        workers = [one for one in children if "spawn_main" in " ".join(one.cmdline())]
        if workers:
            place.chance.choice(workers).kill()
            return True
    return False


@drill(KIND, "a tiny run killed before and after a write, then at the next one, and so on", "small")
def kill_at_each_write(ground: Ground, place: Place) -> str:
    """Cut a run off at each write once, before and after the rename."""
    expected, seen = weights_of(ground.undisturbed()), place.folder.parent / "seen"
    place.more_env["V8_DRILL_SEEN"] = str(seen)
    most = NUM_WRITES_OF_SIZE[ground.size]
    num_kills = 0
    while num_kills < most:
        process = place.start(place.job(), program=FATAL_WRITES)
        if place.finish(process, is_killed=True).status != -signal.SIGKILL:
            break
        num_kills += 1
    place.require(num_kills < NEVER, f"not finished after {num_kills} kills")
    place.continued(place.job(), expected)
    return f"{num_kills} kills, the same weights to the bit"


for _profile in PROFILES:
    DRILLS.append(
        Drill(
            KIND,
            f"two series of `{_profile}` killed at random times: everything, the parent, a worker",
            lambda ground, place, profile=_profile: kill_at_random(profile, ground, place),
            "usual",
        )
    )
