"""Drills with SIGKILL at random times, after checkpoints and at each write, of all processes or one of them.

The same command again and again must end with the weights of an undisturbed run, bit for bit.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import psutil

from drills.archive import serving_folder
from drills.ground import SERIES, Ended, Ground, Place, add, contents_of, drill, kill, weights_of

KIND = "kills"
FATAL_WRITES = (str(Path(__file__).with_name("fatal_writes.py")),)
NEVER = 80
"""A chain of kills at new writes that does not end by then, never ends."""

NUM_WRITES_OF_SIZE = {"small": 3, "usual": NEVER, "long": NEVER}

PAIR = ("BTCUSDT-1h", "ETHUSDT-1h")
PROFILES = {"aligned": ("--bars", "850", "--epochs", "2"), "frontier": ("--bars", "1500", "--epochs", "6")}
MANY_EPOCHS = ("--bars", "850", "--epochs", "10")
"""Of `aligned`, with the fewest bars that it takes: a checkpoint comes every few seconds."""

FULL_PROFILES = {"aligned": ("--epochs", "3"), "frontier": ()}
"""Whole networks, batches and 8,000 candles; an epoch of `aligned` takes minutes, so it has few of them."""

FULL_LIMIT_S = 3_600.0

FATAL_MOMENTS = (
    "checkpoint.npz before 1",
    "checkpoint.npz after 1",
    "model.keras before 1",
    "metadata.json before 1",
)
"""Of the calls that continue a run of full size, one after another: where each dies (`fatal_writes.py`)."""

CHECKPOINTS = "*/.training/checkpoint.npz"
KILLS_OF_SIZE = {"small": 1, "usual": 4, "long": 20}
KILLS_PER_RUN = 5
"""A run that is killed so often goes on undisturbed, is compared, and the next begins in a new folder."""

VICTIMS = ("everything", "everything", "the parent", "a worker")


Moment = Callable[[subprocess.Popen[bytes], float], None]
"""Waits until a call is to be killed, or has ended; its argument: seconds of the longest call."""


def job(profile: str, budget: Sequence[str], source: Sequence[str], runs: Path) -> list[str]:
    """Return the main job of two series under a shipped profile on a small budget."""
    chosen = [word for name in PAIR for word in ("--series", name)]
    words = ["run", "--profile", profile, *chosen, *budget, *source, "--precision", "float32"]
    return [*words, "--workers", "2", "--device", "cpu", "--runs", str(runs)]


def kill_at_random(profile: str, ground: Ground, place: Place) -> str:
    def moment(run: Path) -> Moment:
        return lambda process, longest_s: _wait(process, place.chance.uniform(0.05, 1.0) * longest_s)

    num_kills, _ = kill_often(profile, PROFILES[profile], ground, place, moment)
    return f"{num_kills} kills, the same weights to the bit"


@drill(KIND, "two series of `aligned`, not shortened, killed after a checkpoint was written")
def kill_after_checkpoints(ground: Ground, place: Place) -> str:
    """Kill runs that have got on since they began, each time from the start: the next call continues them."""

    def moment(run: Path) -> Moment:
        old_checkpoints = _checkpoints(run)  # of the calls before

        def wait(process: subprocess.Popen[bytes], longest_s: float) -> None:
            while process.poll() is None and not _have_got_on(run, old_checkpoints):
                time.sleep(0.05)
            _wait(process, place.chance.uniform(0.0, 2.0))

        return wait

    num_kills, runs = kill_often("aligned", MANY_EPOCHS, ground, place, moment)
    epochs = [_resumed_from(run) for run in runs]
    place.require(all(map(any, epochs)), f"no series of a run went on from its checkpoint: {epochs}")
    epoch_text = ", ".join(map(str, sorted({epoch for epochs_of_run in epochs for epoch in epochs_of_run})))
    return f"{num_kills} kills, continued at last after epoch {epoch_text}, the same weights to the bit"


def kill_often(
    profile: str, budget: Sequence[str], ground: Ground, place: Place, moment: Callable[[Path], Moment]
) -> tuple[int, list[Path]]:
    """Kill runs of a profile until there were enough kills, and compare each with one that nobody disturbed.

    Args:
        profile: Name of a shipped one.
        budget: Words that shorten its run.
        ground: Says how many kills are enough.
        place: Where the runs lie.
        moment: Returns for a run folder what waits until its next call is to be killed.

    Returns:
        How many kills there were, and the folders of the runs that were killed.
    """
    with serving_folder(ground.archive, place) as source:
        straight = place.make(job(profile, budget, source, place.folder / "straight"))
        expected = weights_of(place.folder / "straight" / profile)
        wanted = KILLS_OF_SIZE[ground.size]
        killed = list[Path]()
        longest_s = straight.seconds
        for number in count(1):
            run = place.folder / f"killed-{number}" / profile
            words = job(profile, budget, source, run.parent)
            for _ in range(min(KILLS_PER_RUN, wanted - len(killed))):
                ended = kill_once(place, words, moment(run), longest_s)
                if ended:  # by itself: the machine is faster now than it was
                    longest_s = min(longest_s, ended.seconds)
                    break
                killed.append(run)
            place.continued(words, expected, run)
            if len(killed) >= wanted:
                break
    return len(killed), sorted(set(killed))


def kill_once(place: Place, words: Sequence[str], moment: Moment, longest_s: float) -> Ended | None:
    """Start a call and kill it, or a part of it, at a moment; return how it ended if it was faster."""
    started = time.monotonic()
    process = place.start(words)
    moment(process, longest_s)
    if process.poll() is not None:
        return replace(place.finish(process), seconds=time.monotonic() - started)
    victim = place.chance.choice(VICTIMS)
    if victim == "a worker" and _kill_a_worker(place, process):  # its series goes on within the same call
        place.finish(process)
        return None
    if victim == "the parent":
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


def _checkpoints(run: Path) -> set[tuple[str, int]]:
    """Return the checkpoints of a run, each with its time of writing in ns."""
    checkpoints = set()
    for path in run.glob(CHECKPOINTS):
        with suppress(FileNotFoundError):  # it goes when its series is finished
            checkpoints.add((str(path), path.stat().st_mtime_ns))
    return checkpoints


def _have_got_on(run: Path, old_checkpoints: set[tuple[str, int]]) -> bool:
    """Whether every series that is not finished has written another checkpoint."""
    names = {Path(path).parents[1].name for path, _ in _checkpoints(run) - old_checkpoints}
    return all(name in names or (run / name / "metadata.json").exists() for name in PAIR)


def _resumed_from(run: Path) -> list[int]:
    """Return the epoch after which each series of a finished run was continued the last time."""
    files = sorted(run.glob("*/metadata.json"))
    return [json.loads(file.read_text())["training"]["resumed_from_epoch"] for file in files]


def _kill_a_worker(place: Place, process: subprocess.Popen[bytes]) -> bool:
    """Kill one of a call's workers; return whether there was one."""
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children()
        workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        if workers:
            place.chance.choice(workers).kill()
            return True
    return False


@drill(KIND, "a tiny run killed before and after a write, then at the next one, and so on", "small")
def kill_at_each_write(ground: Ground, place: Place) -> str:
    expected = weights_of(ground.undisturbed())
    label_file = place.folder.parent / "seen"
    place.more_env["V8_DRILL_SEEN"] = str(label_file)
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


def kill_full_size(profile: str, ground: Ground, place: Place) -> str:
    with serving_folder(ground.archive, place) as source:
        straight = place.make(full_job(profile, source, place.folder / "straight"), FULL_LIMIT_S)
        run = place.folder / "killed" / profile
        words = full_job(profile, source, run.parent)
        expected = place.folder / "straight" / profile
        kill_within_an_epoch(place, words, run, _epoch_s(expected))
        for moment in FATAL_MOMENTS:
            _require_death_at(place, words, moment)
        place.again(words, FULL_LIMIT_S)
    place.require_same_contents(contents_of(run), contents_of(expected))
    num_epochs = _resumed_from(run)[0]
    place.require(num_epochs > 0, "the last call did not continue from a checkpoint")
    num_kills = 1 + len(FATAL_MOMENTS)
    return (
        f"{num_kills} kills, continued at last after epoch {num_epochs}; model.keras, forecasts.json, "
        f"metadata and history without times equal byte for byte; undisturbed {straight.seconds:.0f} s"
    )


def full_job(profile: str, source: Sequence[str], runs: Path) -> list[str]:
    words = ["run", "--profile", profile, "--series", SERIES, *FULL_PROFILES[profile], *source]
    return [*words, "--workers", "1", "--device", "cpu", "--runs", str(runs)]


def kill_within_an_epoch(place: Place, words: Sequence[str], run: Path, epoch_s: float) -> None:
    """Start a run and kill all its processes half an epoch after its first checkpoint."""
    process = place.start(words)
    while process.poll() is None and not _checkpoints(run):
        time.sleep(0.05)
    _wait(process, place.chance.uniform(0.3, 0.7) * epoch_s)
    place.require(process.poll() is None, "the run ended before it could be killed within an epoch")
    kill(process)
    place.finish(process, is_killed=True)


def _require_death_at(place: Place, words: Sequence[str], moment: str) -> None:
    """Continue a run until it dies at a write, and note a trouble if it does not."""
    place.more_env["V8_DRILL_AT"] = moment
    process = place.start(words, program=FATAL_WRITES)
    status = place.finish(process, FULL_LIMIT_S, is_killed=True).status
    del place.more_env["V8_DRILL_AT"]
    place.require(status == -signal.SIGKILL, f"ended with {status}, and was to die at {moment}")


def _epoch_s(run: Path) -> float:
    """Return how long an epoch of a finished run of one series took, in seconds."""
    metadata = json.loads((run / SERIES / "metadata.json").read_text())
    return float(metadata["seconds"]["train"] / metadata["training"]["epochs_run"])


for _profile in FULL_PROFILES:
    _moments = "within an epoch, around writing a checkpoint, while writing the model and its metadata"
    add(KIND, f"`{_profile}` of full size killed {_moments}", "full", kill_full_size, _profile)
for _profile in PROFILES:
    _fault = f"two series of `{_profile}` killed at random times: everything, the parent, a worker"
    add(KIND, _fault, "usual", kill_at_random, _profile)
