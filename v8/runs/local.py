"""The workshop: everything one process needs to turn candles into artefacts, fleet after fleet.

`train_all` runs it in this process; `v8.runs.workers` runs one in each of several. The compiled
program, the feature store and TensorFlow itself are set up once a workshop, not once a series.

A fleet is prepared series by series, trained as one program, and each member is evaluated and saved as soon
as it ends. An error inside the common program names no member, so the fleet goes on in halves, from its
checkpoints, until the guilty series is alone; when memory ran out, later fleets stay that small.

A network that was trained is calibrated before it is evaluated: the validation span says how much it may say
beside two formulas, and how far quantiles lie off (`v8.baselines.ranges`); all is folded into its model.
"""

import gc
import math
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from v8.artifacts.forecaster import Forecaster
from v8.artifacts.metadata import ARTIFACT_FORMAT, MODEL_FILE
from v8.artifacts.run_folder import now_iso, pin_of
from v8.artifacts.series_artifact import sample_forecasts, save_description
from v8.artifacts.shared_models import SharedModels
from v8.baselines.ranges import conformal_widths, fit_ensemble, fit_shares, mix, network_alone, told_shares
from v8.columns import TASK_OHLC
from v8.errors import ArtifactError, DivergedError, listed
from v8.evaluation.evaluation import evaluate_quantiles, evaluate_windows
from v8.evaluation.fold_losses import FOLD_LOSSES_FILE, fold_losses_of
from v8.evaluation.importance import measure_importance
from v8.evaluation.leaderboard import TaskScore
from v8.features.indicators import FEATURES, ancestry, definitions, warmup_bars
from v8.features.store import FeatureStore
from v8.hardware import describe_machine, has_gpu, peak_process_bytes, versions
from v8.machine.interruption import deferred_interrupts
from v8.machine.lasting import lasting, let_go
from v8.networks.serving import ServingModel
from v8.profile import Profile
from v8.runs.events import EpochEnded, Listener, Note, Outcome, SeriesStarted, StageStarted, isolated
from v8.runs.plan import Job
from v8.storage import write_with
from v8.tasks import TASKS
from v8.training.formula import FormulaTrainer
from v8.training.probe import measured_fleet_size
from v8.training.trainer import FleetMember, InitialWeights, Trainer, TrainingResult
from v8.windows.dataset import SeriesData, prepare_series, table_columns

CHECKPOINT: Final = Path(".training", "checkpoint.npz")
"""Where a series keeps its epochs until it is finished, inside its folder."""
_FULL_MEMORY: Final = re.compile(r"resource_?exhausted|out of memory|oom when|memoryerror", re.IGNORECASE)
"""What TensorFlow, XLA, JAX and Python say of it."""
StartedFrom = Callable[
    [Job], InitialWeights | None
]  # reads what the network of a job begins as; None draws it
MakeTrainer = Callable[..., Trainer | FormulaTrainer]  # makes a trainer from what `Trainer` is made from


def make_trainer_of(profile: Profile, **options: Any) -> Trainer | FormulaTrainer:
    """Return what fits the profile: by training a network, or a formula as it stands."""
    return FormulaTrainer(profile, **options) if profile.family.is_formula else Trainer(profile, **options)


def suited_fleet_size(profile: Profile, num_series: int) -> int:
    """Measure how many of so many series suit one program of a GPU; without one, 1.

    A machine with a GPU's driver may still have a backend that cannot use it.
    """
    is_of_use = has_gpu() and not profile.family.is_formula
    return measured_fleet_size(profile, num_series) if is_of_use else 1


def train_all(
    jobs: Sequence[Job],
    listen: Listener,
    fleet_size: int | None = 1,
    make_trainer: MakeTrainer = make_trainer_of,
    store: FeatureStore | None = None,
    *,
    check: Callable[[], None] | None = None,
) -> Iterator[Outcome]:
    """Make the artefact of every job, all of one profile; yield each series' outcome as soon as it is known.

    The most series of one program are `fleet_size`; None takes as many as memory allows. Features are kept in
    the user's own store unless another is given. Between two batches Ctrl-C is obeyed, or `check` called.
    """
    first = jobs[0]
    key = make_trainer, store, first.profile.digest, *first.settled.values()
    with nullcontext(check) if check else deferred_interrupts() as look, lasting() as kept:
        if key not in kept:
            let_go(kept)
            kept[key] = Workshop(first.profile, listen, look, make_trainer, store, **first.settled)
        kept[key].listen, kept[key].check = listen, look
        yield from kept[key].make_all(jobs, fleet_size or len(jobs))


class Workshop:
    """Makes artefacts fleet after fleet with one compiled program.

    Args:
        check: Called between two batches; raises KeyboardInterrupt to stop there.
        make_trainer: Makes the trainer; called again when memory ran out.
        store: Where features are kept; None for the user's own store.
        settled: What the run has settled, options of the trainer: `precision` and `num_parts`.
    """

    def __init__(
        self,
        profile: Profile,
        listen: Listener,
        check: Callable[[], None],
        make_trainer: MakeTrainer = make_trainer_of,
        store: FeatureStore | None = None,
        **settled: Any,
    ) -> None:
        self.listen = listen
        self.check = check
        # Whoever takes the workshop up again has another check.
        self._make_trainer = partial(make_trainer, profile, check=lambda: self.check(), **settled)  # noqa: PLW0108
        self._trainer = self._make_trainer()
        self._store = store or FeatureStore()
        self._models = SharedModels()

    def close(self) -> None:
        """Let its programs go."""
        del self._trainer

    def make_all(self, jobs: Sequence[Job], fleet_size: int) -> Iterator[Outcome]:
        """Make artefacts in programs of at most so many series; yield each outcome as it comes."""
        self._fleet_size = fleet_size
        todo = list(jobs)
        if self._trainer.without_twins:
            self._fleet_size = 1
            layers = listed(self._trainer.without_twins)
            self.listen(Note(f"Series are trained one by one, not as a fleet: {layers} has no stacked twin."))
        while todo:
            fleet = todo[: self._fleet_size]
            todo = todo[self._fleet_size :]
            ready: list[_PreparedSeries] = []
            for job in fleet:
                self.check()
                self.listen(SeriesStarted(job.series))
                prepare = partial(_PreparedSeries, job, self._store, self.listen, self._started_from)
                prepared, outcome = isolated(job.series, prepare)
                if prepared is None:
                    yield outcome
                else:
                    ready.append(prepared)
            if ready:
                yield from self._trained(ready)

    def _started_from(self, job: Job) -> InitialWeights | None:
        """Read the trained weights of the model that a job begins from.

        Raises `ArtifactError` if it is damaged, or of another profile, other inputs or other layers.
        """
        if job.champion is None or isinstance(self._trainer, FormulaTrainer):
            return None
        about = Forecaster.load(job.champion, models=self._models).about
        weights = self._models.load(job.champion / MODEL_FILE).trained()
        profile = about.trained_profile
        network = self._trainer.network
        others = [key for key in Profile.model_fields if getattr(profile, key) != getattr(job.profile, key)]
        if others or [one.shape for one in weights] != [one.shape for one in network.trainable_variables]:
            rule = "must be of the profile and the layers that are trained, to begin from its weights"
            got = f"another {listed(others or ['network'])}"
            fix = "Train anew, without param:from champion"
            raise ArtifactError(where=str(job.champion), rule=rule, got=got, fix=fix)
        return about.model_sha256, weights

    def _trained(self, fleet: "list[_PreparedSeries]") -> Iterator[Outcome]:
        """Train a fleet and finish each member when it ends; after an error go on with halves."""
        left = list(fleet)
        results = self._trainer.fit_fleet([prepared.member() for prepared in fleet])
        while left:
            ended, trouble = isolated(left[0].series, partial(next, results))
            if ended is None and len(fleet) == 1:
                yield trouble
                return
            if ended is None:
                yield from self._trained_in_halves(len(fleet), left, str(trouble.reason))
                return
            place, result = ended
            left.remove(fleet[place])
            yield fleet[place].finish(self._trainer, result, len(fleet))

    def _trained_in_halves(
        self, num_series: int, left: "list[_PreparedSeries]", reason: str
    ) -> Iterator[Outcome]:
        size = -(-num_series // 2)
        if _FULL_MEMORY.search(reason):
            self._fleet_size = min(self._fleet_size, size)
            self._trainer = self._make_trainer()  # the old one holds the programs that were too large
            gc.collect()
            why = "ran out of memory"
        else:
            size = min(size, -(-len(left) // 2))
            why = f"met an error ({reason})"
        self.listen(Note(f"A fleet of {num_series} {why}; it goes on in fleets of {size}."))
        for start in range(0, len(left), size):
            yield from self._trained(left[start : start + size])


class _PreparedSeries:
    """One series with its features and windows, on its way to an artefact; a clock runs per stage."""

    def __init__(self, job: Job, store: FeatureStore, listen: Listener, started_from: StartedFrom) -> None:
        self.series = job.series
        self._job = job
        self._listen = listen
        self._first = started_from(job)
        self._checkpoint = job.folder / CHECKPOINT
        self._seconds = {"candles": job.candle_seconds}
        with self._stage("features"):
            table = store.table(job.candles, table_columns(job.profile))
        with self._stage("windows"):
            self._data = prepare_series(table, job.profile)

    def member(self) -> FleetMember:
        """Return what the trainer needs of this series."""
        self._listen(StageStarted(self.series, "train"))
        most = self._job.profile.training.epochs
        return FleetMember(
            self._data,
            self._job.seed,
            self._checkpoint,
            lambda record: self._listen(EpochEnded(self.series, record, most)),
            lambda sentence: self._listen(Note(sentence)),
            self._first,
        )

    def finish(
        self, trainer: Trainer | FormulaTrainer, result: TrainingResult | DivergedError, num_series: int
    ) -> Outcome:
        """Judge and save what was trained in a fleet of so many; an error becomes the outcome."""
        score, outcome = isolated(self.series, lambda: self._finish(trainer, result, num_series))
        stages = math.fsum(seconds for stage, seconds in self._seconds.items() if stage != "candles")
        once_s = self._seconds.get("compile", 0.0)
        worth = score.shown if score else ()
        return replace(outcome, seconds=stages, once_s=once_s, fleet_size=num_series, worth=worth)

    def _finish(
        self, trainer: Trainer | FormulaTrainer, result: TrainingResult | DivergedError, num_series: int
    ) -> TaskScore | None:
        """Make the artefact and return its score on candles, if it is evaluated; then the checkpoint goes."""
        if isinstance(result, DivergedError):
            raise result
        self._seconds.update(result.seconds)
        with self._stage("evaluate"):
            model = trainer.serving_model(self._data, result.weights)
            shares = calibrate(model, self._data) if isinstance(model, ServingModel) else None
            forecasts = model.forecast_span(self._data.spans["test"])  # once
            evaluation = None
            losses = None
            evaluated = dict[str, Any]()
            if self._job.is_evaluated:
                evaluation, losses = evaluate_windows(self._data, forecasts.points)
                evaluated["evaluation"] = evaluation.to_json()
            if self._job.is_evaluated and self._job.profile.quantiles:
                evaluated["quantiles"] = evaluate_quantiles(self._data, forecasts.quantiles).to_json()
            if self._job.has_importance:
                evaluated["importance"] = measure_importance(self._data.spans["test"], model.forecast_all)
        with self._stage("save"):
            write_with(self._job.folder / MODEL_FILE, partial(model.save, series=str(self.series)))
            if losses and self._job.keeps_fold_losses:
                fold_losses_of(self._data, losses).save(self._job.folder / FOLD_LOSSES_FILE)
        sample = sample_forecasts(self._data, forecasts.points, forecasts.quantiles)
        described = self._described(trainer, result, num_series, shares, evaluated)
        save_description(self._job.folder, described, result.history, sample)
        shutil.rmtree(self._checkpoint.parent, ignore_errors=True)
        if evaluation is None:
            return None
        best = evaluation.best_baseline(TASK_OHLC)
        return TaskScore(evaluation.against(TASK_OHLC), evaluation.against(TASK_OHLC, best))

    def _described(
        self,
        trainer: Trainer | FormulaTrainer,
        result: TrainingResult,
        num_series: int,
        shares: list[dict[str, Any]] | None,
        evaluated: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return what `metadata.json` says, but for the digest of the model file.

        That is what went in, how it was trained in a fleet of so many, what its calibration folded in, by
        task, and how it was evaluated.
        """
        job = self._job
        data = self._data
        profile = self._data.profile
        candles = self._job.candles
        seen = np.sort(data.table.select(profile.features)[data.anchors["train"]], axis=0)[[0, -1]].T.tolist()
        return {
            "format": ARTIFACT_FORMAT,
            "series": str(data.series),
            "created_at": now_iso(),
            "is_demo_market": not job.is_publishable,
            "candles": {
                "source": candles.source,
                "is_publishable": job.is_publishable,
                **asdict(pin_of(candles)),
                "report": asdict(candles.report),
            },
            "profile": profile.model_dump(mode="json"),
            "profile_digest": profile.digest,
            "features": [
                {"name": name, "kind": FEATURES[name].kind.value, "definition": text}
                | {"digest": ancestry(name).digest, "seen": ends}
                for (name, text), ends in zip(definitions(profile.features).items(), seen, strict=True)
            ],
            "warmup_bars": warmup_bars(profile.features),
            "lookback_bars": profile.lookback_bars,
            "horizon_bars": profile.horizon_bars,
            "bar_s": data.series.bar_s,
            "tasks": {
                task: {"columns": list(TASKS[task].columns), "unit": TASKS[task].unit}
                for task in profile.tasks
            },
            "table_digest": data.table.digest,
            "split": data.describe_split(),
            "scaling": asdict(data.scaling),
            "calibration": {"kind": profile.calibration} | ({"tasks": shares} if shares else {}),
            "seed": job.seed,
            "num_parameters": trainer.num_parameters,
            "training": {
                "precision": trainer.precision,
                "batch_size": profile.training.windows_per_step // trainer.num_parts,
                "gradient_accumulation": trainer.num_parts,
                "epochs_run": len(result.history),
                "best_epoch": result.best_epoch,
                "best_validation_loss": result.best_validation_loss,
                "untrained_validation_loss": result.untrained_loss,
                "stopped_by": result.stopped_by,
                "resumed_from_epoch": result.resumed_from_epoch,
                **({"started_from": self._first[0]} if self._first else {}),
                "device": result.device,
                "peak_memory_bytes": result.peak_memory_bytes,
                "peak_process_bytes": peak_process_bytes(),
                "fleet_size": num_series,
                "windows_per_s": result.windows_per_s,
            },
            **evaluated,
            "seconds": {stage: round(seconds, 4) for stage, seconds in self._seconds.items()},
            "versions": versions(),
            "machine": describe_machine(),
        }

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._listen(StageStarted(self.series, name))
        started = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - started


def calibrate(model: ServingModel, data: SeriesData) -> list[dict[str, Any]] | None:
    """Fit the formulas' say on the validation span and fold it in; None where the network has every share."""
    span = data.spans["validation"]
    profile = data.profile
    if not profile.has_paths:
        return None
    ensemble = fit_ensemble(data.spans["train"])
    said, distances = ensemble.said(span, model.coherent(span, model.network_points(span)))
    is_mixed = profile.calibration == "ensemble"
    alone = dict.fromkeys(profile.tasks, network_alone(profile.horizon_bars))
    shares = fit_shares(span, said) if is_mixed else alone
    points = mix(shares, said)
    levels = profile.quantiles
    widths = conformal_widths(levels, span.actual, points, distances) if levels else {}
    model.fold(ensemble, shares, widths)
    return told_shares(shares) if is_mixed else None
