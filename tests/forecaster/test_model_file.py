"""Model files from strangers: refused before Keras looks into them. Every bad file here is a real one."""

from __future__ import annotations

import io
import json
import pickle
import resource
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from keras.src.backend.common import global_state
from tiny_profiles import demo_data, tiny_profile

from v8.base.errors import ArtifactError
from v8.forecaster.model_file import KERAS_MEMBERS, check_keras_file, load_keras_model, require_made_for
from v8.model.networks.networks import build_network
from v8.model.networks.serving import build_serving

MEMBERS = sorted(KERAS_MEMBERS)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small stock model as Keras saves it."""
    inputs = keras.Input((4, 2))
    outputs = keras.layers.Dense(1)(keras.layers.LSTM(3)(inputs))
    file = tmp_path_factory.mktemp("plain") / "model.keras"
    keras.Model(inputs, keras.ops.exp(outputs)).save(file)
    return file


def rebuilt(plain: Path, file: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """Write the archive again with other members."""
    with zipfile.ZipFile(plain) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file


@pytest.mark.tf
def test_a_stock_model_passes(plain: Path) -> None:
    check_keras_file(plain)


@pytest.mark.tf
def test_what_v8_saves_passes(tmp_path: Path) -> None:
    data = demo_data(tiny_profile("bilstm_seq2seq", scaling="standard", dropout=0.2))
    model, _ = build_serving(data.profile, data.scaling, build_network(data.profile, seed=1))
    model.save(tmp_path / "m.keras")
    check_keras_file(tmp_path / "m.keras")


def refused(file: Path, match: str) -> None:
    with pytest.raises(ArtifactError, match=match) as caught:
        check_keras_file(file)
    assert "\n" not in str(caught.value)


@pytest.mark.tf
def test_a_lambda_layer_saved_by_keras_is_refused(tmp_path: Path) -> None:
    inputs = keras.Input((2,))
    text = str(tmp_path / "told")
    outputs = keras.layers.Lambda(lambda x: x + 0.0 * Path(text).write_text("hello"))(inputs)
    assert Path(text).exists()  # building it already ran the function
    Path(text).unlink()
    keras.Model(inputs, outputs).save(tmp_path / "model.keras")
    refused(
        tmp_path / "model.keras", r"may hold stock Keras layers.*; got __lambda__, keras\.layers\.Lambda\."
    )
    assert not Path(text).exists()


@keras.saving.register_keras_serializable(package="Strangers")
class TheirLayer(keras.layers.Layer):
    """A layer that only strangers have."""

    def call(self, x: Any) -> Any:
        return x


@pytest.mark.tf
@pytest.mark.parametrize(
    ("make", "match"),
    [
        (TheirLayer, r"got .*TheirLayer registered as Strangers>TheirLayer"),
        (lambda: keras.layers.Activation(keras.activations.silu), None),
        (lambda: keras.layers.StringLookup(vocabulary=["a"]), r"got keras\.layers\.StringLookup"),
        (lambda: keras.layers.Dense(2, kernel_regularizer=keras.regularizers.L2(0.1)), None),
    ],
)
def test_stock_settings_pass_and_others_are_named(make: Any, match: str | None, tmp_path: Path) -> None:
    layer = make()
    inputs = keras.Input((2,), dtype="string" if isinstance(layer, keras.layers.StringLookup) else None)
    keras.Model(inputs, layer(inputs)).save(tmp_path / "model.keras")
    if match is None:
        check_keras_file(tmp_path / "model.keras")
    else:
        refused(tmp_path / "model.keras", match)


STRANGE_OBJECTS = [
    # CVE-2025-1550: any function by module and name, run while loading.
    ({"module": "builtins", "class_name": "function", "config": "eval"}, r"got builtins\.function"),
    ({"module": "os", "class_name": "system", "config": {}}, r"got os\.system"),
    # CVE-2025-8747, CVE-2025-9906: functions of Keras itself that download or unlock.
    ({"module": "keras.utils", "class_name": "get_file", "config": {}}, r"got keras\.utils\.get_file"),
    (
        {"module": "keras.config", "class_name": "enable_unsafe_deserialization", "config": {}},
        r"got keras\.config\.enable_unsafe_deserialization",
    ),
    ({"module": "keras.layers", "class_name": "TFSMLayer", "config": {}}, r"got keras\.layers\.TFSMLayer"),
    ({"module": "keras.layers", "class_name": "TorchModuleWrapper", "config": {}}, "TorchModuleWrapper"),
    ({"module": "keras.src.layers.core.lambda_layer", "class_name": "Lambda"}, r"lambda_layer\.Lambda"),
    ({"module": "keras.src.ops.core", "class_name": "Map", "config": {}}, r"ops\.core\.Map"),
    (
        {"module": "keras.layers", "class_name": "Dense", "registered_name": "A>Dense"},
        "registered as A>Dense",
    ),
    ({"module": None, "class_name": "__lambda__", "config": {}}, "got __lambda__"),
    ({"class_name": "__typespec__", "config": {}}, "got __typespec__"),
    ({"class_name": "Lambda", "config": {}}, r"got Lambda\."),
    ({"module": "os"}, r"got os\."),
    ({"class_name": ["Lambda"], "module": {}}, "got "),
]


@pytest.mark.tf
@pytest.mark.parametrize(("strange", "match"), STRANGE_OBJECTS)
@pytest.mark.parametrize("place", ["build_config", "deep"])
def test_a_strange_object_anywhere_in_the_description_is_refused(
    strange: dict[str, Any], match: str, place: str, plain: Path, tmp_path: Path
) -> None:
    def change(members: dict[str, bytes]) -> None:
        config = json.loads(members["config.json"])
        if place == "build_config":
            config["build_config"] = strange
        else:
            config["config"]["layers"][-1]["config"]["anything"] = [{"inner": [[strange]]}]
        members["config.json"] = json.dumps(config).encode()

    refused(rebuilt(plain, tmp_path / "model.keras", change), rf"may hold stock Keras layers.*{match}")


class Malice:
    """Unpickles into a file that tells on it."""

    def __init__(self, told: Path) -> None:
        self.told = told

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.told,)


@pytest.mark.tf
@pytest.mark.parametrize("kind", ["pickle", "pickle before a zip", "h5", "text", "empty", "saved h5"])
def test_g15_other_files_under_the_name_keras_are_refused_unread(
    kind: str, plain: Path, tmp_path: Path
) -> None:
    file = tmp_path / "model.keras"
    if kind == "pickle":
        file.write_bytes(pickle.dumps(Malice(tmp_path / "told")))
    if kind == "pickle before a zip":
        file.write_bytes(pickle.dumps(Malice(tmp_path / "told")) + plain.read_bytes())
    if kind == "h5":
        file.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    if kind == "text":
        file.write_text("import os")
    if kind == "empty":
        file.touch()
    if kind == "saved h5":
        with h5py.File(file, "w") as weights:
            weights["w"] = np.ones(3)
    refused(file, r"must be a native Keras file .*; got a file of another kind")
    assert not (tmp_path / "told").exists()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "model.keras", "got No such file or directory")


@pytest.mark.tf
@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("../model.py", r"got the member '\.\./model\.py', which leaves the folder"),
        ("/etc/cron.d/x", "which leaves the folder"),
        ("..\\x", "which leaves the folder"),
        ("C:x", "which leaves the folder"),
        ("x.py", r"got an archive of config\.json, metadata\.json, model\.weights\.h5, x\.py"),
        ("assets/vocabulary.txt", "got .* of assets"),
    ],
)
def test_another_member_is_refused(name: str, match: str, plain: Path, tmp_path: Path) -> None:
    file = rebuilt(plain, tmp_path / "model.keras", lambda members: members.update({name: b"x"}))
    refused(file, match)


@pytest.mark.tf
def test_a_missing_or_repeated_member_is_refused(plain: Path, tmp_path: Path) -> None:
    file = rebuilt(plain, tmp_path / "a.keras", lambda members: members.pop("metadata.json") and None)
    refused(file, r"got an archive of config\.json, model\.weights\.h5\.")
    shutil.copy(plain, tmp_path / "b.keras")
    with zipfile.ZipFile(tmp_path / "b.keras", "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("config.json", "{}")
    refused(tmp_path / "b.keras", r"got an archive of config\.json, config\.json, ")


def archive_of(file: Path, *infos: tuple[zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for info, content in infos:
            archive.writestr(info, content)
    return file


def member(name: str, *, kind: int = 0, packing: int = zipfile.ZIP_STORED) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = kind << 16
    info.compress_type = packing
    return info


def test_a_symbolic_link_and_a_foreign_packing_are_refused(tmp_path: Path) -> None:
    link = archive_of(tmp_path / "a.keras", (member("config.json", kind=0o120777), b"/etc/passwd"))
    refused(link, r"got the member 'config\.json', which is no plain file")
    packed = archive_of(tmp_path / "b.keras", (member("config.json", packing=zipfile.ZIP_LZMA), b"{}"))
    refused(packed, "which is packed as Keras never does")


@pytest.mark.tf
@pytest.mark.parametrize("about", [b"{", b"[]", b'{"series": ["BTCUSDT-15m"]}', b'{"series": "\\u001b[31m"}'])
def test_a_file_that_names_its_series_in_no_way_of_ours_is_refused(
    plain: Path, tmp_path: Path, about: bytes
) -> None:
    with zipfile.ZipFile(plain) as archive, zipfile.ZipFile(tmp_path / "m.keras", "w") as changed:
        for name in archive.namelist():
            changed.writestr(name, about if name == "metadata.json" else archive.read(name))
    require_made_for(plain, "BTCUSDT-15m")
    with pytest.raises(ArtifactError, match=r"m\.keras: must be") as caught:
        require_made_for(tmp_path / "m.keras", "BTCUSDT-15m")
    assert str(caught.value).isprintable()


def test_archive_bombs_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    # 30 MB of zeros deflate to 30 kB, a thousandth.
    zeros = (member("model.weights.h5", packing=zipfile.ZIP_DEFLATED), bytes(30_000_000))
    refused(
        archive_of(tmp_path / "a.keras", zeros), r"'model\.weights\.h5', which unpacks to 30,000,000 bytes"
    )
    long = (member("config.json"), b" " * (17 << 20))
    refused(archive_of(tmp_path / "b.keras", long), r"'config\.json', which unpacks to 17,825,792 bytes")


def claiming(file: Path, name: str, size: int) -> Path:
    """Change the size that a member claims, in both places where a zip writes it."""
    content = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        info = archive.getinfo(name)
    central = content.rindex(b"PK\x01\x02", 0, content.rindex(name.encode()))
    for place in (info.header_offset + 22, central + 24):
        content[place : place + 4] = size.to_bytes(4, "little")
    file.write_bytes(content)
    return file


@pytest.mark.tf
@pytest.mark.parametrize("size", [10, 3_000])
def test_a_member_that_is_not_as_long_as_it_claims_is_refused(size: int, plain: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(plain) as archive:
        config = archive.read("config.json")
    members = [(member(name), b"{}") for name in MEMBERS[1:]]
    packed = (member("config.json", packing=zipfile.ZIP_DEFLATED), config[:2_000])
    file = claiming(archive_of(tmp_path / "model.keras", *members, packed), "config.json", size)
    refused(file, r"got (a damaged archive|a member config\.json of 2,000 bytes that claims 3,000)")


@pytest.mark.tf
def test_an_archive_that_claims_too_much_in_all_is_refused(plain: Path, tmp_path: Path) -> None:
    file = rebuilt(plain, tmp_path / "model.keras", lambda members: None)
    content = bytearray(file.read_bytes())
    # A lying list alone: packed and unpacked size of the weights, a gigabyte each.
    central = content.rindex(b"PK\x01\x02", 0, content.rindex(b"model.weights.h5"))
    for place in (central + 20, central + 24):
        content[place : place + 4] = (1 << 30).to_bytes(4, "little")
    file.write_bytes(content)
    refused(file, r"got an archive that unpacks to 1,07\d,\d{3},\d{3} bytes")


@pytest.mark.tf
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_a_damaged_archive_is_refused(damage: str, plain: Path, tmp_path: Path) -> None:
    content = bytearray(plain.read_bytes())
    with zipfile.ZipFile(plain) as archive:
        place = archive.getinfo("model.weights.h5").header_offset + 500
    content[place] ^= 1
    file = tmp_path / "model.keras"
    file.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    refused(file, "got (a damaged archive|a file of another kind)")


@pytest.mark.tf
@pytest.mark.parametrize(
    ("config", "match"),
    [
        (b"{", r"a config\.json that is no JSON"),
        (b"\xff\xfe", r"a config\.json that is no JSON"),
        (b"[" * 200_000, r"a config\.json that is no JSON"),
        (b"[1]", r"a config\.json that describes no model"),
        (b'{"class_name":"__tensor__","a":' + b"[" * 150 + b"]" * 150 + b"}", "more than 100 objects"),
    ],
)
def test_a_damaged_description_is_refused(config: bytes, match: str, plain: Path, tmp_path: Path) -> None:
    file = rebuilt(plain, tmp_path / "m.keras", lambda members: members.update({"config.json": config}))
    refused(file, match)


def with_weights(plain: Path, file: Path, fill: Callable[[h5py.File], None]) -> Path:
    stream = io.BytesIO()
    with h5py.File(stream, "w") as weights:
        fill(weights)
    return rebuilt(plain, file, lambda members: members.update({"model.weights.h5": stream.getvalue()}))


def fill_external_link(weights: h5py.File) -> None:
    weights["vars"] = h5py.ExternalLink("/etc/secret.h5", "/")


def fill_soft_link(weights: h5py.File) -> None:
    weights["vars"] = h5py.SoftLink("/vars")


def fill_loop(weights: h5py.File) -> None:
    weights.create_group("a")["b"] = weights["/"]


def fill_external_array(weights: h5py.File) -> None:
    weights.create_dataset("w", (4,), "f4", external=[("/etc/passwd", 0, 16)])


def fill_virtual_array(weights: h5py.File) -> None:
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource("/etc/secret.h5", "w", (4,))
    weights.create_virtual_dataset("w", layout)


def fill_bomb(weights: h5py.File) -> None:
    weights.create_dataset("w", (1 << 20,), "f4", compression="gzip")[:] = 0


def fill_empty_space(weights: h5py.File) -> None:
    weights.create_dataset("w", (1 << 40,), "f4")  # never written, so it takes no room in the file


def fill_objects(weights: h5py.File) -> None:
    weights["w"] = np.array(["code"], dtype=h5py.string_dtype())


@pytest.mark.tf
@pytest.mark.parametrize(
    ("fill", "match"),
    [
        (fill_external_link, "link or loop at '/vars'"),
        (fill_soft_link, "link or loop at '/vars'"),
        (fill_loop, "link or loop at "),
        (fill_external_array, "plain numbers at '/w'"),
        (fill_virtual_array, "plain numbers at '/w'"),
        (fill_bomb, "plain numbers at '/w'"),
        (fill_objects, "plain numbers at '/w'"),
        (fill_empty_space, r"that claims 4,398,046,511,104 of numbers"),
    ],
)
def test_weights_that_are_not_plain_numbers_are_refused(
    fill: Callable[[h5py.File], None], match: str, plain: Path, tmp_path: Path
) -> None:
    refused(with_weights(plain, tmp_path / "model.keras", fill), match)


@pytest.mark.tf
def test_weights_that_are_no_h5_file_are_refused(plain: Path, tmp_path: Path) -> None:
    pickled = zlib.compress(pickle.dumps([1]))
    file = rebuilt(plain, tmp_path / "m.keras", lambda members: members.update({"model.weights.h5": pickled}))
    refused(file, r"got a damaged model\.weights\.h5")


def hostile(file: Path, make: Callable[[Any], Any]) -> Path:
    """Save a stock network whose description claims more than its file holds, without ever building it."""
    inputs = keras.Input((4, 2))
    with keras.StatelessScope(initialize_variables=False):
        model = keras.Model(inputs, make(inputs))
    global_state.set_global_attribute("uninitialized_variables", [])
    config = keras.saving.serialize_keras_object(model)
    weights = io.BytesIO()
    with h5py.File(weights, "w") as stored:
        stored["vars"] = np.zeros(1_000, np.float32)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("config.json", json.dumps(config))
        archive.writestr("metadata.json", "{}")
        archive.writestr("model.weights.h5", weights.getvalue())
    return file


LARGE = [
    (keras.layers.Dense(10**9), r"a config\.json with the size 1000000000"),
    (keras.layers.LSTM(10**6), r"with the size 1000000"),
    (lambda x: keras.layers.RepeatVector(10**9)(keras.layers.Flatten()(x)), r"with the size 1000000000"),
    (keras.layers.SimpleRNN(3, unroll=True), r"a loop to be written out"),
]


@pytest.mark.tf
@pytest.mark.parametrize(("make", "match"), LARGE)
def test_a_size_that_no_network_of_ours_has_is_refused_unread(make: Any, match: str, tmp_path: Path) -> None:
    refused(hostile(tmp_path / "model.keras", make), match)


def chain(x: Any, layer: Callable[[], Any], num: int) -> Any:
    for _ in range(num):
        x = layer()(x)
    return x


TOO_MUCH = [
    # 2^17 x 2^17 numbers of float32 are 64 GiB.
    (
        lambda x: chain(x, lambda: keras.layers.Dense(1 << 17), 2),
        r"a network of 17,\d{3},\d{3},\d{3} numbers",
    ),
    (keras.layers.LSTM(50_000), r"a network of 10,000,\d{3},\d{3} numbers with a file for"),
    (keras.layers.Embedding(1 << 17, 1 << 10), r"a network of 134,217,728 numbers"),
    # No weights at all, but values: 8 * 100,000 of them, handed on 30 times, for each window.
    (
        lambda x: chain(keras.layers.RepeatVector(100_000)(keras.layers.Flatten()(x)), keras.layers.ReLU, 30),
        r"a network that works on 396,\d{3},\d{3} numbers",
    ),
    (
        lambda x: keras.ops.repeat(keras.ops.repeat(x, 100_000, axis=0), 10_000, axis=0),
        r"a network that works on 128,0\d\d,\d{3},\d{3} numbers",
    ),
    (
        lambda x: keras.layers.MultiHeadAttention(1, 1)(*[keras.layers.UpSampling1D(20_000)(x)] * 2),
        r"a network that works on \d+,\d{3}",
    ),
    (lambda x: keras.ops.nonzero(x)[0], r"a number of values that depends on them"),
]


@pytest.mark.tf
@pytest.mark.parametrize(("make", "match"), TOO_MUCH)
def test_a_network_larger_than_its_file_is_refused_before_it_takes_memory(
    make: Any, match: str, tmp_path: Path
) -> None:
    file = hostile(tmp_path / "model.keras", make)
    check_keras_file(file)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArtifactError, match=match):
        load_keras_model(file)
    # Nothing waits to be filled either when the next network is made.
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@pytest.mark.tf
def test_layers_without_end_are_refused(plain: Path, tmp_path: Path) -> None:
    def change(members: dict[str, bytes]) -> None:
        config = json.loads(members["config.json"])
        config["config"]["layers"] *= 1_000
        members["config.json"] = json.dumps(config).encode()

    refused(rebuilt(plain, tmp_path / "model.keras", change), r"a config\.json with \d,\d{3} layers")


def misfit(name: str) -> Callable[[dict[str, bytes]], None]:
    """Return a change that leaves stock parts which do not fit together."""

    def change(members: dict[str, bytes]) -> None:
        config = json.loads(members["config.json"])
        layers = config["config"]["layers"]
        if name == "no layers":
            layers.clear()
        if name == "a layer twice":
            layers.append(layers[-1])
        if name == "another number of units":
            layers[2]["config"]["units"] = 2
        if name == "units that are text":
            layers[2]["config"]["units"] = "many\n\x1b[31m"
        if name == "an input that is not there":
            layers[1]["inbound_nodes"] = []
        if name == "a shape of nothing":
            layers[0]["config"]["batch_shape"] = [None, -4, None]
        if name == "a layer instead of a model":
            config |= layers[1]
        if name == "a config that is a list":
            config["config"] = [1, 2]
        members["config.json"] = json.dumps(config).encode()
        if name == "no weights":
            empty = io.BytesIO()
            h5py.File(empty, "w").close()
            members["model.weights.h5"] = empty.getvalue()

    return change


MISFITS = ["no layers", "a layer twice", "another number of units", "units that are text"]
MISFITS += ["an input that is not there", "a shape of nothing", "a layer instead of a model"]
MISFITS += ["a config that is a list", "no weights"]


@pytest.mark.tf
@pytest.mark.parametrize("name", MISFITS)
def test_parts_that_do_not_fit_together_are_one_sentence(name: str, plain: Path, tmp_path: Path) -> None:
    file = rebuilt(plain, tmp_path / "model.keras", misfit(name))
    with pytest.raises(ArtifactError, match=r"^.*model\.keras: must ") as caught:
        check_keras_file(file)
        load_keras_model(file)
    assert len(str(caught.value)) <= 600
    assert str(caught.value).isprintable()


@pytest.mark.tf
def test_what_passes_is_what_plain_keras_loads(plain: Path) -> None:
    window = np.ones((3, 4, 2), np.float32)
    loaded = load_keras_model(plain).predict_on_batch(window)
    np.testing.assert_array_equal(loaded, keras.saving.load_model(plain).predict_on_batch(window))
