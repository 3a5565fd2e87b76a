"""A held-back Ctrl-C is obeyed at the next safe moment and nowhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from v8.engine.interruption import deferred_interrupts


def test_a_signal_is_noted_and_raised_at_the_safe_moment(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with deferred_interrupts() as check:
        check()
        os.kill(os.getpid(), signal.SIGINT)
        assert "once more stops at once" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            check()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_signal_ends_the_process_at_once() -> None:
    code = (
        "import os, signal\n"
        "from v8.engine.interruption import deferred_interrupts\n"
        "with deferred_interrupts():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")


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
