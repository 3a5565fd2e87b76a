"""Training in progress on disk: one plain .npz file, rewritten whole after every epoch."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from v8.errors import ArtifactError
from v8.storage import write_with

CHECKPOINT_FORMAT = 1
_LISTS = ("weights", "constants", "means", "squares", "best_weights")


@dataclass(frozen=True)
class Checkpoint:
    """Everything the next epoch depends on.

    Args:
        identity: Profile, data and seed this belongs to; a checkpoint of anything else is refused.
        epoch: Last finished epoch.
        arrays: Lists of arrays and single numbers of the training state, by name.
        progress: JSON values: patience and history.
    """

    identity: dict[str, Any]
    epoch: int
    arrays: dict[str, Any]
    progress: dict[str, Any]

    def save(self, path: Path) -> None:
        """Write the checkpoint atomically."""
        flat: dict[str, Any] = {}
        for name, value in self.arrays.items():
            if name in _LISTS:
                flat.update({f"{name}/{number}": np.asarray(item) for number, item in enumerate(value)})
            else:
                flat[name] = np.asarray(value)
        note = {
            "format": CHECKPOINT_FORMAT,
            "identity": self.identity,
            "epoch": self.epoch,
            "progress": self.progress,
        }
        flat["note"] = np.frombuffer(json.dumps(note).encode("utf-8"), np.uint8)
        write_with(path, lambda aside: np.savez(aside, **flat))

    @classmethod
    def load(cls, path: Path, identity: dict[str, Any]) -> Checkpoint:
        """Read a checkpoint and make sure that it belongs here.

        Raises:
            ArtifactError: If the file is damaged or of another profile, data set or seed.
        """
        try:
            with np.load(path, allow_pickle=False) as stored:
                content = {name: stored[name] for name in stored.files}
            note = json.loads(bytes(content.pop("note")))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ArtifactError(
                where=str(path),
                rule="must be a checkpoint that can be read",
                got=str(error) or type(error).__name__,
                fix="Move the file away to train this series from its first epoch",
            ) from error
        if note["format"] != CHECKPOINT_FORMAT or note["identity"] != identity:
            raise ArtifactError(
                where=str(path),
                rule=f"must belong to {identity}",
                got=str(note["identity"]),
                fix="Start a new run beside this one with --fresh",
            )
        return cls(identity, note["epoch"], _nested(content), note["progress"])


def _nested(content: dict[str, NDArray[Any]]) -> dict[str, Any]:
    arrays: dict[str, Any] = {name: [] for name in _LISTS}
    for name, value in content.items():
        section, slash, _ = name.partition("/")
        if slash:
            arrays[section].append(value)
        else:
            arrays[name] = value
    return arrays
