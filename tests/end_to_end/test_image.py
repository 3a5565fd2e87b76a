"""The Dockerfile, its own lines carried out here: an image that nobody but its volume is written by."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare import REPOSITORY, BareEnvironment, checkout_at
from dockerfile import Image, instructions, sent_files

from v8.version import VERSION

pytestmark = pytest.mark.skipif(os.name != "posix", reason="an image is of Linux")
SERIES = "BTCUSDT-15m"
COMMIT = "0123456789ab"


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The image; not where pytest keeps its folders, because nobody else may look into those."""
    folder = Path(tempfile.mkdtemp(prefix="v8-image-"))
    try:
        folder.chmod(0o755)
        for name in ("checkout", "base"):
            (folder / name).mkdir()
        checkout_at(folder / "checkout")
        base = BareEnvironment.at(folder / "base")
        yield Image.of(folder / "checkout", folder / "root", base, V8_COMMIT=COMMIT)
    finally:
        shutil.rmtree(folder)


def read_only(image: Image) -> dict[str, int]:
    """Return when each file was last written of all that is no volume."""
    files = (path for path in image.root.rglob("*") if path.is_file())
    found = {str(path.relative_to(image.root)): path.lstat().st_mtime_ns for path in files}
    return {name: when for name, when in found.items() if not name.startswith(("data/", "tmp/"))}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_it_is_sent_what_a_wheel_is_made_of_and_nothing_else(tmp_path: Path) -> None:
    checkout_at(tmp_path)
    (tmp_path / "v8" / "__pycache__").mkdir(exist_ok=True)
    (tmp_path / "v8" / "__pycache__" / "version.cpython-313.pyc").touch()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "ledger.sqlite").touch()
    sent = {str(path) for path in sent_files(tmp_path)}
    outside = {name for name in sent if not name.startswith(("v8/", "configs/"))}
    wanted = {"LICENSE", "MANIFEST.in", "README.md", "THIRD_PARTY.md", "pyproject.toml", "setup.cfg"}
    assert outside == {*wanted, "setup.py"}
    assert not [name for name in sent if "__pycache__" in name]
    assert {"v8/__main__.py", "configs/frontier.yaml"} <= sent


def test_it_begins_anew_with_what_was_installed_and_belongs_to_nobody_who_runs_in_it(image: Image) -> None:
    words = [word for word, _ in instructions((REPOSITORY / "Dockerfile").read_text("utf-8"))]
    assert words.count("FROM") == 2
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert not (image.root / "src").exists()
    assert image.user == 10001
    user = image.user if os.getuid() == 0 else os.getuid()
    assert image.call("python", "-c", "import os; print(os.getuid())").stdout == f"{user}\n"
    assert (image.root / "data").stat().st_uid == user
    assert {path.lstat().st_uid for path in (image.root / "opt").rglob("*")} == {os.getuid()}
    assert image.call("v8", "--version").stdout == f"v8 {VERSION} (commit {COMMIT})\n"


def test_it_trains_serves_and_tells_of_its_health_and_writes_into_its_volume_alone(image: Image) -> None:
    before, port = read_only(image), free_port()
    (entry,), command = image.told["ENTRYPOINT"], image.told["CMD"]
    ran = image.call(entry, "run", "--profile", "frontier", "--source", "demo", "--smoke", "--series", SERIES)
    assert ran.returncode == 0, ran.stderr
    (run,) = (image.root / "data" / "runs").iterdir()
    assert command[:2] == ["app", "runs/frontier"]
    words = ["app", f"runs/{run.name}", *command[2:], "--source", "demo", "--port", str(port)]
    health = [word.replace(image.told["EXPOSE"], str(port)) for word in image.told["HEALTHCHECK"]]
    assert health != image.told["HEALTHCHECK"]
    assert image.call(*health).returncode == 1
    served = image.started(entry, *words, V8_APP_TOKEN="a-token-of-this-test")
    with subprocess.Popen(**served, stderr=subprocess.PIPE) as app:
        try:
            said = next(line for line in app.stderr if "http://" in line)
            assert re.search(rf"http://0\.0\.0\.0:{port}/", said)
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/api/series")
            asked.add_header("Authorization", "Bearer a-token-of-this-test")
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(asked, timeout=60) as answer:
                assert SERIES in json.dumps(json.load(answer))
            assert image.call(*health).returncode == 0
        finally:
            app.terminate()
            app.communicate()
    assert app.returncode == 130  # `docker stop` sends SIGTERM
    assert read_only(image) == before
