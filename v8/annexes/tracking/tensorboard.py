"""Curves for TensorBoard: event files in the folder `tensorboard` of the run, one folder a series.

    tensorboard --logdir runs/aligned/tensorboard

Events are written by the `tensorboard` package, record by record: its own file writer would start
TensorFlow only to open a file, and this process may have none.
"""

import os
import time
from collections.abc import Mapping

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from v8.runs.trackers import TrackedRun

TENSORBOARD_FOLDER = "tensorboard"

_FILE_VERSION = "brain.Event:2"  # first record of every event file; TensorBoard refuses files without it


class EventFiles:
    """Writes one event file per series and call into a folder of the run."""

    def __init__(self, run: TrackedRun) -> None:
        self._folder = run.path / TENSORBOARD_FOLDER
        self._writers: dict[str, RecordWriter] = {}

    def log(self, series: str, step: int, values: Mapping[str, float]) -> None:
        """Write numbers of a series; they can be read immediately."""
        summary_values = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        summary = Summary(value=summary_values)
        if series not in self._writers:
            self._writers[series] = self._open(series)
        event = Event(wall_time=time.time(), step=step, summary=summary)
        self._writers[series].write(event.SerializeToString())
        self._writers[series].flush()

    def finish(self, series: str) -> None:
        """Close the file of a series."""
        writer = self._writers.pop(series, None)
        if writer:
            writer.close()

    def _open(self, series: str) -> RecordWriter:
        folder = self._folder / series
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard finds files by this name; a call that continues the run writes a further one.
        now_s = time.time()
        stream = (folder / f"events.out.tfevents.{now_s:.6f}.{os.getpid()}").open("xb")
        writer = RecordWriter(stream)
        writer.write(Event(wall_time=now_s, file_version=_FILE_VERSION).SerializeToString())
        return writer
