"""The engine `ray`: trains shards of series as tasks of Ray, on this machine or on those of a cluster.

A task trains a shard, which is one series on a core, or a fleet on a GPU, and gets that share of a machine.
It trains with the code of `v8.runs.local`, so its files are bit-identical on equal machines. They are written
into the run folder, which all machines must share. Through Ray go only candles to the tasks, and events back,
in small batches: a task is a generator of events.

A worker process keeps TensorFlow and its compiled program from one shard to the next. Ray's own retries are
off: a task that is lost with its worker is submitted again by the rules of `JobQueue`, like the jobs of local
workers. Before its first shard a worker compares its versions with the driver's and looks for the run folder.

The driver is a process between the caller and Ray, because Ray's own code ends a process whose raylet or
cluster has died with exit code 1 and without a message; the caller then reports what happened. When the
driver ends, for whatever reason, Ray ends its tasks on all machines, and the driver ends with its caller.
Checkpoints keep the epochs, and the same call continues from there. So no task runs on without its caller,
and a run folder never has two writers. One driver, and its Ray, serve all runs of a call.
"""

import atexit
import os
import pickle
import platform
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

from v8.base.child import resource_scope
from v8.base.errors import ProfileError, SeriesError, StorageError, V8Error, shown
from v8.base.hardware import SINGLE_THREADED, num_usable_cores, versions, visible_gpus
from v8.base.process import (
    deferred_interrupts,
    for_children,
    light_start,
    restored_stop_signals,
    with_variables,
)
from v8.base.programs import kept_programs
from v8.base.registry import PLUGINS_PLACE, listed_plugins, load_plugins, loaded_plugins
from v8.base.storage import aside_of, digest_bytes, home, passing_folder, sweep
from v8.runs.events import Event, EventCallback, Note, RunObserver, SeriesOutcome, warnings_as_notes
from v8.runs.options import Placement
from v8.runs.plan import Engine, Job
from v8.runs.workers import POLL_S, JobQueue, Process

START_NOTICE_S: Final = 30.0  # the user is notified if Ray takes longer to start the first task, in seconds
CONNECT_TIMEOUT_S: Final = 5.0  # how long the machine at an address may take to answer, in seconds
OBJECT_STORE_BYTES: Final = 100 << 20  # memory of our own Ray for data of tasks: candles of a few shards
_RAY_SETTINGS: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",  # such workers would not have a task's environment
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # lower levels report recoveries that change nothing
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # lost workers are reported by v8 itself
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without it Ray prints a warning of a coming change
}
"""Environment variables of our own Ray; those that the user has set are not changed."""
_INHERITED: Final = ("TF_", "XLA_", "OMP_", "OPENBLAS_", "KERAS_BACKEND", PLUGINS_PLACE)
"""Prefixes of the variables that a task gets from the driver; others may be secrets, and Ray logs them."""
_MAX_FOLDER_BYTES: Final = 18
"""Length of a folder for Ray's sockets: Ray adds to it, and the system limits the paths of sockets."""
_FINISHED: Final = "done"  # last message of the driver about some jobs
TaskMessages: TypeAlias = tuple[Event | V8Error, ...]
"""Output of a task: events in their order, or the error with which it refuses; empty as a sign of life."""

_until_exit: Final = ExitStack()
atexit.register(_until_exit.close)


class RayEngine(Engine):
    """Makes artefacts in tasks of Ray.

    Args:
        placement: Where and how to train.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    @property
    def variables(self) -> Mapping[str, str]:
        """Those of its placement."""
        return self._placement.variables

    def train(self, jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
        """Make the artefact of every job; yield how each series ended as soon as it is known.

        Args:
            jobs: Jobs of one profile and one run folder.
            observer: Gets the events, in the calling process.

        Raises:
            ProfileError: If there is no cluster at the address, or no GPU although one is required.
            V8Error: If a worker has other versions than this process.
            StorageError: If a worker cannot see the run folder.
            SeriesError: If Ray is lost.
        """
        with deferred_interrupts("stopping the tasks; once more stops immediately\n") as check:
            try:
                for event in _events_of_driver(_driver().pipe, self._placement, jobs):
                    check()
                    if isinstance(event, SeriesOutcome):
                        yield event
                    elif event is not None:
                        observer.on_event(event)
            except BaseException:
                _until_exit.close()  # and with the driver all that is under way
                raise


def _events_of_driver(pipe: Any, placement: Placement, jobs: Sequence[Job]) -> Iterator[Event | None]:
    """Send jobs to the driver and yield their events; None at least every `POLL_S`."""
    try:
        pipe.send((placement, jobs))
        while True:
            message = pipe.recv() if pipe.poll(POLL_S) else None
            if isinstance(message, V8Error):
                raise message
            if message == _FINISHED:
                return
            yield message
    except (EOFError, ConnectionError) as error:
        raise _ray_ended() from error


@cache
def _driver() -> Process:
    driver = Process("v8-ray-driver", _drive)
    _until_exit.callback(_driver.cache_clear)
    _until_exit.callback(driver.end)
    _until_exit.callback(driver.ask_to_stop)
    return driver


def _ray_ended() -> SeriesError:
    return SeriesError(
        where="param:engine ray",
        rule="needs Ray to live until every series is made",
        got="the end of one of its processes: GCS, raylet or an agent of it",
        fix="Repeat the same command; it goes on from what is saved",
    )


# From here on: in the driver.


def _drive(pipe: Connection) -> None:
    """Run the driver: train the jobs that come through the pipe until it closes."""
    with suppress(EOFError, ConnectionError, KeyboardInterrupt), deferred_interrupts("") as check:
        try:
            while True:
                while not pipe.poll(POLL_S):
                    check()
                placement, jobs = pipe.recv()
                try:
                    for outcome in _train_all(placement, jobs, EventCallback(pipe.send), check):
                        pipe.send(outcome)
                    pipe.send(_FINISHED)
                except V8Error as error:
                    pipe.send(error)
        finally:
            _until_exit.close()


def _train_all(
    placement: Placement, jobs: Sequence[Job], observer: RunObserver, check: Callable[[], None]
) -> Iterator[SeriesOutcome]:
    ray = _connect(placement)
    node_id = ray.get_runtime_context().get_node_id()
    (node,) = (node for node in ray.nodes() if node["NodeID"] == node_id)
    raylet_address = (node["NodeManagerAddress"], node["NodeManagerPort"])
    require_raylet = partial(_require_raylet, raylet_address)
    with _marker_file(jobs[0].folder.parent) as marker:
        tasks = _Tasks(ray, placement, jobs, observer, marker, require_raylet)
        while tasks.has_unfinished:
            check()
            yield from tasks.receive()


def _require_raylet(address: tuple[str, int]) -> None:
    """Refuse to continue without the raylet of this machine: then all tasks are lost, by no series' fault.

    Raises:
        SeriesError: If it does not answer at its address.
    """
    try:
        socket.create_connection(address, CONNECT_TIMEOUT_S).close()
    except OSError:
        raise _ray_ended() from None


class _Tasks:
    """The running tasks of one call and the jobs that are yet to be submitted.

    Args:
        ray: The module, connected to a cluster.
        placement: Where and how to train.
        jobs: The jobs.
        observer: Gets the events.
        marker: A file in the run folder by which workers recognise it.
        require_raylet: Raises an error if the raylet of this machine has ended.
    """

    def __init__(  # noqa: PLR0917 - called in one place, in this order
        self,
        ray: Any,
        placement: Placement,
        jobs: Sequence[Job],
        observer: RunObserver,
        marker: Path,
        require_raylet: Callable[[], None] = lambda: None,
    ) -> None:
        self._require_raylet = require_raylet
        self._ray = ray
        self._observer = observer
        self._queue = JobQueue(jobs, observer)
        is_formula = jobs[0].recipe.profile.family.is_formula
        self._resource, variables = _task_resource(ray.cluster_resources(), placement, is_formula=is_formula)
        self._max_tasks = placement.num_workers
        self._fleet_size = placement.fleet_size
        options: dict[str, Any] = {"num_cpus": 1, "max_retries": 0}  # lost tasks are submitted again by v8
        self._shard_size = self._fleet_size or 1
        if self._resource == "GPU":
            options["num_gpus"] = 1
            # A task on a GPU gets an even share and finds out itself how many of it fit into one program.
            even_share = -(-len(jobs) // self._capacity())
            self._shard_size = self._fleet_size or even_share
        self._task = ray.remote(**options, runtime_env={"env_vars": variables})(_serve)
        self._marker = str(marker)
        self._started_tasks: set[Any] = set()
        self._start_notice_s = time.monotonic() + START_NOTICE_S

    @property
    def has_unfinished(self) -> bool:
        """Whether any series has no outcome."""
        return bool(self._queue or self._queue.held)

    def receive(self) -> list[SeriesOutcome]:
        """Submit as many tasks as there is capacity for, and handle the messages of a moment."""
        while self._queue and len(self._queue.held) < self._capacity():
            self._submit()
        tasks = list(self._queue.held)
        self._ray.wait(tasks, num_returns=1, timeout=POLL_S, fetch_local=False)
        ready, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0, fetch_local=False)
        self._notify_if_not_started()
        return [outcome for task in ready for outcome in self._receive_from(task)]

    def _submit(self) -> None:
        shard = self._queue.take(self._shard_size)
        task = self._task.options(name=f"v8 {shard[0].series}")
        # Absolute, because a worker runs in another folder; pickled, because a worker with other versions
        # must report that before it reads a job.
        pickled_jobs = pickle.dumps([replace(job, folder=job.folder.absolute()) for job in shard])
        running = task.remote(_environment(), self._marker, pickled_jobs, self._fleet_size)
        self._queue.held[running] = shard

    def _capacity(self) -> int:
        """Return how many tasks the cluster can run as it is now; at least one lets it grow."""
        num_available = int(self._ray.cluster_resources().get(self._resource, 0))
        return max(1, min(self._max_tasks, num_available))

    def _receive_from(self, task: Any) -> list[SeriesOutcome]:
        errors = self._ray.exceptions
        try:
            messages: TaskMessages = self._ray.get(next(task))
        except StopIteration:
            return self._resubmit(task, "an early end")
        except errors.RayTaskError as error:
            if task not in self._started_tasks:
                raise _unsuitable_worker(error.cause) from error
            return self._resubmit(task, type(error.cause).__name__)
        except errors.RuntimeEnvSetupError as error:
            raise _unsuitable_worker(error) from error
        except errors.RayError as error:
            return self._resubmit(task, type(error).__name__)
        self._started_tasks.add(task)
        self._start_notice_s = float("inf")
        outcomes = []
        for message in messages:
            if isinstance(message, V8Error):
                raise message
            outcomes += self._queue.receive(task, message)
        if not self._queue.held[task]:
            del self._queue.held[task]
        return outcomes

    def _resubmit(self, task: Any, cause: str) -> list[SeriesOutcome]:
        """Put the jobs of a lost task back into the queue."""
        self._require_raylet()
        return self._queue.give_back(self._queue.held.pop(task), cause)

    def _notify_if_not_started(self) -> None:
        if time.monotonic() > self._start_notice_s:
            self._start_notice_s = float("inf")
            num_available = self._ray.cluster_resources().get(self._resource, 0)
            self._observer.on_event(
                Note(
                    f"Ray has begun no task for {START_NOTICE_S:g} s. Each needs a {self._resource}; "
                    f"the cluster has {num_available:g} in all, and others may use them. v8 waits."
                )
            )


def _task_resource(
    resources: dict[str, float], placement: Placement, *, is_formula: bool
) -> tuple[str, dict[str, str]]:
    """Decide which resource each task gets, and its environment variables.

    The resource is "GPU" if the cluster has one and it is useful, else "CPU".

    Raises:
        ProfileError: If a GPU is required and the cluster has none.
    """
    has_gpu = resources.get("GPU", 0) >= 1
    if placement.device == "gpu" and not has_gpu:
        raise ProfileError(
            where="param:device gpu",
            rule="needs a GPU among the resources of the Ray cluster",
            got="none",
            fix="Start Ray on a machine with a GPU, or use param:device auto",
        )
    own_settings = SINGLE_THREADED.items()  # a driver without a GPU has set these for itself
    variables = {
        name: value for name, value in os.environ.items() - own_settings if name.startswith(_INHERITED)
    }
    variables |= for_children
    variables["V8_HOME"] = str(home().absolute())
    variables.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if has_gpu and placement.device != "cpu" and not is_formula:
        return "GPU", variables
    return "CPU", {**SINGLE_THREADED, **variables, "CUDA_VISIBLE_DEVICES": "-1"}


def _unsuitable_worker(error: BaseException) -> V8Error:
    """Return the error for a worker that cannot run v8."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return V8Error(
        where="param:engine ray",
        rule="needs v8 on every machine of the cluster, in the Python that Ray was started with",
        got=shown(lines[-1], 300),
        fix="Install there what is installed here, and start Ray there from that Python",
    )


def _connect(placement: Placement) -> Any:
    """Return Ray, connected to the cluster at the address or to one of our own, until this process ends.

    Raises:
        ProfileError: If there is no cluster that this process can join.
        StorageError: If the folder for the sockets of our own cannot be made.
    """
    settings = dict(_RAY_SETTINGS)
    if not placement.address:
        settings["RAY_AUTH_MODE"] = "token"
        settings["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # without it Ray stores one in ~/.ray
    missing = {name: value for name, value in settings.items() if name not in os.environ}
    # Ray asks for them from its import on, and its processes inherit them, until it is shut down.
    _until_exit.enter_context(with_variables(missing))
    import ray  # noqa: PLC0415 - an extra, and slow to import

    if not ray.is_initialized():
        with restored_stop_signals():  # Ray takes SIGTERM for itself
            if placement.address:
                _join(ray, placement.address)
            else:
                _start(ray, placement)
        _until_exit.callback(ray.shutdown)
    return ray


def _join(ray: Any, address: str) -> None:
    try:
        if address != "auto":  # check the address first: Ray would try a wrong one for ever
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        message = shown(" ".join(str(error).split()), 150) or type(error).__name__
        raise ProfileError(
            where="param:address",
            rule="is auto or HOST:PORT of a Ray cluster that this machine is in, with its Ray and Python",
            got=f"{address} ({message})",
            fix="Run here: ray start --address=HOST:PORT; if it asks for a token, set RAY_AUTH_MODE=token",
        ) from error


def _start(ray: Any, placement: Placement) -> None:
    """Start a Ray of our own, which the system ends with this process."""
    parent = Path(tempfile.gettempdir())
    if len(os.fsencode(parent)) > _MAX_FOLDER_BYTES:
        parent = Path("/tmp")  # noqa: S108 - the folder made there is this user's alone
    try:
        # A process of Ray may still write when the folder is removed; the next call removes what is left.
        _until_exit.enter_context(suppress(OSError))
        folder = _until_exit.enter_context(passing_folder("ray", parent))
    except OSError as error:
        raise StorageError.of(parent, error) from error
    ray.init(
        address="local",
        num_cpus=num_usable_cores() if placement.is_measured else placement.num_workers,
        num_gpus=0 if placement.device == "cpu" else len(visible_gpus()),
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        _temp_dir=str(folder),
        runtime_env={"env_vars": {"TMPDIR": str(folder)}},  # files that workers leave are removed with it
    )


@contextmanager
def _marker_file(folder: Path) -> Iterator[Path]:
    """Write a file into a run folder while a block runs, by which workers recognise the shared folder.

    Raises:
        StorageError: If it cannot be written.
    """
    sweep(folder)
    marker = aside_of(folder.absolute() / "shared")
    try:
        marker.touch()
        yield marker
    except OSError as error:
        raise StorageError.of(marker, error) from error
    finally:
        marker.unlink(missing_ok=True)


@cache
def _environment() -> dict[str, str]:
    """Return what must be the same on all machines: versions, the code of v8 itself, and plug-ins."""
    load_plugins()
    package = Path(__file__).parents[2]
    contents = [file.read_bytes() for file in sorted(package.rglob("*.py"))]
    code = digest_bytes(*contents)
    return {**versions(), "v8's code": code[:12], "plug-ins": listed_plugins(loaded_plugins)}


# From here on: in a worker.


def _serve(
    driver_environment: dict[str, str], marker: str, pickled_jobs: bytes, fleet_size: int | None
) -> Iterator[TaskMessages]:
    """Run a task: make the artefacts of a shard, and yield messages meanwhile.

    Args:
        driver_environment: The driver's `_environment`, which this worker must have, too.
        marker: Path of a file that the driver has written into the run folder.
        pickled_jobs: The jobs of the shard.
        fleet_size: Models of one program; None measures what suits the GPU.
    """
    refusal = _refusal(driver_environment, Path(marker))
    if refusal:
        yield (refusal,)
        return
    yield ()
    queue: SimpleQueue[Event] = SimpleQueue()
    jobs = pickle.loads(pickled_jobs)  # noqa: S301 - our driver's
    is_finished = False
    training = _training_thread().submit(_train_shard, jobs, fleet_size, EventCallback(queue.put))
    while not is_finished:
        is_finished = bool(wait([training], POLL_S).done)
        events = tuple(queue.get_nowait() for _ in range(queue.qsize()))
        if events:
            yield events
    training.result()


def _refusal(driver_environment: dict[str, str], marker: Path) -> V8Error | None:
    """Return why this worker must not train for the driver; None if it may."""
    location = f"Ray worker on {platform.node()}"
    try:
        environment = _environment()
    except V8Error as error:
        return error
    different = [name for name, value in driver_environment.items() if environment.get(name) != value]
    if different:
        return V8Error(
            where=location,
            rule="must have the versions of the machine that v8 was called on",
            got=", ".join(
                f"{name} {environment.get(name)} for {driver_environment[name]}" for name in different
            ),
            fix="Install the same versions there, or results would differ from machine to machine",
        )
    if not marker.exists():
        return StorageError(
            where=location,
            rule=f"must see the run folder {marker.parent}, on a file system that all machines share",
            got="none there, or another one",
            fix="Name with param:runs (or param:out) a folder that is at the same path on every machine",
        )
    return None


@cache
def _training_thread() -> ThreadPoolExecutor:
    """Return the thread in which a worker process trains one shard after another; compiled programs are kept.

    A thread, because Ray's own thread must send messages meanwhile; always the same one, because Keras keeps
    settings in it.
    """
    _until_exit.enter_context(kept_programs())
    _until_exit.enter_context(resource_scope())
    return ThreadPoolExecutor(1)


def _train_shard(jobs: Sequence[Job], fleet_size: int | None, observer: RunObserver) -> None:
    """Make the artefacts of a shard, with the compiled program of the last one if its settings are equal."""
    with warnings_as_notes(observer):
        with light_start():
            from v8.runs import local  # noqa: PLC0415 - the driver must not start TensorFlow

        size = fleet_size or local.suited_fleet_size(jobs[0].recipe.profile, len(jobs))
        for outcome in local.InProcessEngine(size).train(jobs, observer):
            observer.on_event(outcome)
