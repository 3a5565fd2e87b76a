"""What reaches standard error of a process that starts TensorFlow, and what it imports."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import os, sys
level = os.environ.get("TF_CPP_MIN_LOG_LEVEL")
from v8.base.process import quiet_start
with quiet_start():
    os.write(2, b"I0000 00:00:1.5 7 port.cc:153] oneDNN custom operations are on. You may see\\n")
    os.write(2, b"I0000 00:00:1.6 7 service.cc:146] XLA service 0x1 initialized for platform Host\\n")
    os.write(2, b"2026-11-21 10:00:00.1: I tensorflow/core/util/port.cc:153] oneDNN\\n")
    os.write(2, b"2026-11-21 10:00:00.2: E external/xla/cuda_platform.cc:51] failed call to cuInit\\n")
    os.write(2, b"2026-11-21 10:00:00.3: E tensorflow/util.cc:131] oneDNN supports DT_INT64 only\\n")
    os.write(2, b"E0000 00:00:1.7 7 something_else.cc:1] a real error\\n")
    os.write(2, b"something of native code\\n")
assert os.environ.get("TF_CPP_MIN_LOG_LEVEL") == level
os.write(2, b"E0000 00:00:2.5 7 util.cc:131] oneDNN supports DT_INT64 only on platforms with AVX-512.\\n")
os.write(2, b"E0000 00:00:2.6 7 cpu_aot_loader.cc:210] Loading XLA:CPU AOT result. Target machine\\n")
with quiet_start():
    os.write(2, b"W0000 00:00:3.5 7 cudart_stub.cc:31] Could not find cuda drivers\\n")
sys.stderr.write("something of Python\\n")
raise SystemExit(3)
"""

LEFT = """
import atexit, sys
own = sys.stderr
def is_as_before():
    return sys.stderr is own and sorted(os.listdir("/dev/fd")) == before
atexit.register(lambda: print("as before" if is_as_before() else "changed"))
"""


@pytest.mark.parametrize("level", [None, "2", "3", "much"])
def test_chatter_is_kept_back_early_and_late_and_all_else_arrives(level: str | None) -> None:
    """Hosted notebooks set 3, which TensorFlow heeds in some lines only."""
    result = run(PROGRAM, level)
    assert result.returncode == 3, result.stderr
    lines = sorted(result.stderr.splitlines())
    assert lines[1:] == ["something of Python", "something of native code"]
    assert lines[0].endswith("a real error")


@pytest.mark.parametrize("level", ["0", "1"])
def test_whoever_asks_for_information_sees_all_of_it_but_what_is_untrue(level: str) -> None:
    result = run(PROGRAM, level)
    assert result.returncode == 3, result.stderr
    assert len(result.stderr.splitlines()) == 10


def test_a_program_of_somebody_else_is_left_as_it_was() -> None:
    passing = PROGRAM.replace("quiet_start()", "quiet_start(is_temporary=True)")
    result = run(f"import os\nbefore = sorted(os.listdir('/dev/fd'))\n{LEFT}\n{passing}", None)
    assert result.returncode == 3, result.stderr
    lines = result.stderr.splitlines()
    assert [line.rpartition("] ")[2][:20] for line in lines] == [
        "a real error",
        "something of native ",
        "oneDNN supports DT_I",
        "Loading XLA:CPU AOT ",
        "something of Python",
    ]
    assert result.stdout == "as before\n"


def run(program: str, level: str | None) -> subprocess.CompletedProcess[str]:
    """Run a program with a level of TensorFlow's log in its environment."""
    env = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    env |= {"TF_CPP_MIN_LOG_LEVEL": level} if level else {}
    return subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )


IMPORTS = """
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
    level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax", reason="needs JAX: pip install jax")
    monkeypatch.setenv("MPLBACKEND", "agg")
    process = run(IMPORTS, level)
    assert process.stdout.splitlines() == ["keras tensorflow", "True 2.0"], process.stderr
