"""A clone that is installed as scripts/v8 installs it: editable, whatever its folder is called."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bare import BareEnvironment, checkout_at

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.name != "posix", reason="an environment is made of links"),
]
OPTIONS = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")


def test_a_clone_named_as_the_package_works_from_the_folder_beside_it(tmp_path: Path) -> None:
    bare = BareEnvironment.at(tmp_path)
    clone = bare.elsewhere / "v8"
    checkout_at(clone)
    installed = bare.call("-m", "pip", "install", *OPTIONS, "--editable", clone)
    assert installed.returncode == 0, installed.stderr
    # The folder `v8` of the working folder comes before every installed package on sys.path.
    imported = bare.call("-c", "import v8; print(v8.__file__, v8.train.__name__)")
    assert imported.stdout.split() == [str(clone / "v8" / "__init__.py"), "train"], imported.stderr
    listed = bare.call("-m", "v8", "run", "--source", "demo", "--smoke", "--dry-run")
    assert listed.returncode == 0, listed.stderr
