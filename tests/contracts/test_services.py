"""compose.yaml and the units of systemd: their commands are ours and the same, and they may do little."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from programs import run_program

from v8.cli.app import app
from v8.profile.profile import profile_names

REPOSITORY = Path(__file__).parents[2]
UNITS = REPOSITORY / "systemd"
SERVICES: dict[str, Any] = yaml.safe_load((REPOSITORY / "compose.yaml").read_text("utf-8"))["services"]
TOKEN = "V8_APP_TOKEN"


def unit(name: str) -> ConfigParser:
    found = ConfigParser(interpolation=None, delimiters=("=",))
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(UNITS / name, "utf-8")
    return found


def words_of(line: str) -> list[str]:
    """Return the words behind `v8`, of a line or of what a shell is given."""
    words = shlex.split(line)
    return words_of(words[-1]) if words[0].endswith("sh") else words[1:]


def in_compose(name: str) -> list[str]:
    service = SERVICES[name]
    if "entrypoint" not in service:
        return list(service["command"])
    shell, flag, line = service["entrypoint"]
    assert (shell, flag) == ("sh", "-c")
    (command,) = re.findall(r"v8 ([^|;]+)", line)
    return shlex.split(command)


def in_units(name: str) -> list[str]:
    if name == "train":
        line = unit("v8-forecast.service")["Service"]["ExecStartPre"]
        return words_of(line)[: words_of(line).index("||")]
    return words_of(unit(f"v8-{name}.service")["Service"]["ExecStart"])


@pytest.mark.parametrize("name", ["train", "forecast", "update", "app"])
def test_a_command_is_one_of_ours_and_the_same_in_both(name: str) -> None:
    composed = in_compose(name)
    assert in_units(name) == [word for word in composed if word not in ("--host", "0.0.0.0")]
    command, *words = composed
    context = typer.main.get_command(app).commands[command].make_context(command, words)
    if name == "train":
        assert context.params["profile"] in profile_names()
    else:
        assert Path(context.params["run_argument"]).parent == Path("runs")


def test_the_page_without_tensorflow_is_the_other_one_with_its_runtime() -> None:
    assert in_compose("serve") == [*in_compose("app"), "--runtime", "onnx"]


@pytest.mark.process
def test_what_some_series_failed_in_does_not_stop_the_others() -> None:
    # Exit 4 of `run`, see v8/base/errors.py.
    for line in (SERVICES["train"]["entrypoint"][2].replace("$$", "$"), unit_line("ExecStartPre")):
        for status, expected in ((0, 0), (4, 0), (3, 1)):
            told = re.sub(r"\S*\bv8 run --profile frontier", f"(exit {status})", line)
            assert subprocess.run(["sh", "-c", told], check=False).returncode == expected, told


def unit_line(key: str) -> str:
    return shlex.split(unit("v8-forecast.service")["Service"][key])[-1]


def test_every_service_can_write_into_the_volume_alone_and_waits_for_the_models() -> None:
    volume = re.search(r"^VOLUME (\S+)$", (REPOSITORY / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert volume
    for name, service in SERVICES.items():
        assert service["read_only"] is True, name
        assert service["volumes"] == [f"data:{volume[1]}"]
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
        assert service["pull_policy"] == "build"  # of the name v8 there is a stranger's image
        stages = {"v8": None, "v8-serve": "serve"}
        assert service["build"].get("target") == stages[service["image"]]
        waits = {"train": {"condition": "service_completed_successfully"}}
        assert service.get("depends_on") == (None if name == "train" else waits)


@pytest.mark.process
def test_the_page_is_of_this_machine_alone_and_is_not_started_without_a_token() -> None:
    assert SERVICES["app"]["ports"] == ["127.0.0.1:8008:8008"]
    assert SERVICES["app"]["environment"][TOKEN].startswith(f"${{{TOKEN}:?")
    assert "healthcheck" not in SERVICES["app"]  # the image's own
    pages = {"app", "serve"}
    assert all(SERVICES[name]["healthcheck"]["disable"] for name in SERVICES.keys() - pages)
    assert SERVICES["serve"]["environment"] == SERVICES["app"]["environment"]
    assert SERVICES["serve"]["ports"] == ["127.0.0.1:8009:8008"]
    assert SERVICES["serve"]["profiles"] == ["serve"]  # of the two pages one is started
    assert "--host" not in unit("v8-app.service")["Service"]["ExecStart"]
    setup = (UNITS / "v8-forecast.service").read_text("utf-8")
    made, file = re.search(r"python3 -c '(.+)' > (\S+)", setup).groups()
    assert unit("v8-app.service")["Service"]["EnvironmentFile"] == file
    token = subprocess.run(["python3", "-c", made], capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(TOKEN + r"=[\w-]{16,}\n", token)


def test_forecasts_are_posted_where_the_environment_says_so_and_nowhere_else() -> None:
    posting = {name: f"${{{name}:-}}" for name in ("V8_POST_URL", "V8_POST_SECRET")}
    assert SERVICES["forecast"]["environment"] == posting
    assert unit("v8-forecast.service")["Service"]["EnvironmentFile"] == "-/etc/v8/forecast.env"
    parsed = typer.main.get_command(app).commands["forecast"]
    with pytest.MonkeyPatch.context() as patch:
        for given, wanted in (("", None), ("https://you.example/hooks", "https://you.example/hooks")):
            patch.setenv("V8_POST_URL", given)
            post = parsed.make_context("forecast", ["runs/frontier"]).params["post"]
            assert (post or None) == wanted


def test_the_units_are_of_a_user_of_their_own_who_can_write_where_the_models_lie() -> None:
    common = unit("v8-.service.d/guarded.conf")["Service"]
    assert (common["DynamicUser"], common["User"]) == ("yes", "v8")  # with it the rest cannot be written
    assert common["WorkingDirectory"] == f"/var/lib/{common['StateDirectory']}"
    assert common["CapabilityBoundingSet"] == ""


@pytest.mark.process
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
def test_systemd_understands_the_units_and_finds_them_guarded(tmp_path: Path) -> None:
    shutil.copytree(UNITS, tmp_path / "units")
    program = shutil.which("true")
    for file in (tmp_path / "units").glob("*.service"):
        file.write_text(file.read_text("utf-8").replace("/opt/v8/bin/v8", str(program)))
    for file in sorted((tmp_path / "units").glob("v8-*.*")):
        if file.is_file():
            env = {"SYSTEMD_UNIT_PATH": f"{tmp_path}/units:", "PATH": "/usr/bin:/bin"}
            words = ["systemd-analyze", "verify", "--man=no", str(file)]
            process = run_program(words, env=env)
            assert (process.returncode, process.stderr) == (0, ""), file.name
            if file.suffix == ".service":
                words = ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(file)]
                process = run_program(words, env=env)
                assert process.returncode == 0, process.stdout


def test_the_image_s_own_command_is_the_page_s() -> None:
    text = (REPOSITORY / "Dockerfile").read_text("utf-8")
    (said,) = re.findall(r"^CMD (\[.+\])$", text, re.MULTILINE)
    assert json.loads(said) == SERVICES["app"]["command"]
