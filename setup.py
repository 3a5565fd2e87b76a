"""What setup.cfg cannot say: what is built holds configs/ as v8/configs, and the commit, for `v8 --version`.

An image is made where no `.git` is, so `V8_COMMIT` names the commit there.
"""

import os
from pathlib import Path
from runpy import run_path
from shutil import copytree

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

CONFIGS = Path("configs")
VERSION = Path("v8", "base", "version.py")
COMMIT = os.environ.get("V8_COMMIT") or run_path(str(Path(__file__).parent / VERSION))["commit"]()


class Package(build_py):
    """The files of a wheel; an editable installation has none, and reads its checkout's."""

    def run(self) -> None:
        """Copy what setup.cfg names and the profiles, and write down the commit."""
        super().run()
        if not self.editable_mode:
            copytree(CONFIGS, Path(self.build_lib, "v8", CONFIGS), dirs_exist_ok=True)
            write_commit(Path(self.build_lib))


class Source(sdist):
    """The files of a source distribution, from which a wheel is made later, elsewhere."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy what belongs to it, and write down the commit."""
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir))


def write_commit(root: Path) -> None:
    """Write the commit into the package below a folder; nothing where nobody knows it."""
    text = (root / VERSION).read_text("utf-8")
    (root / VERSION).unlink()  # it may be a link to the checkout's own
    (root / VERSION).write_text(text.replace('\nCOMMIT = ""\n', f'\nCOMMIT = "{COMMIT}"\n'), encoding="utf-8")


setup(cmdclass={"build_py": Package, "sdist": Source})
