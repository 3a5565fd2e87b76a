"""A Hub on loopback for every test of this room.

`hub` is a fresh `LoopbackHub` (tests/publish/hub/loopback.py), and the environment points to it: HF_ENDPOINT,
HF_TOKEN (may write below `someone/`), HF_HUB_DISABLE_XET, an empty HF_HOME. `huggingface_hub` reads all
of them but HF_TOKEN when it is imported, which here was before the test; so code under test must hand
`endpoint=os.environ["HF_ENDPOINT"]` and a cache folder to the client itself, as v8.publish.hub.client does.
Processes that a test starts (`python -m v8 publish ...`) inherit the environment and need nothing more.

`make_run` makes run folders of finished series without training (tests/publish/hub/made_runs.py):
`make_run(["BTCUSDT-15m"], shares={"BTCUSDT-15m": make_run.LOSING})`, `make_run(make_run.UNIVERSE)` for 40.

Tokens, by fixture `tokens`: `.write`, `.read` (403 on writing), `.stranger` (writes below `stranger/`
only), `.wrong` (401).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from module_file import load_module

loopback = load_module(Path(__file__).with_name("loopback.py"))
made_runs = load_module(Path(__file__).with_name("made_runs.py"))

_LEADERBOARD_PICTURES: dict[str, bytes] = {}


@dataclass(frozen=True)
class Tokens:
    write: str = loopback.WRITE_TOKEN
    read: str = loopback.READ_TOKEN
    stranger: str = loopback.STRANGER_TOKEN
    wrong: str = "hf_NobodyKnowsThisToken"


@pytest.fixture
def tokens() -> Tokens:
    return Tokens()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start a Hub and point the environment to it."""
    with _hub(tmp_path, monkeypatch) as server:
        yield server


@pytest.fixture(scope="module")
def module_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Likewise, for what the tests of a module look at together."""
    with pytest.MonkeyPatch.context() as patch, _hub(tmp_path_factory.mktemp("hub"), patch) as server:
        yield server


@contextmanager
def _hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from huggingface_hub.utils import close_session

    with loopback.LoopbackHub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", loopback.WRITE_TOKEN)
        monkeypatch.setenv("HF_HOME", str(folder / "hf-home"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
        yield server
        close_session()
        assert not server.mistakes, server.mistakes[0]


@pytest.fixture(scope="session")
def keras_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save one small real Keras model for all artefacts of the session."""
    path = tmp_path_factory.mktemp("keras") / "model.keras"
    made_runs.write_keras_file(path)
    return path


@pytest.fixture(autouse=True)
def leaderboards_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the picture of the same leaderboard once in a session.

    It depends on nothing but title and rows, takes half a second, and hundreds of tests publish the same run.
    """
    from v8.publish.report import pictures

    draw = pictures.draw_leaderboard

    def draw_once(file: Path, title: str, rows: Any) -> None:
        key = f"{title} {list(rows)}"
        if key not in _LEADERBOARD_PICTURES:
            draw(file, title, rows)
            _LEADERBOARD_PICTURES[key] = file.read_bytes()
        else:
            file.write_bytes(_LEADERBOARD_PICTURES[key])

    monkeypatch.setattr(pictures, "draw_leaderboard", draw_once)


@pytest.fixture
def make_run(tmp_path: Path, keras_file: Path) -> Any:
    """Return a maker of run folders."""
    return made_runs.RunMaker(tmp_path / "runs", keras_file)


@pytest.fixture
def published(hub: Any, staged: Any) -> Any:
    """A Hub that holds two series as `someone/fleet`, in one commit."""
    from v8.publish.hub.publish import publish

    publish(staged, "someone/fleet", is_private=False)
    hub.forget()
    return hub


@pytest.fixture
def published_tiny(hub: Any, trained_run: Any, tmp_path: Path) -> Any:
    """A Hub that holds the trained run as `someone/tiny`, in private."""
    from v8.publish.hub.publish import publish
    from v8.publish.hub.staging import stage_run

    publish(stage_run(trained_run.path, tmp_path / "staged", "someone/tiny"), "someone/tiny", is_private=True)
    return hub


@pytest.fixture(scope="session")
def staged(tmp_path_factory: pytest.TempPathFactory, keras_file: Path) -> Any:
    """Stage a run of two models for `someone/fleet`, once; publishing does not change it."""
    from v8.publish.hub.staging import stage_run

    folder = tmp_path_factory.mktemp("staged")
    run = made_runs.RunMaker(folder / "runs", keras_file)()
    return stage_run(run, folder / "staged", "someone/fleet")
