"""The command line with a Hub client that retries for seconds, not for minutes.

python tests/drills/hasty.py publish runs/aligned --repo you/fleet
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import v8.publish.hub.client
from v8.cli.app import main

v8.publish.hub.client.HubRetryPolicy = partial(  # type: ignore[misc, assignment]
    v8.publish.hub.client.HubRetryPolicy, timeout_s=3.0, first_s=0.2
)

if __name__ == "__main__":
    main()
