"""The drills of `tests/drills`, whose calls of the command line are forked, unless something is done to them.

What is killed, interrupted or served starts anew, as everything does when the drill is called by itself; what
is called to its end, to see what was left or what it says, need not import TensorFlow each time.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from drills import __main__ as drills
from drills import ground
from forked import Forked


class ForkedPlace(ground.Place):
    """A drill's own folder, and calls that are forked."""

    def call(
        self, words: Sequence[str], limit_s: float = ground.LIMIT_S, **options: Sequence[str]
    ) -> ground.Ended:
        if options:  # another program
            return super().call(words, limit_s, **options)
        output, errors = (tempfile.TemporaryFile("w+", errors="replace") for _ in range(2))  # noqa: SIM115
        streams = {"stdout": output, "stderr": errors}
        process = Forked(words, tf=True, cwd=self.folder, env=self.env, start_new_session=True, **streams)
        self._outputs[process.pid] = output, errors
        return self.finish(process, limit_s)


if __name__ == "__main__":
    ground.Place = ForkedPlace  # type: ignore[misc]
    sys.exit(drills.main())
