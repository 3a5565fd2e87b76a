"""The model file: refused unread unless plain Keras can only do arithmetic with it (G15).

A `.keras` file is a zip of a network's description, its weights and a date. It may come from anybody,
so it is looked at before Keras opens it:

1. It is a zip from its first byte, of exactly three members, each a plain file under its own name,
   stored or deflated, and it unpacks to what it claims: no pickle, no `.h5`, no path that leaves the
   folder, no archive bomb.
2. Every object of `config.json` is on a list of stock Keras layers, operations and initializers. A list
   of what is allowed, because every list of what is not has had a hole: Lambda layers, functions by
   name, layers that read files or run saved programs of other frameworks.
3. The weights are plain numbers inside the file: no link, no external file, nothing that unpacks to
   more than it holds.
4. No size in `config.json` is beyond `MAX_WHOLE`, no loop is to be written out, and layers are few.
5. Before Keras takes any memory for it, the network is built without its numbers: it must not have more
   of them than the file holds, nor work on more than `MAX_WORKED_NUMBERS` a window.

The series that it was made for, if it names one, must be the one that it is said to be of.

The file is loaded by plain Keras in safe mode all the same. Whatever Keras says about layers that do not
fit together, at loading or at the first window, is one `ArtifactError`.
"""

import io
import json
import math
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import h5py
import yaml

from v8.errors import ArtifactError, V8Error, listed, shown
from v8.networks.published import ABOUT_MEMBER, CONFIG_MEMBER, FORECAST_BATCH, WEIGHTS_MEMBER
from v8.storage import open_given, packaged

SERIES_KEY: Final = "series"  # of `ABOUT_MEMBER`: which series the model was made for
KERAS_MEMBERS: Final = frozenset({CONFIG_MEMBER, ABOUT_MEMBER, WEIGHTS_MEMBER})
"""What a native Keras 3 file of ours holds; anything else is refused."""

MAX_UNPACKED_BYTES: Final = 512 << 20  # a file claims to unpack to; the largest shipped profile needs 4 MB
MAX_TEXT_BYTES: Final = 16 << 20  # of `config.json`; the shipped profiles need 50 kB
MAX_RATIO: Final = 100
"""Unpacked bytes per packed byte; weights hardly pack, a network's description 20 times."""
MAX_DEPTH: Final = 100  # objects inside objects in `config.json`; the shipped profiles have 12
MAX_WEIGHT_OBJECTS: Final = 10_000  # groups and arrays of the weights; the shipped profiles have a hundred
MAX_LAYERS: Final = 1_000  # layers and operations; the shipped profiles have 130
MAX_WHOLE: Final = 1 << 17
"""Largest whole number in `config.json`, seeds and ids apart: more than any lookback times its features."""
MAX_WORKED_NUMBERS: Final = 1 << 24
"""Numbers that layers hand on, all together, for one window: a lookback of 10,000 bars has 13 million."""
BYTES_PER_WEIGHT: Final = 4  # models are saved in float32
_FREE_WHOLES: Final = frozenset({"seed", "shared_object_id"})  # keys of whole numbers that are no sizes
_ZIP_START = b"PK\x03\x04"
_IS_ENCRYPTED = 0x1
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

_STOCK: Final = {
    module: frozenset(names.split())
    for module, names in yaml.safe_load(packaged("v8.artifacts", "stock.yaml")).items()
}
"""Stock classes by the module that Keras writes; they compute, and touch nothing outside."""

_OPERATIONS = re.compile(r"keras\.src\.ops\.(numpy|nn|math)")
"""Modules of stock operations on arrays; a class of theirs takes no function."""
_CLASS_NAME = re.compile(r"[A-Z][A-Za-z0-9]*")
_VALUES = frozenset({"__keras_tensor__", "__numpy__", "__tensor__", "__slice__", "__ellipsis__"})
"""Names under which Keras writes plain values."""


def check_keras_file(file: Path) -> None:
    """Refuse a file, however named, that is not a native Keras file of stock layers; nothing in it is run.

    Raises `ArtifactError` if it is missing, of another kind, too large, damaged, or holds anything but
    stock Keras objects and plain numbers.
    """
    try:
        with open_given(file) as stream:
            is_zip = stream.read(len(_ZIP_START)) == _ZIP_START and zipfile.is_zipfile(stream)
        if not is_zip:
            raise _foreign(file, "a file of another kind")
        with zipfile.ZipFile(file) as archive:
            _check_members(file, archive.infolist())
            # Python stops at the size that a member claims, and compares its checksum.
            members = {name: archive.read(name) for name in sorted(KERAS_MEMBERS)}
            for name, content in members.items():
                if len(content) != (claimed := archive.getinfo(name).file_size):
                    raise _foreign(file, f"a member {name} of {len(content):,} bytes that claims {claimed:,}")
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise _foreign(file, f"a damaged archive ({error})") from error
    except OSError as error:
        raise _foreign(file, error.strerror or "an input error") from error
    _check_config(file, members[CONFIG_MEMBER])
    _check_weights(file, members[WEIGHTS_MEMBER])


def require_made_for(file: Path, series: str) -> None:
    """Refuse a checked file that says it was made for another series; older files name none."""
    try:
        about = json.loads(read_member(file, ABOUT_MEMBER))
    except (ValueError, RecursionError) as error:
        raise _foreign(file, f"a {ABOUT_MEMBER} that is no JSON") from error
    named = about.get(SERIES_KEY, series) if isinstance(about, dict) else None
    if named != series:
        rule = f"must be a model of {series}, whose metadata it lies beside"
        fix = "Restore the artefact's folder, download it again, or train the series"
        raise ArtifactError(where=str(file), rule=rule, got=f"one that was made for {shown(named)}", fix=fix)


def load_keras_model(file: Path) -> Any:
    """Load a checked Keras file in safe mode; no code in it can run, and it takes no more than its size.

    Raises `ArtifactError` if its layers do not fit together or to its weights, or would need more memory.
    """
    import keras  # noqa: PLC0415 - seconds of start-up, paid only by those who forecast

    with one_fault(file, "must hold layers and weights that fit together"):
        _require_bounded(file, json.loads(read_member(file, CONFIG_MEMBER)))
        return keras.saving.load_model(file, compile=False, safe_mode=True)


def read_member(file: Path, name: str) -> bytes:
    """Read a member of a checked Keras file."""
    with zipfile.ZipFile(file) as archive:
        return archive.read(name)


def require_enough_weights(file: Path, model: Any) -> None:
    """Refuse a network with more weights than its checked file holds, by `ArtifactError`."""
    with zipfile.ZipFile(file) as archive:
        most = archive.getinfo(WEIGHTS_MEMBER).file_size // BYTES_PER_WEIGHT
    num_weights = sum(math.prod(one.shape) for one in model.variables)
    if num_weights > most:
        raise _foreign(file, f"a network of {num_weights:,} numbers with a file for {most:,}")


@contextmanager
def one_fault(file: Path | str, rule: str) -> Iterator[None]:
    """Turn whatever Keras raises about a stranger's network into one `ArtifactError`."""
    try:
        yield
    except V8Error:
        raise
    except Exception as error:  # of any kind: Keras and TensorFlow check nothing, their parts just break
        said = str(error).strip() or "nothing more"
        got = shown(f"{type(error).__name__}: {said}", 200)
        fix = "Download or train this model again; if that does not help, do not use it"
        raise ArtifactError(where=str(file), rule=rule, got=got, fix=fix) from error


def _require_bounded(file: Path, config: Any) -> None:
    """Refuse a network with more weights than its file holds, or that works on too many numbers a batch.

    It is built for batches of `FORECAST_BATCH` windows, with shapes and without values.
    """
    import keras  # noqa: PLC0415 - as above
    from keras.src.backend.common import global_state  # noqa: PLC0415 - as above

    for _, node in _values(file, config):
        if isinstance(node, dict) and isinstance(node.get("batch_shape"), list):
            node["batch_shape"] = [FORECAST_BATCH, *node["batch_shape"][1:]]
    try:
        with keras.StatelessScope(initialize_variables=False):
            whole = {**config, "compile_config": None}
            model = keras.saving.deserialize_keras_object(whole, safe_mode=True)
    finally:  # Keras would fill them when the next such scope ends, whoever opened it
        global_state.set_global_attribute("uninitialized_variables", [])
    if not isinstance(model, keras.Model) or not model.inputs:
        raise _foreign(file, f"a {type(model).__name__}, which is no model with inputs")
    require_enough_weights(file, model)
    shapes = [*_worked_shapes(model)]
    if any(None in shape for shape in shapes):
        raise _foreign(file, "a network that works on a number of values that depends on them")
    num_worked = sum(math.prod(shape) for shape in shapes)
    if num_worked > FORECAST_BATCH * MAX_WORKED_NUMBERS:
        raise _foreign(file, f"a network that works on {num_worked:,} numbers a batch")


def _worked_shapes(model: Any) -> Iterator[Any]:
    """Return the shape of all that is handed on in a batch; an attention compares all steps with all."""
    for operation in model.operations:
        if hasattr(operation, "operations"):
            yield from _worked_shapes(operation)
            continue
        for node in operation._inbound_nodes:
            yield from (one.shape for one in node.output_tensors)
            if hasattr(operation, "num_heads"):
                steps = max(one.shape[1] for one in node.input_tensors)
                yield FORECAST_BATCH, operation.num_heads, steps, steps


def _check_members(file: Path, members: list[zipfile.ZipInfo]) -> None:
    """Look at the archive's own list; nothing is unpacked."""
    for member in members:
        wrong = _fault_of(member)
        if wrong is not None:
            raise _foreign(file, f"the member {member.filename[:80]!r}, {wrong}")
    names = sorted(member.filename for member in members)
    if names != sorted(KERAS_MEMBERS):
        raise _foreign(file, f"an archive of {listed(names) if names else 'nothing'}")
    unpacked = sum(member.file_size for member in members)
    if unpacked > MAX_UNPACKED_BYTES:
        raise _foreign(file, f"an archive that unpacks to {unpacked:,} bytes")


def _fault_of(member: zipfile.ZipInfo) -> str | None:
    name = member.filename
    size = member.file_size
    kind = stat.S_IFMT(member.external_attr >> 16)
    is_outside = name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name) or ":" in name
    is_bomb = size > MAX_RATIO * max(member.compress_size, 1)
    is_bomb |= name != WEIGHTS_MEMBER and size > MAX_TEXT_BYTES
    faults = {
        "which leaves the folder": is_outside,
        "which is no plain file": kind not in (0, stat.S_IFREG),
        "which is encrypted": bool(member.flag_bits & _IS_ENCRYPTED),
        "which is packed as Keras never does": member.compress_type not in _PACKINGS,
        f"which unpacks to {size:,} bytes from {member.compress_size:,}": is_bomb,
    }
    return next((fault for fault, is_there in faults.items() if is_there), None)


def _check_config(file: Path, content: bytes) -> None:
    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _foreign(file, f"a {CONFIG_MEMBER} that is no JSON") from error
    if not isinstance(config, dict) or "class_name" not in config:
        raise _foreign(file, f"a {CONFIG_MEMBER} that describes no model")
    num_layers = 0
    strange = set[str | None]()
    for key, node in _values(file, config):
        if isinstance(node, int) and abs(node) > MAX_WHOLE and key not in _FREE_WHOLES:
            raise _foreign(file, f"a {CONFIG_MEMBER} with the size {shown(node, 40)}")
        if not isinstance(node, dict):
            continue
        if node.get("unroll"):
            raise _foreign(file, f"a {CONFIG_MEMBER} with a loop to be written out (unroll)")
        num_layers += len(node["layers"]) if isinstance(node.get("layers"), list) else 0
        strange.add(_strange_class(node))
    if num_layers > MAX_LAYERS:
        raise _foreign(file, f"a {CONFIG_MEMBER} with {num_layers:,} layers")
    named = sorted(name for name in strange if name is not None)
    if named:
        rule = "may hold stock Keras layers, operations and initializers only"
        fix = "Do not load this file with anything; train the model again or ask whoever published it"
        raise ArtifactError(where=str(file), rule=rule, got=listed(named), fix=fix)


def _values(file: Path, config: Any) -> Iterator[tuple[str, Any]]:
    """Visit every value of a description and its key, without recursion, so that depth cannot hurt.

    What is in a list has the key of the list.
    """
    waiting = [("", config, 0)]
    while waiting:
        key, value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise _foreign(file, f"a {CONFIG_MEMBER} with more than {MAX_DEPTH} objects inside each other")
        yield key, value
        if isinstance(value, dict):
            waiting += [(name, inner, depth + 1) for name, inner in value.items()]
        elif isinstance(value, list):
            waiting += [(key, inner, depth + 1) for inner in value]


def _strange_class(node: dict[str, Any]) -> str | None:
    """Name the class of an object unless it is stock; None for plain settings."""
    if not {"class_name", "module", "registered_name"} & node.keys():
        return None
    module, name, registered = (node.get(key) for key in ("module", "class_name", "registered_name"))
    parts = [str(part)[:80] for part in (module, name) if part is not None]
    told = ".".join(parts) or "an object without class"
    if not isinstance(name, str) or not isinstance(module, str | None):
        return told
    if registered not in (None, name):
        return f"{told} registered as {str(registered)[:80]}"
    if module is None:
        return None if name in _VALUES else told
    is_operation = _OPERATIONS.fullmatch(module) and _CLASS_NAME.fullmatch(name)
    return None if is_operation or name in _STOCK.get(module, ()) else told


def _check_weights(file: Path, content: bytes) -> None:
    """Look at the list of arrays, not at their numbers."""
    try:
        with h5py.File(io.BytesIO(content), "r") as weights:
            num_bytes = _plain_bytes(file, weights)
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise _foreign(file, f"a damaged {WEIGHTS_MEMBER}") from error
    if num_bytes > len(content):
        got = f"a {WEIGHTS_MEMBER} of {len(content):,} bytes that claims {num_bytes:,} of numbers"
        raise _foreign(file, got)


def _plain_bytes(file: Path, weights: Any) -> int:
    """Add up the bytes of all arrays; refuse links, external and virtual arrays, and other types."""
    num_bytes = 0
    num_objects = 0
    waiting = [("", weights)]
    while waiting:
        path, group = waiting.pop()
        for name in group:
            num_objects += 1
            link = group.get(name, getlink=True)
            inner = f"{path}/{name}"
            if not isinstance(link, h5py.HardLink) or num_objects > MAX_WEIGHT_OBJECTS:
                raise _foreign(file, f"a {WEIGHTS_MEMBER} with a link or loop at {inner[:80]!r}")
            item = group[name]
            if isinstance(item, h5py.Group):
                waiting.append((inner, item))
                continue
            is_number = isinstance(item, h5py.Dataset) and item.dtype.kind in "fiub"
            if not is_number or item.is_virtual or item.external is not None or item.chunks is not None:
                raise _foreign(file, f"a {WEIGHTS_MEMBER} with other than plain numbers at {inner[:80]!r}")
            num_bytes += item.nbytes
    return num_bytes


def _foreign(file: Path, got: str) -> ArtifactError:
    rule = f"must be a native Keras file (a zip of {CONFIG_MEMBER}, {ABOUT_MEMBER} and {WEIGHTS_MEMBER})"
    fix = "Load only models that v8 saved as .keras; download or train this one again"
    return ArtifactError(where=str(file), rule=rule, got=got, fix=fix)
