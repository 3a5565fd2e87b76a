"""Drills of publishing and pulling with the Hub of the tests on loopback; the client is the real one.

Whatever happens, there is never more than one commit and never half of one, and the same command again ends
with exactly what was to be published, or pulled.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import loopback

from drills.ground import REPOSITORY, Ground, Place, add, digests, drill, kill, killed_after
from drills.interrupts import AT_ONCE_S, HANG_S, SOON_S

KIND = "hub"
REPO = "someone/fleet"
HASTY = (str(Path(__file__).with_name("hasty.py")),)
ROUTES = ("whoami", "create", "preupload", "lfs-batch", "lfs-put", "lfs-verify", "commit")
HUB_LIMIT_S = 240.0
FOR_EVER = 10_000

Prepare = Callable[[Any], object]
"""Lets something go wrong at a Hub."""


class DeadlyHub(loopback.LoopbackHub):
    """A Hub that kills its client in the middle of a request, before or after doing what it asks."""

    victim: subprocess.Popen[bytes] | None = None
    route = ""
    is_done_first = False

    def handle(self, method: str, target: str, headers: Any, body: bytes) -> Any:
        """Answer, or kill who asks."""
        if self.victim is None or loopback.find_route(method, target)[0] != self.route:
            return super().handle(method, target, headers, body)
        answer = super().handle(method, target, headers, body) if self.is_done_first else None
        kill(self.victim)
        self.victim.wait()
        return answer or loopback.Answer(503)


@contextmanager
def at_hub(ground: Ground, place: Place) -> Iterator[tuple[Any, list[str]]]:
    """Start a Hub; yield it and the words that publish a run of two models there."""
    run = place.folder / "run"
    shutil.copytree(ground.once("a run to publish", _made_run), run)
    with DeadlyHub() as hub:
        place.more_env |= {
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": loopback.WRITE_TOKEN,
            "HF_HOME": str(place.folder.parent / "hf-home"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        yield hub, ["publish", str(run), "--repo", REPO]


def _made_run(place: Place) -> Path:
    """Make a run folder of two finished series in a process that may load Keras."""
    code = (
        "import sys; from pathlib import Path; import made_runs\n"
        "folder = Path(sys.argv[1]); file = folder / 'model.keras'\n"
        "made_runs.write_keras_file(file)\n"
        "print(made_runs.RunMaker(folder / 'made', file)())\n"
    )
    paths = os.pathsep.join(str(REPOSITORY / part) for part in ("", "tests/publish/hub", "tests/parts"))
    completed = subprocess.run(
        [sys.executable, "-c", code, str(place.folder)],
        env={**place.env, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(completed.stdout.splitlines()[-1])


def require_published(place: Place, hub: Any) -> None:
    """Note anything but one whole commit, compared with a Hub that never misbehaved."""
    commits = hub.commits(REPO) if REPO in hub.repos else []
    place.require(len(commits) == 1, f"{len(commits)} commits")
    held = hub.files(REPO) if commits else {}
    for model in (place.folder / "run").glob("*/model.keras"):
        if held.get(f"models/{model.parent.name}/model.keras") != model.read_bytes():
            place.lost.append(f"{model.parent.name} at the Hub")
    place.require("manifest.json" in held and "README.md" in held, "the commit is not whole")
    place.require(not hub.mistakes, f"the Hub of the drill failed: {hub.mistakes[:1]}")


def publish_under(prepare: Prepare, ground: Ground, place: Place) -> str:
    """Publish under a fault; where that gives up, the Hub behaves and the same command must finish."""
    with at_hub(ground, place) as (hub, words):
        run_before = digests(Path(words[1]))
        prepare(hub)
        met = place.call(words, HUB_LIMIT_S, program=HASTY)
        place.require(met.status in (0, 5), f"exit {met.status}: {met.message}")
        hub.behave()
        if met.status:
            place.again(words)
        require_published(place, hub)
        place.require(digests(Path(words[1])) == run_before, "the run folder was changed")
        place.require_tidy()
    return "gave up in a sentence; again: one commit" if met.status else "one commit"


def publish_killed(route: str, is_done_first: bool, ground: Ground, place: Place) -> str:
    with at_hub(ground, place) as (hub, words):
        hub.route = route
        hub.is_done_first = is_done_first
        with killed_after(place.start(words)) as hub.victim:
            ended = place.finish(hub.victim, is_killed=True)
        place.require(ended.status == -signal.SIGKILL, f"was not killed: {ended.message}")
        hub.victim = None
        place.again(words)
        require_published(place, hub)
    return "again: one commit"


@drill(KIND, "two publishers at once", "small")
def publish_twice_at_once(ground: Ground, place: Place) -> str:
    with at_hub(ground, place) as (hub, words):
        both = [place.start(words), place.start(words)]
        ended = [place.finish(publisher, HUB_LIMIT_S) for publisher in both]
        for publisher in ended:
            place.require(publisher.status in (0, 3, 5), f"exit {publisher.status}: {publisher.message}")
        place.again(words)
        require_published(place, hub)
    return "one commit"


def publish_strange(make_strange: Callable[[Path], object], ground: Ground, place: Place) -> str:
    with at_hub(ground, place) as (hub, words):
        make_strange(Path(words[1]))
        before = digests(place.folder.parent)
        met = place.call(words)
        place.require(met.status in (3, 5), f"exit {met.status}: {met.message}")
        place.require(REPO not in hub.repos or not hub.commits(REPO), "it was published")
        after = {
            name: digest for name, digest in digests(place.folder.parent).items() if "/home/" not in name
        }
        new = [name for name in after if before.get(name) != after[name]]
        place.require(not new, f"wrote {', '.join(new[:4])}")
    return "refused in a sentence, nothing is sent"


@drill(KIND, "a run of fewer models published to the same repository")
def publish_fewer(ground: Ground, place: Place) -> str:
    with at_hub(ground, place) as (hub, words):
        place.call(words)
        record = Path(words[1]) / "run.json"
        content = json.loads(record.read_text())
        del content["series"]["ETHUSDT-1h"]
        record.write_text(json.dumps(content))
        place.again(words)
        if "models/ETHUSDT-1h/model.keras" not in hub.files(REPO):
            place.lost.append("models/ETHUSDT-1h at the Hub")
    return "the other models stay"


def _rename_series(run: Path) -> None:
    record = run / "run.json"
    content = json.loads(record.read_text())
    content["series"]["../../pwn"] = content["series"]["ETHUSDT-1h"]
    record.write_text(json.dumps(content))
    shutil.copytree(run / "ETHUSDT-1h", run / "../../pwn")


def _link_history(run: Path) -> None:
    (run / "ETHUSDT-1h" / "history.csv").unlink()
    (run / "ETHUSDT-1h" / "history.csv").symlink_to("/etc/passwd")


def _swap_metadata(run: Path) -> None:
    file = run / "ETHUSDT-1h" / "metadata.json"
    file.write_text(file.read_text().replace("ETHUSDT-1h", "SOLUSDT-1h"))


STRANGE: dict[str, Callable[[Path], object]] = {
    "`run.json` with a series `../../pwn`": _rename_series,
    "`history.csv` a link to a system file": _link_history,
    "metadata that names another series": _swap_metadata,
    "a model of another run": lambda run: (run / "ETHUSDT-1h" / "model.keras").write_bytes(b"PK"),
}


def publish_interrupted(route: str, ground: Ground, place: Place) -> str:
    with at_hub(ground, place) as (hub, words):
        hub.stall(route, times=FOR_EVER)
        for is_twice, limit_s in ((False, SOON_S), (True, AT_ONCE_S)):
            hub.forget()
            with killed_after(place.start(words)) as process:
                _wait_for(hub, route, process)
                for _ in range(1 + is_twice):
                    kill(process, signal.SIGINT)
                    time.sleep(0.3 * is_twice)
                ended = place.finish(process, HANG_S)
            place.require(ended.status == 130, f"exit {ended.status}: {ended.message}")
            place.require(ended.seconds <= limit_s, f"went on for {ended.seconds:.1f} s after Ctrl-C")
        hub.behave()
        place.again(words)
        require_published(place, hub)
    return "Ctrl-C ends in time; again: one commit"


def _wait_for(hub: Any, route: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + HUB_LIMIT_S
    while hub.count(route) == 0 and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.5)


def pull_under(prepare: Prepare, ground: Ground, place: Place) -> str:
    with at_hub(ground, place) as (hub, words):
        place.call(words)
        hub.forget()
        prepare(hub)
        pulling = ["pull", "--repo", REPO]
        met = place.call(pulling, HUB_LIMIT_S)
        place.require(met.status in (0, 3, 5), f"exit {met.status}: {met.message}")
        hub.behave()
        place.again(pulling)
        _require_pulled(place, hub)
    return (
        "gave up in a sentence; again: every file as published" if met.status else "every file as published"
    )


@drill(KIND, "pull killed while a model travels")
def pull_killed(ground: Ground, place: Place) -> str:
    with at_hub(ground, place) as (hub, words):
        place.call(words)
        hub.forget()
        hub.route = "lfs-get"
        with killed_after(place.start(["pull", "--repo", REPO])) as hub.victim:
            place.finish(hub.victim, is_killed=True)
        hub.victim = None
        place.again(["pull", "--repo", REPO])
        _require_pulled(place, hub)
    return "again: every file as published"


def _require_pulled(place: Place, hub: Any) -> None:
    cached = {
        path.relative_to(path.parents[2]).as_posix(): path.read_bytes()
        for path in Path(place.more_env["HF_HOME"]).glob("hub/models--*/snapshots/*/models/*/*")
    }
    held = {path.removeprefix("models/"): content for path, content in hub.files(REPO).items()}
    cached = {"/".join(path.split("/")[-2:]): content for path, content in cached.items()}
    place.require(len(cached) >= 2, f"{len(cached)} files pulled")
    place.lost.extend(path for path, content in cached.items() if held.get(path) != content)


PUBLISHES: dict[str, tuple[str, Prepare]] = {
    "answer to the commit lost": ("small", lambda hub: hub.lose_answer("commit")),
    "commit 503 for ever": ("usual", lambda hub: hub.answer("commit", 503, times=FOR_EVER)),
    "commit 429, Retry-After 1": ("usual", lambda hub: hub.answer("commit", 429, retry_after="1")),
    "commit 429, Retry-After 3600": ("usual", lambda hub: hub.answer("commit", 429, retry_after="3600")),
    "commit 500 with an HTML page": ("usual", lambda hub: hub.answer("commit", 500, message="<p>" * 3_000)),
    "commit answered too late": ("usual", lambda hub: hub.slow("commit", 30.0)),
    "uploads cut for ever": ("usual", lambda hub: hub.cut("lfs-put", times=FOR_EVER)),
    "answers to uploads stall for ever": ("usual", lambda hub: hub.slow("lfs-put", 60.0, times=FOR_EVER)),
    "uploads stall for ever": ("usual", lambda hub: hub.stall("lfs-put", times=FOR_EVER)),
    "list of files of 1 byte/s": ("usual", lambda hub: hub.drip("tree", 1.0, times=FOR_EVER)),
    "the Hub is down": ("usual", lambda hub: hub.cut("whoami", times=FOR_EVER)),
}
PULLS: dict[str, tuple[str, Prepare]] = {
    "pull: models cut for ever": ("usual", lambda hub: hub.cut("lfs-get", times=FOR_EVER)),
    "pull: a model damaged on its way": ("small", lambda hub: hub.flip("lfs-get")),
    "pull: models damaged for ever": ("usual", lambda hub: hub.flip("lfs-get", times=FOR_EVER)),
    "pull: manifest damaged for ever": (
        "usual",
        lambda hub: hub.flip("resolve", times=FOR_EVER, where="manifest.json"),
    ),
    "pull: a model stalls once": ("usual", lambda hub: hub.slow("lfs-get", 60.0)),
    "pull: models stall for ever": ("long", lambda hub: hub.stall("lfs-get", times=FOR_EVER)),
    "pull: models of 1 byte/s": ("long", lambda hub: hub.drip("lfs-get", 1.0, times=FOR_EVER)),
    "pull: 503 for ever": ("usual", lambda hub: hub.answer("resolve", 503, times=FOR_EVER)),
}


def add_faults_of(route: str) -> None:
    """Register what is done about any route: it fails once, loses its answer, and its client is killed."""
    add(KIND, f"`{route}` 500 once", "long", publish_under, lambda hub: hub.answer(route, 500))
    add(
        KIND, f"`{route}` 429 once, no Retry-After", "long", publish_under, lambda hub: hub.answer(route, 429)
    )
    add(KIND, f"answer to `{route}` lost", "long", publish_under, lambda hub: hub.lose_answer(route))
    size_after = {"commit": "small", "lfs-put": "usual"}.get(route, "long")
    add(KIND, f"killed after `{route}` was done", size_after, publish_killed, route, True)
    add(KIND, f"killed before `{route}` was done", "long", publish_killed, route, False)


for _fault, (_size, _prepare) in PUBLISHES.items():
    add(KIND, _fault, _size, publish_under, _prepare)
for _route in ROUTES:
    add_faults_of(_route)
for _route in ("lfs-put", "commit"):
    add(KIND, f"Ctrl-C while `{_route}` is silent", "usual", publish_interrupted, _route)
for _fault, _strange in STRANGE.items():
    add(KIND, f"publish: {_fault}", "usual", publish_strange, _strange)
for _fault, (_size, _prepare) in PULLS.items():
    add(KIND, _fault, _size, pull_under, _prepare)
