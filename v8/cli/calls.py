"""The process in which a function of Python does what a command does: `v8.backtest`, `v8.export`.

As for `v8.train` (`v8.cli.runs`), a process of its own starts TensorFlow with the settings of v8, whatever a
notebook has done to it, and gives the same numbers as the command line.
"""

import sys
from collections.abc import Iterator
from typing import Any

import typer.main

from v8.base import annexes
from v8.base.errors import StorageError
from v8.base.interruption import watch_interrupts
from v8.cli.app import UsageError, app
from v8.cli.usage import usage_error
from v8.runs.machine.processes import CommandRequest, handle_request


def carry_out(request: CommandRequest) -> Iterator[Any]:
    """Do what the command line does with some words, but raise errors instead of printing them.

    Yields:
        The exit code, as `{"exit_code": 0}`.

    Raises:
        V8Error: If the command refuses its words, or fails as a whole.
    """
    name, *words = request.words
    sys.argv = ["v8", name, *words]  # from there commands take the line that continues them
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    exit_code = 0
    try:
        with command.make_context(name, words) as context:
            command.invoke(context)
    except typer.Exit as end:
        exit_code = end.exit_code
    except UsageError as error:
        raise usage_error(error, annexes.commands()) from error
    except OSError as error:  # of a file that no other code of ours handles
        raise StorageError.out_of_reach(error) from error
    yield {"exit_code": exit_code}


if __name__ == "__main__":
    watch_interrupts()
    handle_request(CommandRequest, carry_out)
