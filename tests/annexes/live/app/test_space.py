"""The page as a Space: one commit, ours alone, and it starts from nothing but its own folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from exchange_api import ExchangeApi
from module_file import load_module
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

from v8.annexes.live.app import service
from v8.annexes.live.app.space import SPACE_DISTRIBUTION, StagedSpace, pinned
from v8.base.errors import PublishError
from v8.cli.app import app
from v8.data.market.series import Series
from v8.data.market.sources import open_source

pytestmark = pytest.mark.tf

REPOSITORY = Path(__file__).parents[4]
PYTHON = os.environ.get("V8_SPACE_PYTHON", sys.executable)
"""Another, of an environment with the pinned requirements alone, shows that these are enough."""

START_S = 1_735_689_600 - 6 * 3_600 + 420


@pytest.fixture(scope="module")
def hub(fleet_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Hub on loopback that holds the fleet as `someone/fleet`."""
    loopback = load_module(REPOSITORY / "tests" / "publish" / "hub" / "loopback.py")
    with loopback.LoopbackHub() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", server.url)
        patch.setenv("HF_TOKEN", loopback.WRITE_TOKEN)
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        patch.setenv("NO_PROXY", "127.0.0.1,localhost")
        process = call("publish", str(fleet_run), "--repo", "someone/fleet")
        assert process.exit_code == 0, process.output
        yield server
        assert not server.mistakes, server.mistakes[0]


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def publish(space: str, *more: str) -> Any:
    return call("publish", "--repo", "someone/fleet", "--space", space, *more)


def test_a_space_is_one_commit_and_the_same_again_is_none(hub: Any) -> None:
    dry = publish("someone/page", "--dry-run")
    assert "There is no Space someone/page yet" in dry.output
    assert "spaces/someone/page" not in hub.repos
    published = publish("someone/page")
    assert published.exit_code == 0, published.output
    assert f"Published: {hub.url}/spaces/someone/page at " in published.output
    assert [commit.title for commit in hub.commits("spaces/someone/page")] == [
        "Publish the page of someone/fleet"
    ]
    assert "Nothing has changed since" in publish("someone/page").output
    assert "holds all of it" in publish("someone/page", "--dry-run").output
    assert len(hub.commits("spaces/someone/page")) == 1
    files = hub.files("spaces/someone/page")
    card = yaml.safe_load(files["README.md"].decode().split("---")[1])
    assert (card["sdk"], card["app_port"], card["models"]) == ("docker", 7860, ["someone/fleet"])
    ends = (".py", ".css", ".html", ".js", ".md")
    sources = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "v8").rglob("*.*")}
    ours = {path for path in sources if path.endswith(ends)}
    assert {path for path in files if path.endswith(ends)} == ours | {"README.md"}
    assert any(path.endswith(".css") for path in ours)
    assert StagedSpace.marker in files
    assert {path for path in sources if path.endswith(".yaml")} <= set(files)
    assert {"v8/configs/universe.yaml", "Dockerfile", "requirements.txt"} <= set(files)
    licences = {f"v8/base/vendor/{name}-lightweight-charts" for name in ("LICENSE", "NOTICE")}
    assert licences <= set(files)
    assert files["LICENSE"].decode() == (REPOSITORY / "LICENSE").read_text("utf-8")
    everything = b"\n".join(files.values())
    assert os.environ["HF_TOKEN"].encode() not in everything
    assert f"{Path.home()}/".encode() not in everything


def test_what_we_published_and_is_gone_goes_and_what_is_somebody_else_s_stays(hub: Any) -> None:
    assert publish("someone/old").exit_code == 0
    hub.commit("spaces/someone/old", {"v8/gone.py": b"old", "notes.md": b"mine", "Dockerfile": b"changed"})
    printed = publish("someone/old", "--dry-run").output
    assert re.search(r"changed: +1 file\n.*removed: +1 file\n", printed, re.DOTALL)
    assert publish("someone/old").exit_code == 0
    files = hub.files("spaces/someone/old")
    assert "v8/gone.py" not in files
    assert files["notes.md"] == b"mine"
    assert b"someone/fleet" in files["Dockerfile"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--repo", "someone/fleet"], 2, "got neither"),
        (["runs/a", "--repo", "someone/fleet", "--space", "someone/page"], 2, "got both"),
        (["--repo", "someone/fleet", "--space", "page"], 5, "--space: is user/name"),
        (["--repo", "someone/nothing", "--space", "someone/page"], 5, "someone/nothing"),
        (["--repo", "someone/fleet", "--space", "stranger/page"], 5, "choose a --space of your own"),
        (["--repo", "someone/fleet", "--space", "someone/other"], 5, "one with other files: main.py"),
    ],
)
def test_what_cannot_be_published_is_one_sentence(hub: Any, words: list[str], code: int, said: str) -> None:
    if "spaces/someone/other" not in hub.repos:
        hub.create("spaces/someone/other", {"main.py": b"print()", "README.md": b"theirs"})
    process = call("publish", *words)
    assert (process.exit_code, process.stderr.count("error:")) == (code, 1)
    assert said in process.stderr
    assert hub.files("spaces/someone/other")["README.md"] == b"theirs"


@pytest.mark.nightly
@pytest.mark.process
def test_it_starts_from_its_folder_alone_and_shows_the_published_models(
    hub: Any, tmp_path: Path, fetch: Callable[..., Any]
) -> None:
    assert publish("someone/started").exit_code == 0
    space = tmp_path / "space"
    for path, content in hub.files("spaces/someone/started").items():
        (space / path).parent.mkdir(parents=True, exist_ok=True)
        (space / path).write_bytes(content)
    env = {**os.environ, "V8_HOME": str(tmp_path / "home"), "HF_HOME": str(tmp_path / "hf"), "SPACE_ID": "x"}
    for name in ("PYTHONPATH", "HF_TOKEN", "TF_CPP_MIN_LOG_LEVEL"):
        env.pop(name, None)
    with ExchangeApi(now_s=START_S) as exchange:
        frame = open_source("demo").candles(Series.parse("BTCUSDT-15m"), 900).to_frame()
        exchange.put("BTCUSDT-15m", frame)
        env["V8_REST_URL"] = env["V8_VISION_URL"] = exchange.url
        started = json.loads((space / "Dockerfile").read_text().splitlines()[-1].removeprefix("CMD "))
        assert started[0] == "python"
        words = [PYTHON, "-u", *started[1:], "--port", "0", "--host", "127.0.0.1"]
        origin = [PYTHON, "-c", "import v8; print(v8.__file__)"]
        output = subprocess.run(origin, cwd=space, env=env, capture_output=True, text=True, check=True).stdout
        assert Path(output.strip()) == space / "v8" / "__init__.py"
        with subprocess.Popen(words, cwd=space, env=env, stderr=subprocess.PIPE, text=True) as process:
            try:
                opening, said = (process.stderr.readline() if process.stderr else "" for _ in range(2))
                assert opening.startswith("Opening ")
                address = re.search(r"someone/fleet: (http://[^/]*)/", said)
                assert address, said
                health = fetch(f"{address[1]}/api/health").json()
                assert (health["status"], health["num_series"]) == ("ok", 2)
                assert health["revision"] == hub.commits("someone/fleet")[-1].oid
                answer = fetch(f"{address[1]}/api/forecast/BTCUSDT-15m").json()
                assert answer["first_bar"] == "2024-12-31T18:00:00Z"
                page = fetch(f"{address[1]}/series/BTCUSDT-15m")
                assert f"<td>{answer['forecast'][0]['volatility']:.3%}</td>".replace("%", " %") in page.text
                assert page.headers["content-security-policy"].endswith("https://huggingface.co")
            finally:
                process.kill()


def test_what_is_published_anew_is_taken_up_and_the_hub_is_seldom_asked(
    hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "HUB_REFRESH_S", 0.0)
    place = service.ModelSource("someone/fleet")
    first = place.refresh()
    assert place.refresh() is first
    newest = hub.commit("someone/fleet", {"notes.md": b"one more commit"})
    assert (place.refresh().revision, place.refresh().label) == (newest, "someone/fleet")
    monkeypatch.setattr(service, "HUB_REFRESH_S", 900.0)
    num_asked = hub.count()
    assert place.refresh().revision == newest
    assert hub.count() == num_asked


def test_the_pins_are_what_setup_cfg_asks_for_and_all_that_these_need() -> None:
    setup = ConfigParser()
    setup.read(REPOSITORY / "setup.cfg", "utf-8")
    asked = [setup["options"]["install_requires"], setup["options.extras_require"]["app"]]
    names = {Requirement(line).name for text in asked for line in text.split()}
    pins = {one.name: str(one.specifier) for one in map(Requirement, pinned(*SPACE_DISTRIBUTION))}
    assert {canonicalize_name(name) for name in names} <= set(pins)
    assert {"anyio", "h11", "ml-dtypes", "pydantic-core"} <= set(pins)
    assert all(re.fullmatch(r"==[0-9][0-9a-z.]*", pin) for pin in pins.values())
    assert not {"pytest", "v8", "v8-forecasters", "mypy"} & set(pins)
    with pytest.raises(PublishError, match=r"got no package no-such-package\. Install v8 with its extra app"):
        pinned("no-such-package", "app")
