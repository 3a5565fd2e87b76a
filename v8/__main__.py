"""`python -m v8`, and the console script `v8`."""

from collections.abc import Sequence

from v8.base.process import explained_start

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: Words after the program's name; None takes them from `sys.argv`.
    """
    with explained_start():
        from v8.cli.app import main as run_commands  # noqa: PLC0415 - it may be what cannot start

        run_commands(arguments)


if __name__ == "__main__":
    main()
