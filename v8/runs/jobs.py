"""Jobs and engines: a job is all that one artefact is made from; an engine makes the artefacts of jobs."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from v8.data.market.candles import Candles
from v8.data.market.series import Series
from v8.model.networks.programs import Loops
from v8.profile.profile import Profile
from v8.runs.events import SeriesOutcome
from v8.runs.observers import RunObserver


@dataclass(frozen=True)
class DeviceSettings:
    """Settings of the training that depend on the machine, not on the profile.

    A run chooses them once for all its series. Whoever continues it elsewhere gets the same ones, and so the
    same weights.
    """

    precision: str = "float32"
    """Keras dtype policy to train in: 16 bits for matrix products where this machine then trains faster."""
    loops: Loops = "stepwise"
    """How XLA compiles the loop over the bars of a window. It gets there by environment variables, which XLA
    reads at the first compilation of a process (`v8.runs.machine.choices.loops_in_environment`)."""
    num_micro_batches: int | None = None
    """Micro-batches whose gradients are summed for one optimiser step; None: as many as the profile says."""


@dataclass(frozen=True)
class ArtifactSettings:
    """What an artefact gets beside its model, for all series of a run."""

    is_evaluated: bool = True  # whether to evaluate the model on the test span
    has_importance: bool = False  # whether to measure the importance of each kind of inputs
    has_onnx: bool = False  # whether to write `model.onnx`, too


@dataclass(frozen=True)
class Job:
    """Everything a worker needs to make one artefact; it can travel between processes."""

    candles: Candles
    profile: Profile  # what to train
    seed: int  # of weights, order and dropout
    folder: Path  # where the artefact goes
    is_publishable: bool  # false for the demo market
    candle_seconds: float  # time that reading the candles took
    device_settings: DeviceSettings = DeviceSettings()
    artifact_settings: ArtifactSettings = ArtifactSettings()
    dataset: str | None = None  # dataset of the Hub that the candles came from, `user/name`
    initial_model: Path | None = None
    """Folder of the model from whose weights training starts; None draws them at random."""

    @property
    def series(self) -> Series:
        """Which series."""
        return self.candles.series


class Engine(ABC):
    """Makes the artefacts of a run.

    On this machine that is `LocalEngine` (`v8.runs.engines`). It hands the jobs to `WorkerEngine`
    (`v8.runs.workers`), which starts processes, or to `InProcessEngine` (`v8.runs.local`). Other engines
    train on other machines.
    """

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables of this process, and of those that it starts, while it carries out a run."""
        return {}

    @abstractmethod
    def train(self, jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
        """Make the artefact of every job, at least one; yield how each series ended, in any order.

        The observer gets what happens on the way, in the process and thread that called.
        """
