"""A Dockerfile carried out without containers: in a folder that stands for `/`, on this machine's programs.

Places that the file names (`WORKDIR`, `VOLUME`, what `COPY` writes) lie in the folder, wherever a line speaks
of them; all else is this machine's. The base image is a bare environment (tests/parts/bare.py), so that what
is installed needs no download. Users are numbers. What our file does not need is not understood.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from bare import BareEnvironment


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Dockerfile, each as its word and the rest of its line."""
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word, rest.strip()


def sent_files(context: Path) -> list[PurePosixPath]:
    """List the files of a folder that its `.dockerignore` lets into an image."""
    rules = [
        line
        for line in (context / ".dockerignore").read_text("utf-8").splitlines()
        if line and line[0] != "#"
    ]
    paths = (PurePosixPath(path.relative_to(context)) for path in context.rglob("*") if path.is_file())
    return sorted(path for path in paths if not _is_ignored(path, rules))


def _is_ignored(path: PurePosixPath, rules: Sequence[str]) -> bool:
    is_ignored = False
    for rule in rules:
        pattern = rule.removeprefix("!")
        names = (str(one) for one in (path, *path.parents[:-1]))
        if any(fnmatch(name, pattern) or fnmatch(f"/{name}", pattern.replace("**/", "*/")) for name in names):
            is_ignored = not rule.startswith("!")
    return is_ignored


@dataclass
class Image:
    """What a Dockerfile makes.

    Args:
        root: The folder that stands for `/`; others must be able to read it.
        base: The environment that stands for the image it begins with.
        args: Values of `ARG`.
        env: The environment of the lines, and then of what is started.
        places: Names that lie in `root`.
        user: Number of the user; None for whoever runs the tests.
        told: The last value of every instruction that is about starting.
    """

    root: Path
    base: BareEnvironment
    args: Mapping[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    places: set[str] = field(default_factory=set)
    user: int | None = None
    told: dict[str, Any] = field(default_factory=dict)
    cwd: str = "/"

    @classmethod
    def of(cls, context: Path, root: Path, base: BareEnvironment, **args: str) -> Image:
        """Carry out the Dockerfile of a folder."""
        made, lines = cls(root, base, args), [*instructions((context / "Dockerfile").read_text("utf-8"))]
        for word, rest in lines:  # the places first: an earlier line may speak of them
            if word in ("WORKDIR", "VOLUME"):
                made.places.add(rest)
            elif word == "COPY" and rest.split()[-1].startswith("/"):
                made.places.add(rest.split()[-1])
        for word, rest in lines:
            made.carry_out(word, rest, context)
        return made

    def carry_out(self, word: str, rest: str, context: Path) -> None:
        """Carry out one instruction."""
        match word:
            case "FROM":
                self._begin()
            case "ARG":
                name, _, value = rest.partition("=")
                self.env[name] = self.args.get(name, "".join(shlex.split(value)))
            case "ENV":
                found = dict(pair.split("=", 1) for pair in shlex.split(rest))
                self.env |= {name: self._said(value) for name, value in found.items()}
            case "WORKDIR":
                self.cwd = self.placed(rest)
                Path(self.cwd).mkdir(parents=True, exist_ok=True)
            case "COPY":
                self._copy(rest.split(), context)
            case "RUN":
                # Who is not the administrator can give nothing away.
                line = rest if os.geteuid() == 0 else re.sub(r"--(owner|group)=\d+", "", rest)
                done = self.call("sh", "-c", self.placed(line))
                assert done.returncode == 0, done.stdout + done.stderr
            case "USER":
                self.user = int(rest.partition(":")[0])
            case "HEALTHCHECK":
                self.told[word] = json.loads(rest[rest.index("CMD ") + 4 :])
            case "ENTRYPOINT" | "CMD":
                self.told[word] = json.loads(rest)
            case "VOLUME" | "EXPOSE":
                self.told[word] = rest
            case _:
                raise AssertionError(f"{word} is not understood")

    def _begin(self) -> None:
        self.cwd, path = str(self.root), f"{self.base.python.parent}{os.pathsep}{os.environ['PATH']}"
        packages = str(self.base.folder / "packages")
        self.env = {"PATH": path, "PYTHONPATH": packages, "LANG": "C.UTF-8", "TMPDIR": str(self.root / "tmp")}
        # What is there is not asked for, neither to run v8 nor to build it.
        self.env |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "CUDA_VISIBLE_DEVICES": "-1"}
        if self.root.exists():
            self.root.rename(self._earlier)
        self.root.mkdir()
        (self.root / "tmp").mkdir()
        (self.root / "tmp").chmod(0o777)

    @property
    def _earlier(self) -> Path:
        return self.root.with_name(f"{self.root.name}-build")

    def _copy(self, words: Sequence[str], context: Path) -> None:
        *flags, source, target = words
        if flags:
            assert flags == ["--from=build"]
            shutil.copytree(self._earlier / source[1:], self.placed(target), symlinks=True)
            return
        assert (source, target) == (".", ".")
        for path in sent_files(context):
            (Path(self.cwd) / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(context / path, Path(self.cwd) / path)

    def placed(self, text: str) -> str:
        """Write names of places in a text as those of their folders."""
        for place in self.places:
            text = re.sub(rf"(?<![\w/.-]){place}(?![\w-])", f"{self.root}{place}", text)
        return text

    def _said(self, value: str) -> str:
        return re.sub(r"\$(\w+)", lambda found: self.env[found[1]], self.placed(value))

    def started(self, *words: str, **env: str) -> dict[str, Any]:
        """Return how a program of this image is started: as its user, with its environment alone."""
        program = shutil.which(words[0], path=self.env["PATH"])
        assert program, words[0]
        before = as_user(self.user) if self.user else []
        return {
            "args": [*before, program, *words[1:]],
            "cwd": self.cwd,
            "env": {**self.env, **env},
            "text": True,
        }

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Start a program of this image and wait for its end."""
        return subprocess.run(**self.started(*words), capture_output=True, timeout=300, check=False)


def as_user(number: int) -> list[str]:
    """Return words that start a program as another user, who may read what we may, and write what is its own.

    None where whoever runs the tests is not the administrator, in whose folders Python may lie.
    """
    if os.geteuid() != 0:
        return []
    may = "-all,+dac_read_search"
    who = [f"--reuid={number}", f"--regid={number}", "--clear-groups", "--no-new-privs"]
    return ["setpriv", *who, f"--inh-caps={may}", f"--ambient-caps={may}", f"--bounding-set={may}"]
