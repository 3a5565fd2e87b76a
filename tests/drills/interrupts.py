"""Drills with Ctrl-C at random times: a call ends in seconds, and the next one gives the same weights."""

from __future__ import annotations

import signal
import time

from drills.ground import Ground, Place, drill, kill, killed_after, weights_of

KIND = "interrupts"
SOON_S = 3.0
"""After one Ctrl-C a call ends within this time."""

AT_ONCE_S = 2.0
"""After the second it ends within this time, in which Python itself has to end, too."""

HANG_S = 60.0
TIMES_OF_SIZE = {"small": 1, "usual": 3, "long": 8}


def interrupt(ground: Ground, place: Place, words: list[str], delay_s: float, *, is_twice: bool) -> float:
    """Press Ctrl-C once or twice after a time; return how long the call went on."""
    with killed_after(place.start(words)) as process:
        time.sleep(delay_s)
        if process.poll() is not None:
            place.finish(process)
            return 0.0
        kill(process, signal.SIGINT)
        if is_twice:
            time.sleep(0.3)
            kill(process, signal.SIGINT)
        ended = place.finish(process, HANG_S)
    if ended.status == 130:
        is_told = "Continue with" in ended.errors or "Repeat the same command" in ended.errors
        place.require(is_told or is_twice, f"does not say how to continue: {ended.message}")
    # The tests measure no speed, they guard against a hang.
    limit_s = HANG_S if ground.size == "small" else AT_ONCE_S if is_twice else SOON_S
    place.require(ended.seconds <= limit_s, f"went on for {ended.seconds:.1f} s")
    return ended.seconds


def interrupt_runs(ground: Ground, place: Place, *, is_twice: bool) -> str:
    expected = weights_of(ground.undisturbed())
    longest = 0.0
    for _ in range(TIMES_OF_SIZE[ground.size]):
        delay_s = place.chance.uniform(1.0, 9.0)  # before, Python itself starts
        longest = max(longest, interrupt(ground, place, place.job(), delay_s, is_twice=is_twice))
    place.continued(place.job(), expected)
    return "ends in time, then the same weights"


@drill(KIND, "Ctrl-C once in a run at random times", "small")
def interrupt_once(ground: Ground, place: Place) -> str:
    return interrupt_runs(ground, place, is_twice=False)


@drill(KIND, "Ctrl-C twice in a run at random times")
def interrupt_twice(ground: Ground, place: Place) -> str:
    return interrupt_runs(ground, place, is_twice=True)
