"""Checkpoints of a training: one .npz file for each model, written again after every epoch.

A checkpoint only saves time. The file is followed by 32 bytes, its sha256, so that a damaged file is never
parsed.
"""

import hashlib
import io
import json
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import keras
import numpy as np
from numpy.typing import NDArray

from v8.base.errors import ArtifactError
from v8.base.reading import parse_json, read_given
from v8.base.records import adapter
from v8.base.storage import write_with
from v8.model.training.progress import Progress
from v8.model.training.step import FleetState

CHECKPOINT_FORMAT = 4
MAX_BYTES: Final = 1 << 30  # no checkpoint is larger: the network would have 60 million parameters
_DIGEST_BYTES: Final = 32


@dataclass(frozen=True)
class Checkpoint:
    """Everything the next epoch of one model depends on.

    Args:
        identity: Profile, data and seed of the training; a checkpoint of another training is refused.
        state: The state of this model, without the model axis.
        best_weights: Trainable numbers of its best epoch, in the order of the state, shape (P,).
        progress: Its finished epochs.
    """

    identity: dict[str, Any]
    state: FleetState
    best_weights: NDArray[Any]
    progress: Progress

    def save(self, path: Path) -> None:
        """Write the checkpoint atomically."""
        note = {
            "format": CHECKPOINT_FORMAT,
            "identity": self.identity,
            "epoch": self.progress.epoch,
            "progress": asdict(self.progress),
        }
        flat: dict[str, Any] = {"note": np.frombuffer(json.dumps(note).encode("utf-8"), np.uint8)}
        for name, value in {**self.state._asdict(), "best_weights": self.best_weights}.items():
            if isinstance(value, list):
                flat.update({f"{name}/{number}": array for number, array in enumerate(value)})
            else:
                flat[name] = value
        stream = io.BytesIO()
        np.savez(stream, **flat)
        content = stream.getvalue()
        write_with(path, lambda aside: aside.write_bytes(content + hashlib.sha256(content).digest()))

    @classmethod
    def load(cls, path: Path, identity: dict[str, Any]) -> Self:
        """Read a checkpoint of this profile, data set and seed, or raise ArtifactError."""
        try:
            content = read_given(path, MAX_BYTES)
            file = content[:-_DIGEST_BYTES]
            if hashlib.sha256(file).digest() != content[-_DIGEST_BYTES:]:
                raise ValueError("damage: it does not match its sha256")
            with np.load(io.BytesIO(file), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            note = parse_json(bytes(arrays["note"]))
            progress = adapter(Progress).validate_python(note["progress"])
            fields: dict[str, Any] = {}
            for name in (*FleetState._fields, "best_weights"):
                # A list is stored as arrays NAME/0, NAME/1 ...
                fields[name] = arrays.get(name)
                if fields[name] is None:
                    fields[name] = [array for key, array in arrays.items() if key.startswith(f"{name}/")]
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            got = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise _refusal(path, "must be a checkpoint that can be read", got) from error
        if note["format"] != CHECKPOINT_FORMAT or note["identity"] != identity:
            raise _refusal(path, f"must belong to {identity}", str(note["identity"]))
        best_weights = fields.pop("best_weights")
        return cls(identity, FleetState(**fields), best_weights, progress)

    def require_fit(self, state: FleetState) -> None:
        """Raise ArtifactError if its arrays differ in shape or dtype from those of a model's state."""
        if _layout((self.state, self.best_weights)) != _layout((state, state.weights)):
            raise _refusal("a checkpoint", "must hold the arrays of this network", "others")


def _layout(arrays: Any) -> Any:
    return keras.tree.map_structure(lambda array: (np.shape(array), np.asarray(array).dtype.str), arrays)


def _refusal(place: Path | str, rule: str, got: str) -> ArtifactError:
    fix = "Remove it to train this series from its first epoch"
    return ArtifactError(where=str(place), rule=rule, got=got, fix=fix)
