"""The version of this package, where every floor can read it, and the commit it is of."""

VERSION = "1.0.0"
COMMIT = ""
"""What a build knew of its commit: setup.py writes it here. A checkout asks git."""


def commit() -> str:
    """Return the commit this package is of, and whether files were changed since; nothing if nobody knows."""
    from pathlib import Path  # noqa: PLC0415 - `import v8` starts without them
    from shutil import which  # noqa: PLC0415
    from subprocess import run  # noqa: PLC0415

    checkout = Path(__file__).parents[1]
    if COMMIT or not (checkout / ".git").exists() or not (git := which("git")):
        return COMMIT
    words = (git, "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=, changed since")
    asked = run(words, cwd=checkout, capture_output=True, text=True, check=False)  # noqa: S603 - of our own
    return asked.stdout.strip()
