"""`model.onnx`: the forecasts of the Keras file without TensorFlow, and nothing but arithmetic."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pandas as pd
import pytest
from float32_steps import assert_same_forecasts, assert_same_frames, assert_within_steps
from onnx import TensorProto, helper, numpy_helper
from onnx_models import TINY_SHAPES, tiny_model
from tiny_profiles import demo_data, tiny_profile
from typer.testing import CliRunner, Result

from v8.base.arrays import MAX_STEPS
from v8.base.errors import ArtifactError, ProfileError
from v8.base.storage import digest_file
from v8.cli.app import app
from v8.data.windows import SeriesData
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import ModelShapes, read_metadata
from v8.forecaster.onnx_file import check_onnx_file, converted_onnx, load_onnx_model
from v8.forecaster.shared_models import SharedModels, steps_apart_on_trials
from v8.model.baselines.ranges import PATH_LAYERS
from v8.model.networks.networks import build_network
from v8.model.networks.published import forecast_windows, save_portable
from v8.model.networks.serving import ServingGraph, ServingModel
from v8.model.training.formula import FormulaTrainer
from v8.model.training.trainer import FleetMember
from v8.profile.profile import load_profile, profile_names
from v8.runs.stages import calibrate

SERIES = "BTCUSDT-15m"


def export(*words: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, words)])


@pytest.fixture(scope="module")
def run(trained_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose model has an ONNX file, too, and a line of its export."""
    copy = tmp_path_factory.mktemp("onnx") / "run"
    shutil.copytree(trained_run.path, copy)
    written = export(copy, "--models", "onnx", "--data-dir", trained_run.candles_dir)
    assert written.exit_code == 0, written.output
    assert f"Written: 1 ONNX file in {copy}; largest difference" in written.stdout
    return copy


@pytest.fixture(scope="module")
def by_runtime(run: Path) -> dict[str, Forecaster]:
    return {
        runtime: Forecaster.load(run / SERIES, models=SharedModels(runtime)) for runtime in ("onnx", "keras")
    }


@pytest.mark.tf
def test_an_export_adds_a_file_and_its_digest_and_changes_nothing_else(run: Path, trained_run: Any) -> None:
    before = read_metadata(trained_run.folder).content
    after = read_metadata(run / SERIES).content
    assert after == {**before, "onnx_sha256": digest_file(run / SERIES / "model.onnx")}
    for name in ("model.keras", "README.md", "history.csv", "forecasts.json"):
        assert (run / SERIES / name).read_bytes() == (trained_run.folder / name).read_bytes()


@pytest.mark.tf
def test_forecasts_are_those_of_keras_alone_and_in_a_history(
    by_runtime: dict[str, Forecaster], trained_run: Any
) -> None:
    candles = trained_run.candles
    forecasts = {runtime: model.predict(candles) for runtime, model in by_runtime.items()}
    assert_same_frames(forecasts["onnx"], forecasts["keras"])
    assert [model.runtime for model in by_runtime.values()] == ["onnx", "keras"]
    with pytest.warns(UserWarning, match="candles of the training"):
        history = by_runtime["onnx"].forecast_history(candles, stride=7)
    newest = history.index.get_level_values("issued_at").max()
    earlier = candles.select_rows(np.flatnonzero(candles.open_time_s + 900 <= newest.timestamp()))
    alone = by_runtime["onnx"].predict(earlier)
    pd.testing.assert_frame_equal(history.loc[newest].droplevel("step"), alone, check_freq=False)


@pytest.mark.process
@pytest.mark.tf
def test_a_forecast_imports_neither_keras_nor_what_reads_its_files_and_no_client_of_the_hub(
    run: Path, by_runtime: dict[str, Forecaster], trained_run: Any
) -> None:
    program = (
        "import sys, v8, v8.annexes.live.app.server, v8.annexes.live.watching\n"
        "from v8.cli.app import app\n"
        "words = ['predict', *sys.argv[1:]]\n"
        "code = app(words, standalone_mode=False)\n"
        "heavy = {'jax', 'keras', 'tensorflow', 'torch', 'h5py', 'huggingface_hub'}\n"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)\n"
        "model = v8.load(sys.argv[1], 'BTCUSDT-15m')\n"
        "print(model.runtime, sorted(heavy & sys.modules.keys()), file=sys.stderr)\n"
    )
    words = (run, "--source", "files", "--data-dir", trained_run.candles_dir, "--bars", 700)
    command = [sys.executable, "-c", program, *map(str, words), "--allow-old", "--format", "json"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stderr.splitlines()[-2:] == ["[]", "onnx []"]
    assert f"Opening {run}.\n" in process.stderr
    answer = json.loads(process.stdout)
    assert answer["model"]["runtime"] == "onnx"
    expected = by_runtime["keras"].predict(trained_run.candles)
    rows = pd.DataFrame(answer["forecast"], index=expected.index)[[*expected.columns]]
    assert_same_frames(rows, expected)


@pytest.mark.tf
def test_a_runtime_is_what_was_asked_for_and_a_changed_file_is_refused(
    run: Path, trained_run: Any, tmp_path: Path
) -> None:
    assert Forecaster.load(run / SERIES).runtime == "keras"
    assert Forecaster.load(run / SERIES, models=SharedModels("auto")).runtime == "onnx"
    assert Forecaster.load(trained_run.folder, models=SharedModels("auto")).runtime == "keras"
    with pytest.raises(ArtifactError, match=r"model.onnx .*runtime onnx; got no such file"):
        Forecaster.load(trained_run.folder, models=SharedModels("onnx"))
    with pytest.raises(ProfileError, match="auto, onnx, keras; got 'tflite'"):
        SharedModels("tflite")
    shutil.copytree(run / SERIES, tmp_path / SERIES)
    with (tmp_path / SERIES / "model.onnx").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ArtifactError, match=r"model\.onnx: .* sha256"):
        Forecaster.load(tmp_path / SERIES, models=SharedModels("auto"))


@pytest.mark.tf
def test_models_are_copied_where_the_place_must_stay_as_it_is(
    run: Path, trained_run: Any, tmp_path: Path
) -> None:
    pulled = tmp_path / "pulled"
    shutil.copytree(trained_run.folder, pulled / "models" / SERIES)
    (pulled / "manifest.json").write_text("{}")
    words = ("--models", "onnx", "--source", "files", "--data-dir", trained_run.candles_dir)
    refused = export(pulled, *words)
    assert refused.exit_code == 2
    assert "; got no --out" in refused.stderr
    assert export(pulled, *words, "--out", tmp_path / "copy").exit_code == 0
    assert not (pulled / "models" / SERIES / "model.onnx").exists()
    copied = tmp_path / "copy" / SERIES
    assert (copied / "model.onnx").read_bytes() == (run / SERIES / "model.onnx").read_bytes()
    assert Forecaster.load(copied, models=SharedModels("onnx")).runtime == "onnx"


@pytest.mark.tf
def test_copies_go_into_new_folders_or_over_copies_of_the_same_models(
    run: Path, trained_run: Any, tmp_path: Path
) -> None:
    words = (run, "--models", "onnx", "--data-dir", trained_run.candles_dir, "--out")
    assert export(*words, tmp_path / "copy").exit_code == 0
    assert export(*words, tmp_path / "copy").exit_code == 0  # over its own copy
    outside = tmp_path / "mine.md"
    outside.write_text("mine")
    for number, spoil in enumerate(SPOILT):
        out = tmp_path / f"spoilt{number}"
        shutil.copytree(tmp_path / "copy", out)
        spoil(out / SERIES, outside)
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        refused = export(*words, out)
        assert (refused.exit_code, "--out" in refused.stderr) == (2, True), refused.output
        assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert outside.read_text() == "mine"


def write_readme(folder: Path, outside: Path) -> None:
    (folder / "README.md").write_text("mine")


def put_another_model(folder: Path, outside: Path) -> None:
    (folder / "model.keras").write_bytes(b"another model")


def put_other_metadata(folder: Path, outside: Path) -> None:
    file = folder / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"seed": 99}))


def add_file(folder: Path, outside: Path) -> None:
    (folder / "notes.txt").write_text("mine")


def link_readme(folder: Path, outside: Path) -> None:
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(outside)


def link_folder(folder: Path, outside: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


SPOILT = (write_readme, put_another_model, put_other_metadata, add_file, link_readme, link_folder)


@pytest.mark.tf
def test_nothing_is_copied_of_a_model_that_is_not_converted(
    trained_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("v8.forecaster.shared_models.MAX_STEPS", -1)
    out = tmp_path / "copy"
    words = ("--models", "onnx", "--data-dir", trained_run.candles_dir, "--out", out)
    assert export(trained_run.path, *words).exit_code == 3
    assert not out.exists()


def published(name: str) -> tuple[Any, SeriesData]:
    """Return a published Keras model of a profile with random weights, and its data."""
    profile = load_profile(name)
    data = demo_data(profile, num_bars=2_200)
    if profile.family.is_formula:
        trainer = FormulaTrainer(profile)
        member = FleetMember(data=data, seed=1, checkpoint=Path("unused"), on_epoch=lambda record: None)
        ((_, result),) = trainer.fit_fleet([member])
        return trainer.serving_model(data, result.weights).keras_model, data
    network = build_network(profile, seed=1)
    random = np.random.default_rng(1)
    weights = [
        weight.numpy() + random.normal(0, 0.05, weight.shape).astype(np.float32)
        for weight in network.trainable_variables
    ]
    model = ServingModel(ServingGraph(profile, data.scaling, network), data.scaling, weights)
    calibrate(model, data)
    return model.keras_model, data


def require_parity(name: str, tmp_path: Path) -> None:
    model, data = published(name)
    span = data.spans["test"]
    windows = span.raw_windows()[:100]
    file = tmp_path / "model.onnx"
    content, steps = converted_onnx(model, file, SERIES, span)
    assert steps <= MAX_STEPS
    file.write_bytes(content)
    outputs = {name: tuple(output.shape[1:]) for name, output in model.output.items()}
    loaded = load_onnx_model(file, SERIES, ModelShapes(windows.shape[1:], outputs))
    assert [model_input.shape for model_input in loaded.inputs] == [(None, *windows.shape[1:])]
    expected = forecast_windows(model, windows)
    assert {output: spec.shape[1:] for output, spec in loaded.output.items()} == {
        output: values.shape[1:] for output, values in expected.items()
    }
    assert_same_forecasts(forecast_windows(loaded, windows), expected, span.last_close[:100])
    paths = loaded.up_to(PATH_LAYERS)
    layer = next(layer.name for layer in model.layers if layer.name in PATH_LAYERS)
    kept = keras.Model(model.inputs, {layer: model.get_layer(layer).output})
    assert paths is not None
    save_portable(model, tmp_path / "model.keras")
    shared = SharedModels().load(tmp_path / "model.keras")
    on_trials = steps_apart_on_trials(loaded, shared, data.scaling, data.profile.lookback_bars)
    assert on_trials.keys() == {*expected, *paths.output}
    assert max(on_trials.values()) <= MAX_STEPS
    for layer_name, values in forecast_windows(kept, windows[:3]).items():
        paths_of_onnx = paths.forecast_windows(windows[:3])[layer_name]
        assert_within_steps(paths_of_onnx, values, magnitude=1.0, steps=1)  # log ratios of closes near 1


@pytest.mark.tf
def test_quantiles_and_paths_of_frontier_are_those_of_keras(tmp_path: Path) -> None:
    require_parity("frontier", tmp_path)


@pytest.mark.tf
@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted({*profile_names()} - {"frontier"}))
def test_every_shipped_profile_is_converted(name: str, tmp_path: Path) -> None:
    require_parity(name, tmp_path)


@pytest.mark.tf
@pytest.mark.parametrize("task", ["ohlc", "volatility"])
def test_a_model_whose_file_would_differ_is_not_converted(task: str, tmp_path: Path) -> None:
    """Whichever output has no number: the last of several, too."""
    span = demo_data(tiny_profile()).spans["test"]
    window = keras.Input(span.raw_windows().shape[1:], name="window")
    means = keras.ops.mean(window, axis=1, keepdims=True)
    outputs = {"ohlc": means, "volatility": means} | {task: keras.ops.log(0.0 * means - 1.0)}
    file = tmp_path / "model.onnx"
    with pytest.raises(ArtifactError) as refused:
        converted_onnx(keras.Model(window, outputs), file, SERIES, span)
    assert refused.value.where == str(file) and re.fullmatch(f"{task} .* inf steps apart", refused.value.got)
    odd = keras.Model(window, {"ohlc": keras.layers.GlobalMaxPooling1D(name="pool")(window)})
    with pytest.raises(ArtifactError, match="got pool: GlobalMaxPooling1D "):
        converted_onnx(odd, file, SERIES, span)


def change_to_foreign_domain(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "com.microsoft"


def change_to_loop(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Loop"


def put_graph_inside(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("body", model.graph))


def put_numbers_outside(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    model.graph.initializer[0].external_data.add(key="location", value="/etc/passwd")


def claim_more_numbers(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [1 << 40]


def take_older_operators(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 11


def grow_beyond_memory(model: onnx.ModelProto) -> None:
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.zeros(5_000, np.float32), "row"))
    graph.initializer.append(numpy_helper.from_array(np.zeros((5_000, 1, 1), np.float32), "column"))
    graph.node[0].input[1] = "row"
    graph.node[0].output[0] = "wide"  # 2 by 5,000 numbers
    graph.node.append(helper.make_node("Add", ["wide", "column"], ["large"]))  # 5,000 times as many
    graph.initializer.append(numpy_helper.from_array(np.arange(3), "axes"))
    graph.node.append(helper.make_node("ReduceSum", ["large", "axes"], ["sum"], keepdims=1))
    graph.node.append(helper.make_node("Add", ["sum", "window"], ["ohlc"]))


def name_other_inputs(model: onnx.ModelProto) -> None:
    model.graph.input[0].name = "candles"
    model.graph.node[0].input[0] = "candles"


def claim_negative_length(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -5


def take_longer_windows(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3


def multiply_four(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Einsum"
    model.graph.node[0].attribute.append(helper.make_attribute("equation", "ab,bc,c,a->"))


def write_text(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Cast", ["ohlc"], ["text"], to=TensorProto.STRING))


def add_negative_weight(model: onnx.ModelProto) -> None:
    constant = numpy_helper.from_array(np.zeros((1, 1), np.float32), "weight1")
    constant.dims[:] = [-1, -1]
    model.graph.initializer.append(constant)


def add_endless_weight(model: onnx.ModelProto) -> None:
    constant = numpy_helper.from_array(np.zeros((0, 1, 8), np.float32), "weight1")
    constant.dims[1] = 1 << 62
    model.graph.initializer.append(constant)


def add_huge_index(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array([1 << 40]), "constant1"))


def add_unknown_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("axis", 0))


def name_two_alike(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "two"))


def slice_nothing_backwards(model: onnx.ModelProto) -> None:
    numbers = {"from": [0], "to": [0], "axis": [1], "back": [-1]}
    for name, values in numbers.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(values), name))
    model.graph.node.append(helper.make_node("Slice", ["ohlc", "from", "to", "axis"], ["nothing"]))
    backwards = helper.make_node("Slice", ["nothing", "to", "from", "axis", "back"], ["sliced"])
    model.graph.node.append(backwards)


def give_more(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Identity", ["ohlc"], ["bands"]))
    model.graph.output.append(helper.make_tensor_value_info("bands", TensorProto.FLOAT, ["windows", 2, 1]))


def break_shapes(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((3, 5), np.float32), "two"))


FAULTS = {
    change_to_foreign_domain: "node has a field that v8 does not write (number 7)",
    change_to_loop: "operators Loop",
    put_graph_inside: "attribute has a field that v8 does not write (number 6)",
    put_numbers_outside: "constant has a field that v8 does not write (number 13)",
    claim_more_numbers: "number 1,099,511,627,776 in its structure",
    take_older_operators: "operator sets",
    grow_beyond_memory: "works on 50,010,003 numbers a window",
    name_other_inputs: "other inputs than the window",
    break_shapes: "do not fit together",
    claim_negative_length: "window has the lengths (-5, 1)",
    take_longer_windows: "(3, 1) to {'ohlc': (2, 1)}, where its metadata say (2, 1) to {'ohlc': (2, 1)}",
    multiply_four: "Einsum of another equation",
    write_text: "Cast of another to",
    add_negative_weight: "numbers lie outside the file",
    add_endless_weight: "number 4,611,686,018,427,387,904 in its structure",
    add_huge_index: "whole numbers from 1,099,511,627,776 to",
    add_unknown_attribute: "Mul of other attributes",
    name_two_alike: "several results of the name two",
    slice_nothing_backwards: "Slice of 5 inputs",
    give_more: "where its metadata say",
}


@pytest.mark.parametrize("change", FAULTS, ids=lambda change: change.__name__)
def test_a_file_with_anything_but_arithmetic_is_refused(
    change: Callable[[onnx.ModelProto], None], tmp_path: Path
) -> None:
    model = tiny_model(SERIES)
    file = tmp_path / "model.onnx"
    file.write_bytes(model.SerializeToString())
    window = np.ones((1, 2, 1), np.float32)
    np.testing.assert_array_equal(
        load_onnx_model(file, SERIES, TINY_SHAPES).forecast_windows(window)["ohlc"], 2 * window
    )
    change(model)
    file.write_bytes(model.SerializeToString())
    for use in (check_onnx_file, load_onnx_model):
        with pytest.raises(ArtifactError) as refusal:
            use(file, SERIES, TINY_SHAPES)
        assert refusal.value.where == str(file)
        assert FAULTS[change] in refusal.value.got


def test_a_file_of_another_kind_or_series_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    for content in (b"PK\x03\x04", b"\xff" * 40):
        file.write_bytes(content)
        with pytest.raises(ArtifactError, match=r"model.onnx: .*be an ONNX file"):
            check_onnx_file(file, SERIES, TINY_SHAPES)
    file.write_bytes(tiny_model(SERIES).SerializeToString())
    with pytest.raises(ArtifactError, match="made for 'BTCUSDT-15m'"):
        load_onnx_model(file, "ETHUSDT-15m", TINY_SHAPES)
    with pytest.raises(ArtifactError, match="No such file"):
        check_onnx_file(tmp_path / "nothing.onnx", SERIES, TINY_SHAPES)
