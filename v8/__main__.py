"""`python -m v8`, and the console script `v8`."""

from v8.commands.app import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
