"""A held-back Ctrl-C is obeyed at the next safe moment and nowhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from deaf import DEAF

from v8.base.process import EXIT_TIMEOUT_S, deferred_interrupts

HANG_S = 60.0
"""A process that lives longer has hung, so that its test fails instead of waiting."""


def test_a_signal_is_noted_and_raised_at_the_safe_moment(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with deferred_interrupts() as check:
        check()
        os.kill(os.getpid(), signal.SIGINT)
        assert "once more stops immediately" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            check()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.process
def test_a_second_signal_ends_the_process_at_once() -> None:
    code = (
        "import os, signal\n"
        "from v8.base.process import deferred_interrupts\n"
        "with deferred_interrupts():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here')\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (130, "")


@pytest.mark.process
def test_a_ctrl_c_that_is_ignored_on_purpose_is_not_held_back_either() -> None:
    code = (
        "import os, signal\n"
        "from v8.base.process import deferred_interrupts\n"
        "with deferred_interrupts() as check:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    check()\n"
        "    print('still here')\n"
    )
    process = subprocess.run([*DEAF, sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (0, "still here\n", "")


def test_another_thread_leaves_the_signals_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with deferred_interrupts() as check:
            check()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


WATCHED = """
import hashlib, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from v8.base.process import deferred_interrupts, exit_interrupted, set_exit_message, watch_interrupts
watch_interrupts()
"""


def interrupted(code: str, *, num_signals: int = 1) -> tuple[int, str, str]:
    """Run code until it says `ready`, interrupt it; return exit status, output, errors."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", WATCHED + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)  # it does what it says after saying so
    for _ in range(num_signals):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)  # two signals of a kind that come at once are one
    try:
        output, errors = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    return process.returncode, output, errors


IN_C = """
print('ready')
hashlib.pbkdf2_hmac('sha256', b'', b'', 2_000_000_000)  # minutes in C, where no handler of Python runs
"""
IN_THREADS = """
pool = ThreadPoolExecutor(2)
def wait_in_threads():
    futures = [pool.submit(time.sleep, 600) for _ in range(2)]
    print('ready')
    futures[0].result()
try:
    wait_in_threads()
finally:
    pool.shutdown(wait=True)  # as `with ThreadPoolExecutor()` does
"""
DEFERRED = """
with deferred_interrupts() as check:
    print('ready')
    time.sleep(600)  # goes on after the handler; nobody checks
"""


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("code", [IN_C, IN_THREADS, DEFERRED], ids=["in C", "in threads", "held back"])
@pytest.mark.parametrize(("num_signals", "leave_s"), [(1, EXIT_TIMEOUT_S), (2, 600)])
def test_a_process_that_cannot_stop_is_ended(code: str, num_signals: int, leave_s: float) -> None:
    """At 4c79749 each of them lived on until its work was done. A second signal waits for nothing."""
    prelude = (
        f"sys.modules['v8.base.process'].EXIT_TIMEOUT_S = {leave_s}\n"
        "set_exit_message('interrupted: go on with this')\n"
    )
    status, output, errors = interrupted(prelude + code, num_signals=num_signals)
    assert (status, output) == (130, "")
    assert errors.count("interrupted: go on with this\n") == 1


@pytest.mark.nightly
@pytest.mark.process
def test_last_words_nobody_reads_do_not_keep_a_process() -> None:
    """The reader of standard error has stopped reading, as a terminal after Ctrl-S has."""
    code = (
        WATCHED
        + "signal.signal(signal.SIGINT, lambda *_: None)\nwhile True:\n    os.write(2, b'x' * 65536)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert process.stderr.read(1) == b"x"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=HANG_S) == 130
    process.stderr.close()


@pytest.mark.process
def test_a_signal_that_comes_when_all_is_done_changes_nothing() -> None:
    """Once a drill's Ctrl-C came while Python took itself down, and a finished run ended as a killed one."""
    code = (
        "class Late:\n"
        "    def __del__(self, write=os.write, sleep=time.sleep):\n"
        "        write(1, b'ready\\n')\n"
        "        sleep(0.5)\n"
        "late = Late()\n"
    )
    status, _, errors = interrupted(code, num_signals=1)
    assert (status, errors) == (0, "")


@pytest.mark.process
def test_leaving_does_not_wait_for_threads() -> None:
    code = "ThreadPoolExecutor(1).submit(time.sleep, 600)\n"
    code += "print('ready')\ntime.sleep(0.5)\nexit_interrupted()\n"
    status, _, errors = interrupted(code, num_signals=0)
    assert status == 130
    assert errors.startswith("interrupted: every file ") and errors.count("\n") == 1


@pytest.mark.process
def test_last_words_do_not_go_the_way_of_native_lines() -> None:
    """Which a thread passes on that ends with the process (`v8.base.process`)."""
    code = (
        "from v8.base.process import quiet_start\n"
        "os.environ.pop('TF_CPP_MIN_LOG_LEVEL', None)\n"  # with it nothing is kept quiet
        "with quiet_start():\n    pass\n"
        "set_exit_message('interrupted: go on with this')\n"
        "print('ready')\ntime.sleep(0.5)\nexit_interrupted()\n"
    )
    _, _, errors = interrupted(code, num_signals=0)
    assert errors == "interrupted: go on with this\n"


LATE = """\
import atexit, sys, threading, time
from v8.base.process import exit_without_teardown

threading.Thread(target=lambda: (time.sleep(0.3), print("a thread's last line"))).start()
atexit.register(print, "what was put off", flush=True)
print("a line that is still in the buffer")
exit_without_teardown(4)
sys.exit("not left")
"""


@pytest.mark.process
def test_who_leaves_at_once_waits_for_threads_and_loses_no_line() -> None:
    process = subprocess.run(
        [sys.executable, "-c", LATE], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert (process.returncode, process.stderr) == (4, "")
    assert process.stdout.splitlines() == [
        "a line that is still in the buffer",
        "a thread's last line",
        "what was put off",
    ]


@pytest.mark.process
def test_who_leaves_at_once_asks_nothing_of_a_stream_that_is_closed() -> None:
    """`predict | head`: Typer wraps standard error where a pipe broke, and absl then closes what it wraps."""
    line = LATE.replace(
        "exit_without_teardown(4)", "atexit.register(sys.stderr.close); exit_without_teardown(4)"
    )
    process = subprocess.run([sys.executable, "-c", line], capture_output=True, timeout=HANG_S, check=False)
    assert (process.returncode, process.stderr) == (4, b"")


@pytest.mark.process
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_output_that_cannot_be_written_is_left_to_python_to_say() -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            [sys.executable, "-c", LATE],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANG_S,
            check=False,
        )
    assert process.returncode != 4
    assert "No space left on device" in process.stderr or "not left" in process.stderr
