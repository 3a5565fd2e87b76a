"""Training in progress on disk: one plain .npz file, rewritten whole after every epoch.

It only saves time. Behind its end stand 32 bytes more, the sha256 of all before them, so that nothing of a
damaged file is ever taken apart.
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

from v8.errors import ArtifactError
from v8.records import adapter
from v8.storage import read_given, write_with
from v8.training.progress import Progress
from v8.training.step import FleetState

CHECKPOINT_FORMAT = 3
FORMAT_OF_ARRAYS: Final = 2
"""Until then every array of the weights and of Adam's moments was kept by itself; it is read, too."""
_ONE_ARRAY: Final = ("weights", "means", "squares", "best_weights")
"""What they are one array of now."""
MAX_BYTES: Final = 1 << 30  # a larger file is none of ours; the network would have 60 million parameters
_DIGEST_BYTES: Final = 32


@dataclass(frozen=True)
class Checkpoint:
    """Everything the next epoch of one model depends on.

    Args:
        identity: Profile, data and seed this belongs to; a checkpoint of anything else is refused.
        state: The model's part of its fleet's state.
        best_weights: Trainable arrays of its best epoch, one after another as in the state, shape (P,).
    """

    identity: dict[str, Any]
    state: FleetState
    best_weights: NDArray[Any]
    progress: Progress

    def save(self, path: Path) -> None:
        """Write the checkpoint atomically."""
        note = {"format": CHECKPOINT_FORMAT, "identity": self.identity}
        note |= {"epoch": self.progress.epoch, "progress": asdict(self.progress)}
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
            whole = read_given(path, MAX_BYTES)
            if hashlib.sha256(whole[:-_DIGEST_BYTES]).digest() != whole[-_DIGEST_BYTES:]:
                raise ValueError("damage: it does not match its sha256")
            with np.load(io.BytesIO(whole[:-_DIGEST_BYTES]), allow_pickle=False) as stored:
                content = {name: stored[name] for name in stored.files}
            note = json.loads(bytes(content["note"]))
            progress = adapter(Progress).validate_python(note["progress"])
            # What is no array is a list of those whose names go on with a number.
            part: dict[str, Any] = {
                name: content.get(name, [one for key, one in content.items() if key.startswith(f"{name}/")])
                for name in (*FleetState._fields, "best_weights")
            }
            if note["format"] == FORMAT_OF_ARRAYS:
                for name in _ONE_ARRAY:
                    part[name] = np.concatenate([array.ravel() for array in part[name]])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            got = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise _refusal(path, "must be a checkpoint that can be read", got) from error
        if note["format"] not in (FORMAT_OF_ARRAYS, CHECKPOINT_FORMAT) or note["identity"] != identity:
            raise _refusal(path, f"must belong to {identity}", str(note["identity"]))
        best_weights = part.pop("best_weights")
        return cls(identity, FleetState(**part), best_weights, progress)

    def require_fit(self, state: FleetState) -> None:
        """Check that it can take the place of an untrained model's state, or raise ArtifactError."""
        if _layout((self.state, self.best_weights)) != _layout((state, state.weights)):
            raise _refusal("a checkpoint", "must hold the arrays of this network", "others")


def _layout(part: Any) -> Any:
    return keras.tree.map_structure(lambda array: (np.shape(array), np.asarray(array).dtype.str), part)


def _refusal(where: Path | str, rule: str, got: str) -> ArtifactError:
    fix = "Remove it to train this series from its first epoch"
    return ArtifactError(where=str(where), rule=rule, got=got, fix=fix)
