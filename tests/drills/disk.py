"""Drills with disks that are really full or read-only, and with damaged or foreign run folders.

Small disks are mounted (tmpfs), which not every user may do; such a drill then says so. A call that meets the
fault succeeds or prints an error message that says what it needs; once there is space again, the same command
ends with the same weights.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from drills.ground import SERIES, Ground, ImpossibleHereError, Place, add, digests, drill, weights_of
from drills.kills import FATAL_WRITES

KIND = "disk"
DISK_BYTES = 24 << 20

Damage = Callable[[Path], object]
"""Changes a file or folder."""


def _mount(*words: str) -> None:
    try:
        completed = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ImpossibleHereError("there is no `mount`") from error
    if completed.returncode:
        raise ImpossibleHereError(completed.stderr.strip().splitlines()[-1])


@contextmanager
def small_disk(folder: Path, num_bytes: int = DISK_BYTES) -> Iterator[Path]:
    """Mount a disk of a few megabytes on a folder until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={num_bytes}", "none", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, free_bytes: int) -> Path:
    """Fill a disk but for some bytes; return the file to remove."""
    ballast = disk / "ballast"
    status = os.statvfs(disk)
    with ballast.open("wb") as stream:
        stream.write(bytes(max(0, status.f_bavail * status.f_frsize - free_bytes)))
    return ballast


def full_runs(free_bytes: int, ground: Ground, place: Place) -> str:
    """Run into a folder on a disk that has some bytes left, then free some space."""
    expected = weights_of(ground.undisturbed())
    with small_disk(place.folder / "disk") as disk:
        words = [*place.job(), "--runs", str(disk / "runs")]
        ballast = fill(disk, free_bytes)
        met = place.call(words)
        place.require(met.status in (0, 4, 6), f"exit {met.status}: {met.message}")
        ballast.unlink()
        place.continued(words, expected, disk / "runs" / "tiny")
    return "says so in a sentence; with free space, the same weights" if met.status else "the same weights"


def full_home(free_bytes: int, ground: Ground, place: Place) -> str:
    """Run with caches on a disk without free space: slower, with one line, to the same weights."""
    expected = weights_of(ground.undisturbed())
    with small_disk(place.folder / "home") as home:
        fill(home, free_bytes)
        place.continued(place.job(), expected)
    return "the same weights"


@drill(KIND, "V8_HOME is a file")
def home_is_a_file(ground: Ground, place: Place) -> str:
    expected = weights_of(ground.undisturbed())
    home = place.folder / "home"
    home.rmdir()
    home.write_text("the user's own\n")
    place.continued(place.job(), expected)
    place.require(home.is_file() and home.read_text() == "the user's own\n", "V8_HOME was changed")
    return "the same weights"


@drill(KIND, "V8_HOME read-only")
def home_is_read_only(ground: Ground, place: Place) -> str:
    expected = weights_of(ground.undisturbed())
    with small_disk(place.folder / "home") as home:
        _mount("-o", "remount,ro", str(home))
        place.continued(place.job(), expected)
    return "the same weights"


@drill(KIND, "a finished run on a read-only disk: run, report, predict")
def finished_read_only(ground: Ground, place: Place) -> str:
    source = ground.undisturbed()
    with small_disk(place.folder / "disk", 64 << 20) as disk:
        shutil.copytree(source, disk / "runs" / "tiny")
        before = digests(disk)
        _mount("-o", "remount,ro", str(disk))
        run = str(disk / "runs" / "tiny")
        again = place.call([*place.job(), "--runs", str(disk / "runs")])
        place.require(again.status == 0, f"the finished run again: exit {again.status}: {again.message}")
        report = place.call(["report", run])
        place.require(report.status in (0, 6), f"report: exit {report.status}: {report.message}")
        forecast = place.call(["predict", run, "--series", SERIES, "--source", "demo", "--allow-old"])
        place.require(forecast.status == 0, f"predict: exit {forecast.status}: {forecast.message}")
        place.require(digests(disk) == before, "the run was changed")
    return "works, nothing is written"


def copied(ground: Ground, place: Place) -> Path:
    shutil.copytree(ground.undisturbed(), place.run)
    return place.run


def damaged_result(name: str, damage: Damage, ground: Ground, place: Place) -> str:
    """Damage a file that holds results: it is refused by a sentence, and nothing of it is written over."""
    run = copied(ground, place)
    damage(run / name)
    before = digests(run)
    met = place.call(place.job())
    place.require(met.status in (0, 3, 4), f"exit {met.status}: {met.message}")
    after = digests(run)
    if met.status:
        changed = [path for path, digest in before.items() if after.get(path) != digest]
        changed = [path for path in changed if path.startswith(SERIES)]
        place.require(not changed, f"refused, and wrote over {', '.join(changed)}")
        if "--redo" not in met.output:
            return "refused in a sentence"
        place.continued([*place.job(), "--redo", SERIES], weights_of(ground.undisturbed()))
        return "refused in a sentence; with `--redo`, the same weights"
    place.require_same(weights_of(run), weights_of(ground.undisturbed()))
    return "done again, the same weights"


def foreign(prepare: Damage, ground: Ground, place: Place) -> str:
    """Start a run where files lie that v8 did not write: none of them is written over."""
    run = place.run
    prepare(run) if run.exists() else prepare(_new_folder(run))
    before = digests(run)
    met = place.call([*place.job(), "--epochs", "1"])
    place.require(met.status in (0, 2, 3), f"exit {met.status}: {met.message}")
    after = digests(run)
    place.lost.extend(f"the user's {name}" for name, digest in before.items() if after.get(name) != digest)
    return "refused in a sentence" if met.status else "left alone"


def _new_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


@drill(KIND, "`run.json` deleted, called again with `--epochs 1`", "small")
def run_json_deleted(ground: Ground, place: Place) -> str:
    (copied(ground, place) / "run.json").unlink()
    return foreign(lambda run: None, ground, place)


def refused_place(runs: str, ground: Ground, place: Place) -> str:
    met = place.call([*place.job(), "--runs", runs.format(place.folder)])
    place.require(met.status in (2, 3, 6), f"exit {met.status}: {met.message}")
    place.require_tidy()
    return "refused in a sentence"


@drill(KIND, "first call with `--bars 40`, then corrected")
def first_call_corrected(ground: Ground, place: Place) -> str:
    met = place.call([*place.job(), "--bars", "40"])
    place.require(met.status in (2, 3, 4), f"exit {met.status}: {met.message}")
    place.continued(place.job(), weights_of(ground.undisturbed()))
    return "refused in a sentence; corrected, the same weights"


def _cut_off(ground: Ground) -> Path:
    def make(place: Place) -> Path:
        place.more_env["V8_DRILL_AT"] = "checkpoint.npz after 2"
        ended = place.finish(place.start(place.job(), program=FATAL_WRITES), is_killed=True)
        if ended.status != -signal.SIGKILL:
            raise RuntimeError(f"the run was to be killed at its second checkpoint: {ended.message}")
        return place.run

    return ground.once("cut off", make)


def damaged_checkpoint(damage: Damage, ground: Ground, place: Place) -> str:
    shutil.copytree(_cut_off(ground), place.run)
    damage(next(place.run.rglob("checkpoint.npz")))
    place.continued(place.job(), weights_of(ground.undisturbed()))
    return "trained again, the same weights"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x55
    path.write_bytes(content)


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 16)


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def deep(path: Path) -> None:
    """Nest JSON deeper than a parser goes."""
    path.write_text("[" * 100_000)


def huge_number(path: Path) -> None:
    """Write a number that no machine holds."""
    path.write_text('{"format": ' + "9" * 20_000 + "}")


DAMAGES: dict[str, Damage] = {
    "cut": cut,
    "empty": empty,
    "with a byte flipped": flip,
    "garbage": garbage,
    "a folder": folder_instead,
    "deleted": Path.unlink,
}
JSON_DAMAGES: dict[str, Damage] = {
    **DAMAGES,
    "100,000 brackets": deep,
    "a number of 20,000 digits": huge_number,
}
FOREIGN: dict[str, Damage] = {
    "own `report.html` in the run's place": lambda run: (run / "report.html").write_text("my report\n"),
    "own `leaderboard.csv` in the run's place": lambda run: (run / "leaderboard.csv").write_text(
        "my,table\n"
    ),
    "own model in the run's place": lambda run: (_new_folder(run / SERIES) / "model.keras").write_bytes(
        b"mine"
    ),
}

for _free in (0, 4_096, 40_000, 150_000, 400_000, 3_000_000):
    _size = "small" if _free == 40_000 else "usual"
    add(KIND, f"run folder full but for {_free:,} bytes", _size, full_runs, _free)
for _free in (0, 20_000):
    add(KIND, f"V8_HOME full but for {_free:,} bytes", "usual", full_home, _free)
for _fault, _damage in DAMAGES.items():
    add(KIND, f"`checkpoint.npz` {_fault}", "usual", damaged_checkpoint, _damage)
for _name in ("run.json", f"{SERIES}/metadata.json"):
    for _fault, _damage in JSON_DAMAGES.items():
        if (_name, _fault) != ("run.json", "deleted"):
            add(KIND, f"`{Path(_name).name}` {_fault}", "long", damaged_result, _name, _damage)
for _name in (f"{SERIES}/history.csv", f"{SERIES}/model.keras", f"{SERIES}/forecasts.json"):
    for _fault in ("cut", "deleted", "garbage"):
        add(KIND, f"`{Path(_name).name}` {_fault}", "usual", damaged_result, _name, DAMAGES[_fault])
for _fault, _place in {
    "`--runs` a file": "{}/notes.txt",
    "`--runs` of 5,000 characters": "{}/" + "x" * 5_000,
    "`--runs` below a file": "{}/notes.txt/runs",
}.items():
    add(KIND, _fault, "usual", refused_place, _place)
for _fault, _damage in FOREIGN.items():
    add(KIND, _fault, "usual", foreign, _damage)
