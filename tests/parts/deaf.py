"""Start a program as cron does, and a shell without job control in the background: deaf to Ctrl-C."""

from __future__ import annotations

DEAF = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""Words before those of the program."""
