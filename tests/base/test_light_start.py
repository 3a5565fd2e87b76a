"""What a process that starts TensorFlow imports, and what it can import afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import gc, sys
from v8.base.process import quiet_start
with quiet_start():
    assert not gc.isenabled()
    import v8.runs.local
    print(*sorted({"jax", "matplotlib", "IPython", "keras", "tensorflow"} & set(sys.modules)))
assert gc.isenabled()
import matplotlib.pyplot, jax
print(matplotlib.pyplot.figure().get_figwidth() > 0, jax.numpy.ones(2).sum())
"""


@pytest.mark.nightly
@pytest.mark.parametrize("level", ["2", None])
def test_tensorflow_starts_without_what_v8_does_not_use_and_whoever_asks_later_gets_it(
    level: str | None,
) -> None:
    pytest.importorskip("jax", reason="needs JAX: pip install jax")
    env = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    env |= {"MPLBACKEND": "agg"} | ({"TF_CPP_MIN_LOG_LEVEL": level} if level else {})
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=False
    )
    assert process.stdout.splitlines() == ["keras tensorflow", "True 2.0"], process.stderr
