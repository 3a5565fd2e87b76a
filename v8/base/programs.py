"""A cache of compiled programs on disk, so that TensorFlow need not compile them again.

Compilation by XLA is most of the start-up time: seconds to a minute for one training step. TensorFlow can
read compiled programs from a folder and write them there (`--tf_xla_persistent_cache_directory`), but it does
not check them, and training fails where it cannot write. So each process gives it a temporary folder. The
cache under `V8_HOME/programs` is copied into it, each file checked by its digest; what TensorFlow adds is
copied back after compiling, if the cache can be written. The folder of a program in the cache is named by the
versions, the processor and the settings that it was compiled for. TensorFlow compares the complete program
before it uses one, so a changed profile is compiled again. The machine code is read as it was written:
results are equal to the bit. Programs for a GPU are not cached here, and none of JAX.
"""

import atexit
import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from packaging.version import Version

from v8.base.hardware import identity, processor_flags
from v8.base.process import with_variables
from v8.base.records import read_given
from v8.base.storage import digest_bytes, digest_json, home, passing_folder, write_cache

PROGRAMS_FORMAT: Final = 1
FIRST_VERSION: Final = Version("2.21")
"""The oldest TensorFlow for which reading programs of a CPU was tested."""
MOST_PROGRAMS: Final = 24
"""Programs in the cache for one machine and its settings, the newest; one of `aligned` has 4 MB."""
FREE_BYTES: Final = 1 << 30
"""With less free space for the temporary folder, TensorFlow only reads: a full disk would end the
training."""
_XLA_FLAGS: Final = "TF_XLA_FLAGS"
_DIRECTORY: Final = "--tf_xla_persistent_cache_directory"
_SETTINGS: Final = (
    _XLA_FLAGS,
    "XLA_FLAGS",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "OMP_NUM_THREADS",
)
"""Environment variables that affect compilation."""
_NAME: Final = re.compile(r"[A-Za-z0-9_]{1,200}\.pb")
_PLAIN: Final = re.compile(r"[\w./:+@-]+")
"""Characters that a path may have: TensorFlow splits its flags at blanks."""
_DIGEST_BYTES: Final = 64
_MAX_BYTES: Final = 1 << 30
_open: "list[_Programs]" = []
_until_exit: Final = ExitStack()
atexit.register(_until_exit.close)


@contextmanager
def kept_programs() -> Iterator[None]:
    """Let the TensorFlow that is imported in the block use the cache, and add its new programs to the cache.

    The cache is not used where TensorFlow is imported already, is too old or has a folder set by the user.
    """
    programs = _opened() if _can_be_used() else None
    if programs is None:
        yield
        return
    _open.append(programs)
    with with_variables({_XLA_FLAGS: f"{os.environ.get(_XLA_FLAGS, '')} {programs.flags}".strip()}):
        yield
    keep_new_programs()


def keep_new_programs() -> None:
    """Add new programs to the cache; called right after compiling, because a process may be killed later."""
    for programs in _open:
        with suppress(OSError):  # the cache only saves time
            programs.keep()


class _Programs:
    """The programs of one machine: in the cache, each with its digest, and in TensorFlow's temporary folder.

    A program whose file is damaged or cannot be copied is compiled again.
    """

    def __init__(self, cache: Path, temporary: Path) -> None:
        self._cache = cache
        self._temporary = temporary
        self._cached_names: set[str] = set()
        for file in self._newest()[:MOST_PROGRAMS]:
            with suppress(OSError):
                content = read_given(file, _MAX_BYTES)
                digest = content[:_DIGEST_BYTES]
                program = content[_DIGEST_BYTES:]
                if digest == digest_bytes(program).encode("ascii"):
                    aside = temporary / f"{file.name}.aside"
                    aside.write_bytes(program)
                    aside.replace(temporary / file.name)
                    self._cached_names.add(file.name)

    @property
    def flags(self) -> str:
        """TensorFlow's flags for the temporary folder."""
        is_full = shutil.disk_usage(self._temporary).free < FREE_BYTES
        return (
            f"{_DIRECTORY}={self._temporary} --tf_xla_persistent_cache_device_types=CPU"
            f" --tf_xla_persistent_cache_read_only={str(is_full).lower()}"
        )

    def keep(self) -> None:
        """Add new programs to the cache, and remove the oldest."""
        added = {file.name for file in self._temporary.glob("*.pb")} - self._cached_names
        for name in sorted(filter(_NAME.fullmatch, added)):
            program = (self._temporary / name).read_bytes()
            write_cache(self._cache / name, digest_bytes(program).encode("ascii") + program)
            self._cached_names.add(name)
        if added:
            for file in self._newest()[MOST_PROGRAMS:]:
                file.unlink(missing_ok=True)

    def _newest(self) -> list[Path]:
        """List the files of the cache, the newest first."""
        with suppress(OSError):  # the folder may not exist, and other processes change it, too
            files = [file for file in self._cache.iterdir() if _NAME.fullmatch(file.name) and file.is_file()]
            return sorted(files, key=lambda file: (-file.stat().st_mtime_ns, file))
        return []


def _opened() -> _Programs | None:
    """Return the programs of this machine; None where the cache cannot be written."""
    place = home() / "programs"
    settings = {name: os.environ.get(name, "") for name in _SETTINGS}
    with suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        # TensorFlow uses the folder until the process ends.
        temporary = _until_exit.enter_context(passing_folder("passing", place))
        if _PLAIN.fullmatch(str(temporary)):
            key = digest_json({"format": PROGRAMS_FORMAT, **identity(), **settings})[:16]
            return _Programs(place / key, temporary)
    return None


def _can_be_used() -> bool:
    """Return whether the TensorFlow of this process can use the cache."""
    try:
        is_new = Version(importlib.metadata.version("tensorflow")) >= FIRST_VERSION
    except importlib.metadata.PackageNotFoundError:
        return False
    is_backend = os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow"
    has_own_folder = _DIRECTORY in os.environ.get(_XLA_FLAGS, "")
    # Another processor might lack instructions of the machine code.
    is_processor_known = processor_flags() != ""
    is_imported = "tensorflow" in sys.modules
    return is_new and is_backend and not has_own_folder and is_processor_known and not is_imported
