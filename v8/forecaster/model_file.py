"""Checks of a model file before Keras loads it: it must contain nothing but arithmetic.

A `.keras` file is a zip archive with the description of a network, its weights and a date. It may come from
anybody, so it is checked before Keras opens it:

1. It is a zip from its first byte, of exactly three members, each a plain file under its own name,
   stored or deflated, and it unpacks to what it claims: no pickle, no `.h5`, no path that leaves the
   folder, no archive bomb.
2. Every object of `config.json` is on a list of stock Keras layers, operations and initializers. The list
   names what is allowed, because lists of what is forbidden have always been incomplete: Lambda layers,
   functions by name, layers that read files or run saved programs of other frameworks.
3. The weights are plain numbers inside the file: no link, no external file, no compressed data.
4. No size in `config.json` is above `MAX_WHOLE`, no loop is unrolled, and there are at most `MAX_LAYERS`.
5. Before Keras allocates memory, the network is built with shapes only: it must not have more weights than
   the file holds, and its layers must not output more than `MAX_WORKED_NUMBERS` per window.

If the file names the series that it was made for, this must be the series of its metadata.

The file is loaded by Keras in safe mode all the same. Every exception of Keras about layers that do not
match, while loading or at the first window, becomes an `ArtifactError`.
"""

import io
import math
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from v8.base.errors import ArtifactError, ProfileError, V8Error, listed, message_of, shown
from v8.base.records import open_given, parse_json
from v8.base.storage import packaged_yaml
from v8.model.networks.published import (
    ABOUT_MEMBER,
    CONFIG_MEMBER,
    FORECAST_BATCH,
    WEIGHTS_MEMBER,
    without_cudnn,
)

SERIES_KEY: Final = "series"  # key of `ABOUT_MEMBER`: the series that the model was made for
KERAS_MEMBERS: Final = frozenset({CONFIG_MEMBER, ABOUT_MEMBER, WEIGHTS_MEMBER})
"""The members of a native Keras 3 file; other members are refused."""

MAX_UNPACKED_BYTES: Final = 512 << 20  # unpacked size that a file may declare; shipped profiles need 4 MB
MAX_TEXT_BYTES: Final = 16 << 20  # of `config.json`; the shipped profiles need 50 kB
MAX_RATIO: Final = 100
"""Most unpacked bytes per packed byte; a network's description is compressed by 20, weights hardly at all."""
MAX_DEPTH: Final = 100  # levels of nesting in `config.json`; the shipped profiles have 12
MAX_WEIGHT_OBJECTS: Final = 10_000  # groups and arrays of the weights; the shipped profiles have a hundred
MAX_LAYERS: Final = 1_000  # layers and operations; the shipped profiles have 130
MAX_WHOLE: Final = 1 << 17
"""Largest integer in `config.json` except seeds and ids: more than any lookback times its features."""
MAX_WORKED_NUMBERS: Final = 1 << 24
"""Most numbers that all layers together output for one window: a lookback of 10,000 bars has 13 million."""
BYTES_PER_WEIGHT: Final = 4  # models are saved in float32
_UNBOUNDED_KEYS: Final = frozenset({"seed", "shared_object_id"})  # keys of integers that are no sizes
_ZIP_START = b"PK\x03\x04"
_IS_ENCRYPTED = 0x1
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

_STOCK: Final = {
    module: frozenset(names.split()) for module, names in packaged_yaml("v8.forecaster", "stock.yaml").items()
}
"""Stock classes by the module that Keras writes; they only compute, without files, network or programs."""

_OPERATIONS = re.compile(r"keras\.src\.ops\.(numpy|nn|math)")
"""Modules of stock operations on arrays; none of their classes has a function as an argument."""
_CLASS_NAME = re.compile(r"[A-Z][A-Za-z0-9]*")
_VALUES = frozenset({"__keras_tensor__", "__numpy__", "__tensor__", "__slice__", "__ellipsis__"})
"""Class names under which Keras writes plain values."""


def check_keras_file(file: Path) -> None:
    """Check that a file is a native Keras file of stock layers; no code in it is run.

    Raises:
        ArtifactError: If it is missing, of another kind, too large, damaged, or contains anything but stock
            Keras objects and plain numbers.
    """
    try:
        with open_given(file) as stream:
            is_zip = stream.read(len(_ZIP_START)) == _ZIP_START and zipfile.is_zipfile(stream)
        if not is_zip:
            raise _foreign(file, "a file of another kind")
        with zipfile.ZipFile(file) as archive:
            _check_members(file, archive.infolist())
            # Python reads at most the declared size of a member, and compares its checksum.
            members = {name: archive.read(name) for name in sorted(KERAS_MEMBERS)}
            for name, content in members.items():
                declared = archive.getinfo(name).file_size
                if len(content) != declared:
                    got = f"a member {name} of {len(content):,} bytes that claims {declared:,}"
                    raise _foreign(file, got)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise _foreign(file, f"a damaged archive ({error})") from error
    except OSError as error:
        raise _foreign(file, error.strerror or "an input error") from error
    _check_config(file, members[CONFIG_MEMBER])
    _check_weights(file, members[WEIGHTS_MEMBER])


def require_made_for(file: Path, series: str) -> None:
    """Check that a file was made for a series; one that Keras itself saved names none.

    Raises:
        ArtifactError: If it names another series.
    """
    try:
        content = parse_json(read_member(file, ABOUT_MEMBER))
    except ValueError as error:
        raise _foreign(file, f"a {ABOUT_MEMBER} that is no JSON") from error
    made_for = content.get(SERIES_KEY, series) if isinstance(content, dict) else None
    if made_for != series:
        raise ArtifactError(
            where=str(file),
            rule=f"must be the model of {series}, like the metadata in its folder",
            got=f"one that was made for {shown(made_for)}",
            fix="Restore the artefact's folder, download it again, or train the series",
        )


def require_stock_layers(network: Any) -> None:
    """Check before training that the file of a network can be loaded: that of a plug-in may have any layer.

    Raises:
        ProfileError: If no file may contain one of its layers, or Keras cannot write one.
    """
    try:
        _check_config(CONFIG_MEMBER, network.to_json())
    except Exception as error:
        # Layers of plug-ins may raise anything when Keras asks for their settings.
        got = error.got if isinstance(error, V8Error) else f"{type(error).__name__}: {message_of(error)}"
        raise ProfileError(
            where=f"profile {network.name}, key network",
            rule="names a family of stock Keras layers, of which a model file may consist",
            got=shown(got, 200),
            fix="Use other layers in the plug-in; v8/forecaster/stock.yaml lists them",
        ) from error


def load_keras_model(file: Path) -> Any:
    """Load a checked Keras file in safe mode; no code in it can run, and its memory is bounded by its size.

    Raises:
        ArtifactError: If its layers do not match each other or the weights, or would need more memory.
    """
    import keras  # noqa: PLC0415 - importing it takes seconds, and only forecasts need it

    with keras_errors_translated(file, "must hold layers and weights that fit together"):
        _require_bounded(file, parse_json(read_member(file, CONFIG_MEMBER)))
        model = keras.saving.load_model(file, compile=False, safe_mode=True)
    without_cudnn(model)
    return model


def read_member(file: Path, name: str) -> bytes:
    """Read a member of a checked Keras file."""
    with zipfile.ZipFile(file) as archive:
        return archive.read(name)


def require_enough_weights(file: Path, model: Any) -> None:
    """Raise an `ArtifactError` if a network has more weights than its checked file can hold."""
    with zipfile.ZipFile(file) as archive:
        max_weights = archive.getinfo(WEIGHTS_MEMBER).file_size // BYTES_PER_WEIGHT
    num_weights = sum(math.prod(variable.shape) for variable in model.variables)
    if num_weights > max_weights:
        raise _foreign(file, f"a network of {num_weights:,} numbers with a file for {max_weights:,}")


@contextmanager
def keras_errors_translated(file: Path | str, rule: str) -> Iterator[None]:
    """Turn every exception of Keras in the block into an `ArtifactError` about the file."""
    try:
        yield
    except V8Error:
        raise
    except Exception as error:  # invalid networks raise exceptions of any class, deep inside Keras
        message = str(error).strip() or "nothing more"
        raise ArtifactError(
            where=str(file),
            rule=rule,
            got=shown(f"{type(error).__name__}: {message}", 200),
            fix="Download or train this model again; if that does not help, do not use it",
        ) from error


def _require_bounded(file: Path, config: Any) -> None:
    """Raise an `ArtifactError` if a network has more weights than its file holds, or too large outputs.

    The network is built for batches of `FORECAST_BATCH` windows, with shapes only, without memory for values.
    """
    import keras  # noqa: PLC0415 - as above
    from keras.src.backend.common import global_state  # noqa: PLC0415 - as above

    for _, node in _values(file, config):
        if isinstance(node, dict) and isinstance(node.get("batch_shape"), list):
            node["batch_shape"] = [FORECAST_BATCH, *node["batch_shape"][1:]]
    try:
        with keras.StatelessScope(initialize_variables=False):
            model = keras.saving.deserialize_keras_object({**config, "compile_config": None}, safe_mode=True)
    finally:  # otherwise Keras would initialise these variables at the end of the next such scope
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
    """Yield the shapes of all outputs of operations, and of the score matrices of attention layers."""
    for operation in model.operations:
        if hasattr(operation, "operations"):  # a model inside the model
            yield from _worked_shapes(operation)
            continue
        for node in operation._inbound_nodes:
            for output in node.output_tensors:
                yield output.shape
            if hasattr(operation, "num_heads"):
                steps = max(tensor.shape[1] for tensor in node.input_tensors)
                yield FORECAST_BATCH, operation.num_heads, steps, steps


def _check_members(file: Path, members: list[zipfile.ZipInfo]) -> None:
    """Check the list of members of the archive; nothing is unpacked."""
    for member in members:
        fault = _fault_of(member)
        if fault is not None:
            raise _foreign(file, f"the member {member.filename[:80]!r}, {fault}")
    names = sorted(member.filename for member in members)
    if names != sorted(KERAS_MEMBERS):
        raise _foreign(file, f"an archive of {listed(names) if names else 'nothing'}")
    unpacked = sum(member.file_size for member in members)
    if unpacked > MAX_UNPACKED_BYTES:
        raise _foreign(file, f"an archive that unpacks to {unpacked:,} bytes")


def _fault_of(member: zipfile.ZipInfo) -> str | None:
    """Describe what is wrong with a member, as a relative clause; None if nothing is."""
    name = member.filename
    size = member.file_size
    kind = stat.S_IFMT(member.external_attr >> 16)
    is_outside = name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name) or ":" in name
    is_bomb = size > MAX_RATIO * max(member.compress_size, 1)
    is_long_text = name != WEIGHTS_MEMBER and size > MAX_TEXT_BYTES
    if is_outside:
        return "which leaves the folder"
    if kind not in (0, stat.S_IFREG):
        return "which is no plain file"
    if member.flag_bits & _IS_ENCRYPTED:
        return "which is encrypted"
    if member.compress_type not in _PACKINGS:
        return "which is packed as Keras never does"
    if is_bomb or is_long_text:
        return f"which unpacks to {size:,} bytes from {member.compress_size:,}"
    return None


def _check_config(file: Path | str, content: bytes | str) -> None:
    try:
        config = parse_json(content)
    except ValueError as error:
        raise _foreign(file, f"a {CONFIG_MEMBER} that is no JSON") from error
    if not isinstance(config, dict) or "class_name" not in config:
        raise _foreign(file, f"a {CONFIG_MEMBER} that describes no model")
    num_layers = 0
    foreign_classes = set[str]()
    for key, node in _values(file, config):
        if isinstance(node, int) and abs(node) > MAX_WHOLE and key not in _UNBOUNDED_KEYS:
            raise _foreign(file, f"a {CONFIG_MEMBER} with the size {shown(node, 40)}")
        if not isinstance(node, dict):
            continue
        if node.get("unroll"):
            raise _foreign(file, f"a {CONFIG_MEMBER} with a loop to be written out (unroll)")
        num_layers += _num_layers(node)
        name = _foreign_class(node)
        if name is not None:
            foreign_classes.add(name)
    if num_layers > MAX_LAYERS:
        raise _foreign(file, f"a {CONFIG_MEMBER} with {num_layers:,} layers")
    if foreign_classes:
        raise ArtifactError(
            where=str(file),
            rule="may hold stock Keras layers, operations and initializers only",
            got=listed(sorted(foreign_classes)),
            fix="Do not load this file with anything; train the model again or ask whoever published it",
        )


def _num_layers(node: dict[str, Any]) -> int:
    """Return the number of layers that an object of a description lists."""
    layers = node.get("layers")
    return len(layers) if isinstance(layers, list) else 0


def _values(file: Path | str, config: Any) -> Iterator[tuple[str, Any]]:
    """Yield every value of a description and its key; elements of a list have the key of the list.

    It does not use recursion, so that deep nesting cannot overflow the stack.
    """
    pending = [("", config, 0)]
    while pending:
        key, value, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise _foreign(file, f"a {CONFIG_MEMBER} with more than {MAX_DEPTH} objects inside each other")
        yield key, value
        if isinstance(value, dict):
            pending += [(name, inner, depth + 1) for name, inner in value.items()]
        elif isinstance(value, list):
            pending += [(key, inner, depth + 1) for inner in value]


def _foreign_class(node: dict[str, Any]) -> str | None:
    """Return the name of an object's class if it is no stock class; None for stock classes and settings."""
    if not {"class_name", "module", "registered_name"} & node.keys():
        return None
    module, name, registered = (node.get(key) for key in ("module", "class_name", "registered_name"))
    parts = [str(part)[:80] for part in (module, name) if part is not None]
    full_name = ".".join(parts) or "an object without class"
    if not isinstance(name, str) or not isinstance(module, str | None):
        return full_name
    if registered not in (None, name):
        return f"{full_name} registered as {str(registered)[:80]}"
    if module is None:
        return None if name in _VALUES else full_name
    is_operation = _OPERATIONS.fullmatch(module) and _CLASS_NAME.fullmatch(name)
    return None if is_operation or name in _STOCK.get(module, ()) else full_name


def _check_weights(file: Path, content: bytes) -> None:
    """Check the list of arrays, without reading their numbers."""
    import h5py  # noqa: PLC0415 - forecasts with ONNX do not need it

    try:
        with h5py.File(io.BytesIO(content), "r") as weights:
            num_bytes = _plain_bytes(file, weights)
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise _foreign(file, f"a damaged {WEIGHTS_MEMBER}") from error
    if num_bytes > len(content):
        got = f"a {WEIGHTS_MEMBER} of {len(content):,} bytes that claims {num_bytes:,} of numbers"
        raise _foreign(file, got)


def _plain_bytes(file: Path, weights: Any) -> int:
    """Return the bytes of all arrays; links, external and virtual arrays, and other types are refused."""
    import h5py  # noqa: PLC0415 - forecasts with ONNX do not need it

    num_bytes = 0
    num_objects = 0
    pending = [("", weights)]
    while pending:
        path, group = pending.pop()
        for name in group:
            num_objects += 1
            link = group.get(name, getlink=True)
            inner = f"{path}/{name}"
            if not isinstance(link, h5py.HardLink) or num_objects > MAX_WEIGHT_OBJECTS:
                raise _foreign(file, f"a {WEIGHTS_MEMBER} with a link or loop at {inner[:80]!r}")
            item = group[name]
            if isinstance(item, h5py.Group):
                pending.append((inner, item))
                continue
            is_number = isinstance(item, h5py.Dataset) and item.dtype.kind in "fiub"
            if not is_number or item.is_virtual or item.external is not None or item.chunks is not None:
                raise _foreign(file, f"a {WEIGHTS_MEMBER} with other than plain numbers at {inner[:80]!r}")
            num_bytes += item.nbytes
    return num_bytes


def _foreign(file: Path | str, got: str) -> ArtifactError:
    """Return the error for a file that is not a native Keras file as v8 saves it."""
    return ArtifactError(
        where=str(file),
        rule=f"must be a native Keras file (a zip of {CONFIG_MEMBER}, {ABOUT_MEMBER} and {WEIGHTS_MEMBER})",
        got=got,
        fix="Load only models that v8 saved as .keras; download or train this one again",
    )
