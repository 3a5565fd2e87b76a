"""The version of this package and its commit; every other module may import this one."""

VERSION = "1.0.0"
COMMIT = ""
"""The commit of a built package: setup.py writes it here. In a checkout it is empty, and git is asked."""


def commit() -> str:
    """Return the commit of this package, and whether files were changed since; empty if it is unknown."""
    from pathlib import Path  # noqa: PLC0415 - `import v8` starts without them
    from shutil import which  # noqa: PLC0415
    from subprocess import run  # noqa: PLC0415

    checkout = Path(__file__).parents[2]
    git = which("git")
    if COMMIT or not git or not (checkout / ".git").exists():
        return COMMIT
    words = (git, "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=, changed since")
    result = run(words, cwd=checkout, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
    return result.stdout.strip()
