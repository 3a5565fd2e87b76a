"""Curves for Weights & Biases: one of its runs per series, grouped by run folder.

`WANDB_MODE=offline` keeps everything in the folder `wandb` of the run, to be sent later with `wandb
sync`. Only the curves, the profile, the names of series, source and run folder, and the versions of Python
and wandb are given away: no code, no console output, no list of packages, no name or load of the machine.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import wandb

from v8.base.errors import ProfileError
from v8.runs.trackers import TrackedRun, TrackerError

PROJECT = "v8"  # unless `WANDB_PROJECT` names another


class WandbRuns:
    """Keeps one open run per series at work.

    Args:
        run: What is tracked.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        self._open: dict[str, Any] = {}

    def log(self, series: str, step: int, values: Mapping[str, float]) -> None:
        """Hand numbers of a series to its run."""
        if series not in self._open:
            self._open[series] = _guarded(lambda: self._start(series))
        # Results come with the step of the last epoch: wandb adds them to that row.
        _guarded(lambda: self._open[series].log(dict(values), step=step))

    def finish(self, series: str) -> None:
        """Finish the run of a series."""
        started = self._open.pop(series, None)
        if started:
            _guarded(started.finish)

    def _start(self, series: str) -> Any:
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=self._run.path,
            group=self._run.path.name,
            name=series,
            config={"series": series, "source": self._run.source, "profile": dict(self._run.profile)},
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_save_requirements=False,
            ),
        )


def check() -> None:
    """Refuse what would ask for a login in the middle of a run.

    Raises:
        ProfileError: If wandb is online and nobody is logged in.
    """
    is_online = os.environ.get("WANDB_MODE", "online") not in {"offline", "disabled", "dryrun"}
    if is_online and not wandb.login(prompt=False):
        rule = "needs a login, or WANDB_MODE=offline to keep everything on this machine"
        raise ProfileError(where="param:track wandb", rule=rule, got="neither", fix="Run: wandb login")


def _guarded(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except wandb.Error as error:
        raise TrackerError(str(error)) from error
