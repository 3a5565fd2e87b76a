"""The command line at an exchange whose clock somebody moves: it asks for the time at every look at it.

    V8_REST_URL=http://127.0.0.1:PORT V8_VISION_URL=... python tests/parts/moved_clock.py forecast RUN --every

Between two answers no time passes, so that what is written does not depend on how fast a machine is; and the
watch wakes ten times a second.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from v8.annexes.live import watching
from v8.cli.app import main
from v8.data.market.sources import SOURCES
from v8.data.market.sources.live import LiveSource
from v8.data.market.sources.rest import ExchangeClock, KlinesApi, RestSource


def open_following() -> LiveSource:
    """Open the source `live` with a clock that stands still but when it is asked."""
    api = KlinesApi()
    still = ExchangeClock(api.time_s, most_age_s=0.0, monotonic=lambda: 0.0, wall=lambda: 0.0)
    return LiveSource(RestSource(api, still))


if __name__ == "__main__":
    SOURCES["live"] = replace(SOURCES["live"], open=open_following)
    watching.MAX_PAUSE_S = 0.1  # type: ignore[misc]
    main()
