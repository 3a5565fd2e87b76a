"""Compiled programs, kept for the next process.

XLA takes most of a start: seconds to a minute for one step of training. TensorFlow can read programs from a
folder and write them there (`--tf_xla_persistent_cache_directory`), but it trusts what it finds, and training
fails where it cannot write. So a process gives it a folder that passes with the process. What was kept under
`V8_HOME/programs` is copied into it, each file checked by its digest; what TensorFlow adds is kept after
compiling, if the place takes it. A program serves the versions, the processor and the settings that compiled
it, and those alone: they name its folder. TensorFlow compares the whole program before it takes one, so that
a changed profile is compiled anew. What is read is the machine code that was written: results stay equal to
the bit.

A GPU's programs are not kept here, and nothing of JAX.
"""

import atexit
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from packaging.version import Version

from v8.hardware import identity, processor_flags
from v8.storage import digest_bytes, digest_json, home, passing_folder, read_given, write_cache

PROGRAMS_FORMAT: Final = 1
FIRST_VERSION: Final = Version("2.21")
"""The oldest TensorFlow that was seen to read the programs of a CPU back."""
MOST_PROGRAMS: Final = 24
"""Programs kept of one machine and its settings, the newest; one of `aligned` has 4 MB."""
FREE_BYTES: Final = 1 << 30
"""With less room for passing files than that, TensorFlow only reads: a full disk would end the training."""
_FLAGS: Final = "TF_XLA_FLAGS"
_DIRECTORY: Final = "--tf_xla_persistent_cache_directory"
_SETTINGS: Final = (
    *(_FLAGS, "XLA_FLAGS", "TF_ENABLE_ONEDNN_OPTS"),
    *("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"),
)
"""Variables that change what is compiled."""
_NAME: Final = re.compile(r"[A-Za-z0-9_]{1,200}\.pb")
_PLAIN: Final = re.compile(r"[\w./:+@-]+")
"""What a path may hold: TensorFlow takes its flags apart at blanks."""
_DIGEST_BYTES: Final = 64
_MAX_BYTES: Final = 1 << 30
_open: "list[_Programs]" = []
_until_exit: Final = ExitStack()
atexit.register(_until_exit.close)


@contextmanager
def kept_programs() -> Iterator[None]:
    """Let the TensorFlow that the block starts find compiled programs, and keep those that it adds.

    Where TensorFlow has been started, is too old or is told of a folder by the user, nothing is kept.
    """
    programs = _opened() if _can_be_kept() else None
    before = os.environ.get(_FLAGS)
    if programs is None:
        yield
        return
    _open.append(programs)
    os.environ[_FLAGS] = f"{before or ''} {programs.flags}".strip()
    try:
        yield
    finally:
        del os.environ[_FLAGS]
        if before is not None:
            os.environ[_FLAGS] = before
    keep_new_programs()


def keep_new_programs() -> None:
    """Keep what was compiled since; called as soon as that is so, because a process may be killed later."""
    for programs in _open:
        with suppress(OSError):  # they only save time
            programs.keep()


class _Programs:
    """The programs of one machine: kept as a digest and what TensorFlow wrote, passed on as it wants them.

    A file that is damaged or cannot be copied is compiled anew.
    """

    def __init__(self, kept: Path, passing: Path) -> None:
        self._kept = kept
        self._passing = passing
        self._known: set[str] = set()
        for file in self._newest()[:MOST_PROGRAMS]:
            with suppress(OSError):
                content = read_given(file, _MAX_BYTES)
                digest = content[:_DIGEST_BYTES]
                program = content[_DIGEST_BYTES:]
                if digest == digest_bytes(program).encode("ascii"):
                    aside = passing / f"{file.name}.aside"
                    aside.write_bytes(program)
                    aside.replace(passing / file.name)
                    self._known.add(file.name)

    @property
    def flags(self) -> str:
        """What TensorFlow is told of the folder."""
        is_full = shutil.disk_usage(self._passing).free < FREE_BYTES
        return (
            f"{_DIRECTORY}={self._passing} --tf_xla_persistent_cache_device_types=CPU"
            f" --tf_xla_persistent_cache_read_only={str(is_full).lower()}"
        )

    def keep(self) -> None:
        """Keep what was added, and let the oldest go."""
        added = {file.name for file in self._passing.glob("*.pb")} - self._known
        for name in sorted(filter(_NAME.fullmatch, added)):
            program = (self._passing / name).read_bytes()
            write_cache(self._kept / name, digest_bytes(program).encode("ascii") + program)
            self._known.add(name)
        if added:
            for file in self._newest()[MOST_PROGRAMS:]:
                file.unlink(missing_ok=True)

    def _newest(self) -> list[Path]:
        with suppress(OSError):  # there may be no folder, and others keep programs, too
            found = [one for one in self._kept.iterdir() if _NAME.fullmatch(one.name) and one.is_file()]
            return sorted(found, key=lambda file: (-file.stat().st_mtime_ns, file))
        return []


def _opened() -> _Programs | None:
    """Return the programs that were kept; None where the place for them cannot be written."""
    place = home() / "programs"
    settings = {name: os.environ.get(name, "") for name in _SETTINGS}
    with suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        # TensorFlow knows the folder for as long as the process lives.
        passing = _until_exit.enter_context(passing_folder("passing", place))
        if _PLAIN.fullmatch(str(passing)):
            key = digest_json({"format": PROGRAMS_FORMAT, **identity(), **settings})[:16]
            return _Programs(place / key, passing)
    return None


def _can_be_kept() -> bool:
    try:
        is_new = Version(version("tensorflow")) >= FIRST_VERSION
    except PackageNotFoundError:
        return False
    is_wanted = os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow"
    is_ours = _DIRECTORY not in os.environ.get(_FLAGS, "")
    is_told_apart = processor_flags() != ""  # another processor might not know the machine code
    return is_new and is_wanted and is_ours and is_told_apart and "tensorflow" not in sys.modules
