"""What reaches standard error of a process that starts TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import os, sys
from v8.engine.quiet import quiet_start
with quiet_start():
    os.write(2, b"I0000 00:00:1.5 7 port.cc:153] oneDNN custom operations are on. You may see\\n")
    os.write(2, b"I0000 00:00:1.6 7 service.cc:146] XLA service 0x1 initialized for platform Host\\n")
    os.write(2, b"2026-11-21 10:00:00.1: I tensorflow/core/util/port.cc:153] oneDNN\\n")
    os.write(2, b"2026-11-21 10:00:00.2: E external/xla/cuda_platform.cc:51] failed call to cuInit\\n")
    os.write(2, b"2026-11-21 10:00:00.3: E tensorflow/util.cc:131] oneDNN supports DT_INT64 only\\n")
    os.write(2, b"E0000 00:00:1.7 7 something_else.cc:1] a real error\\n")
    os.write(2, b"something of native code\\n")
assert "TF_CPP_MIN_LOG_LEVEL" not in os.environ
os.write(2, b"E0000 00:00:2.5 7 util.cc:131] oneDNN supports DT_INT64 only on platforms with AVX-512.\\n")
os.write(2, b"E0000 00:00:2.6 7 cpu_aot_loader.cc:210] Loading XLA:CPU AOT result. Target machine\\n")
with quiet_start():
    os.write(2, b"W0000 00:00:3.5 7 cudart_stub.cc:31] Could not find cuda drivers\\n")
sys.stderr.write("something of Python\\n")
raise SystemExit(3)
"""


def test_chatter_is_kept_back_early_and_late_and_all_else_arrives() -> None:
    env = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    lines = sorted(done.stderr.splitlines())
    assert lines[1:] == ["something of Python", "something of native code"]
    assert lines[0].endswith("a real error")


def test_whoever_sets_the_log_level_sees_all_of_it_but_what_is_untrue() -> None:
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"}
    words = [sys.executable, "-c", PROGRAM.replace("assert", "assert True or")]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert len(done.stderr.splitlines()) == 10
