"""The process that `v8.train` starts: it is asked for a run in JSON and does what the command line does.

A process of its own starts TensorFlow as v8 wants it, whatever a notebook has done to it, needs no
`if __name__ == "__main__"` there, and gives the same weights as the command line.
"""

from collections.abc import Iterator
from typing import Any

from v8.artifacts.run_folder import read_run
from v8.cli.runs import carry_out
from v8.errors import DataError, StorageError, V8Error
from v8.machine.interruption import watch_interrupts
from v8.machine.processes import serve
from v8.runs.options import RunOptions


def train(options: RunOptions) -> Iterator[Any]:
    """Carry out a run and name its folder.

    Raises:
        V8Error: If it ends without a trained series: why the first of them failed.
    """
    try:
        prepared = options.prepared()
        summary = carry_out(prepared)
    except OSError as error:  # of a place that nothing of ours looks after
        raise StorageError.out_of_reach(error) from error
    states = read_run(prepared.plan.path).series.values()
    is_empty = summary.exit_code == DataError.exit_code or all(state.status != "done" for state in states)
    if is_empty and summary.failures:
        first = summary.failures[0]
        rule, fix = "must end with a trained series", "Mend that and repeat"
        raise first.error or V8Error(where="v8.train", rule=rule, got=str(first.reason), fix=fix)
    yield {"path": str(prepared.plan.path)}


if __name__ == "__main__":
    watch_interrupts()
    serve(RunOptions, train)
