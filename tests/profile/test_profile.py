"""Profiles: complete, frozen, identified, and refused with the key at fault."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from odd_values import ARRAYS, OBJECTS

import v8
from v8.base.errors import ProfileError
from v8.base.records import Settings
from v8.profile.columns import OHLC
from v8.profile.families import FAMILIES
from v8.profile.profile import (
    Profile,
    config_path,
    key_places,
    load_profile,
    profile_names,
    recorded_profile,
    recorded_tables,
)
from v8.profile.settings import SplitSettings, TaskSettings, TrainingSettings


def written(folder: Path, **changes: object) -> str:
    """Write the aligned profile with some top-level keys changed (None removes a key)."""
    content = yaml.safe_load(config_path("aligned").read_text("utf-8"))
    content["training"]["learning_rate"] = 5e-4
    content.update(changes)
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in content.items() if v is not None}), "utf-8")
    return str(path)


# Numbers of the lineage: lookback, horizon, features, batch, epochs, learning rate, tasks.
LINEAGE = {
    "v7": (120, 1, 14, 16, 200, 5e-4, {"ohlc": 1.0}),
    "stable": (120, 1, 15, 32, 150, 1e-3, {"ohlc": 1.0}),
    "aligned": (60, 10, 12, 16, 100, 5e-4, {"ohlc": 1.0, "bands": 0.8, "volatility": 0.3}),
}


@pytest.mark.parametrize("name", sorted(LINEAGE))
def test_a_shipped_profile_holds_the_numbers_of_its_ancestor(name: str) -> None:
    profile = load_profile(name)
    training = profile.training
    assert (
        profile.lookback_bars,
        profile.horizon_bars,
        len(profile.features),
        training.batch_size,
        training.epochs,
        training.learning_rate,
        {task: settings.weight for task, settings in profile.tasks.items()},
    ) == LINEAGE[name]
    assert (training.early_stopping_patience_epochs, training.reduce_lr_factor) == (20, 0.5)
    assert (training.reduce_lr_patience_epochs, profile.network.dropout) == (8, 0.3)
    assert (profile.newest_bars, profile.seed, profile.scaling) == (8_000, 42, "anchored")
    assert profile.calibration == "ensemble"


# Newest bars, batch, epochs, patience; all look back 30 and ahead 10, on candles alone.
V4 = {"v4_transformer": (5_000, 128, 50, 10), "v4_gru": (5_000, 64, 100, 15), "v4_lstm": (7_000, 32, 200, 20)}


@pytest.mark.parametrize("name", V4)
def test_a_profile_of_the_v4_family_holds_the_numbers_of_its_ancestor(name: str) -> None:
    profile = load_profile(name)
    training = load_profile(name).training
    numbers = (profile.newest_bars, training.batch_size, training.epochs)
    assert (*numbers, training.early_stopping_patience_epochs) == V4[name]
    assert (training.learning_rate, training.clip_norm) == (1e-3, 1.0)
    assert (profile.lookback_bars, profile.horizon_bars, profile.features) == (30, 10, OHLC)
    assert {task: settings.loss for task, settings in profile.tasks.items()} == {"ohlc": "mse"}
    assert profile.network.teacher_forcing == 0.5
    schedules = {"v4_transformer": ("adamw", "cosine"), "v4_gru": ("adam", "constant")}
    assert (training.optimizer, training.schedule) == schedules.get(name, ("adamw", "step"))


def test_the_networks_have_the_lineage_s_layers() -> None:
    assert load_profile("v7").network.model_dump() == {
        "family": "lstm_dense",
        "encoder_units": (256, 128, 64, 32),
        "dense_units": (128, 64, 32),
        "dropout": 0.3,
    }
    assert load_profile("stable").network == load_profile("v7").network
    assert load_profile("aligned").network.model_dump() == {
        "family": "bilstm_seq2seq",
        "encoder_units": (128, 64, 32),
        "decoder_units": (64,),
        "dropout": 0.3,
    }


def test_the_frontier_profile_knows_the_naive_bands_of_each_step_it_forecasts() -> None:
    frontier = load_profile("frontier")
    assert (frontier.scaling, frontier.network.family) == ("ranged", "dense_newest")
    for step in range(1, frontier.horizon_bars + 1):
        assert {f"rolled_middle_{step}", f"rolled_deviation_{step}"} < set(frontier.features)


def test_all_shipped_profiles_write_the_same_keys() -> None:
    def keys(content: object) -> object:
        return {k: keys(v) for k, v in content.items()} if isinstance(content, dict) else None

    written_keys = []
    for name in profile_names():
        content = yaml.safe_load(config_path(name).read_text("utf-8"))
        del content["tasks"], content["network"]
        written_keys.append(keys(content))
    assert all(found == written_keys[0] for found in written_keys)


def test_a_number_without_a_point_is_a_number() -> None:
    assert "learning_rate: 5e-4" in config_path("aligned").read_text("utf-8")
    assert load_profile("aligned").training.learning_rate == 0.0005


def test_the_digest_depends_on_every_key_and_on_nothing_else(tmp_path: Path) -> None:
    aligned = load_profile("aligned")
    assert load_profile(written(tmp_path)).digest == aligned.digest
    assert load_profile(written(tmp_path, seed=43)).digest != aligned.digest
    assert aligned.with_budget().digest == aligned.digest
    assert aligned.with_budget(epochs=2).digest != aligned.digest


def test_a_profile_cannot_be_changed() -> None:
    with pytest.raises(ProfileError, match=r"Profile: is never changed itself.*\.but\(seed="):
        load_profile("aligned").seed = 1
    with pytest.raises(ProfileError, match=r"TrainingSettings: .*got epochs = 3"):
        load_profile("aligned").training.epochs = 3


def test_a_profile_that_was_changed_is_another_one_with_a_name_of_its_own() -> None:
    profile = Profile.of("frontier")
    changed = profile.but(learning_rate=3e-4, epochs=3)
    assert (changed.training.learning_rate, changed.training.epochs) == (3e-4, 3)
    assert (
        profile == load_profile("frontier")
        and profile.but(learning_rate=profile.training.learning_rate) == profile
    )
    assert re.fullmatch(r"frontier-but-[0-9a-f]{8}", changed.name) and changed.digest != profile.digest
    # However it is said, and in however many steps, it is the same one.
    assert changed == profile.but(training={"epochs": 3, "learning_rate": np.float64(3e-4)})
    assert changed == profile.but(epochs=np.int64(3)).but(learning_rate=3e-4)
    assert profile.but(epochs=4).name != changed.name
    assert profile.but(epochs=4, name="mine").name == "mine"
    assert len(profile.but(name="a" * 64).but(epochs=4).name) == 64


def test_what_is_changed_keeps_the_rest_of_its_section() -> None:
    profile = Profile.of("frontier")
    assert profile.but(tasks={"ohlc": {"weight": 2}}).tasks["ohlc"].loss == profile.tasks["ohlc"].loss
    assert list(profile.but(tasks={"bands": None}).tasks) == ["ohlc", "volatility", "range"]
    assert profile.but(dropout=0.5).network == profile.but(network={"dropout": 0.5}).network
    assert profile.but(clip_norm=None).training.clip_norm is None
    assert profile.but(features=[*profile.features, "rsi"]).features[-1] == "rsi"
    other = {"family": "lstm_dense", "encoder_units": [4], "dense_units": [4], "dropout": 0.0}
    assert profile.but(network=other).network.family == "lstm_dense"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learnin_rate": 1}, "key learnin_rate: .*Did you mean training.learning_rate"),
        ({"learning_rate": 3}, r"key training.learning_rate: .*got 3"),
        ({"training": {"epoch": 3}}, "key training.epoch: .*Did you mean epochs"),
        ({"training": 3}, "key training: .*got 3"),
        ({"optimizer": "adan"}, "key training.optimizer: .*Did you mean adam"),
        ({"tasks": {"ohlc": None}}, "must hold ohlc"),
        ({"seed": object()}, "key seed: .*valid integer"),
    ],
)
def test_a_change_that_cannot_be_is_refused_in_four_parts(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ProfileError, match=words) as caught:
        Profile.of("frontier").but(**changes)
    assert caught.value.where and caught.value.fix and "pydantic" not in str(caught.value)


def test_who_makes_a_profile_of_keywords_reads_our_errors() -> None:
    whole = load_profile("frontier").model_dump()
    assert Profile(**whole) == load_profile("frontier")
    with pytest.raises(ProfileError, match=r"profile frontier, key seed: .*got -1"):
        Profile(**whole | {"seed": -1})
    assert Profile("frontier", epochs=3) == Profile.of("frontier").but(epochs=3)
    with pytest.raises(ProfileError, match=r"profile fronteer: .*got 'fronteer'.*frontier"):
        Profile("fronteer")


def test_a_user_s_own_file_works_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, name="mine")
    monkeypatch.chdir(tmp_path)
    assert load_profile(path).name == "mine"
    assert load_profile("aligned").name == "aligned"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learnin_rate": 1e-3}, r"key learnin_rate: .*unknown key.*Did you mean training\.learning_rate\."),
        ({"bogus": 1}, r"key bogus: .*unknown key 'bogus'"),
        ({"lookbak_bars": 3}, r"mine\.yaml, key lookbak_bars: .*unknown key.*Did you mean lookback_bars"),
        ({"seed": None}, r"key seed: .*got no such key"),
        ({"lookback_bars": 0}, r"key lookback_bars: .*got 0"),
        ({"lookback_bars": "60"}, r"key lookback_bars: .*got '60'"),
        ({"features": ["open", "high", "low", "close", "rsii"]}, r"mine.yaml, key features: .*'rsii'.*rsi"),
        ({"features": ["open", "high", "low", "close", "close"]}, "'close' is listed twice"),
        ({"features": ["rsi"]}, r"mine.yaml, key features: .*missing"),
        ({"scaling": "robust"}, r"key scaling: .*'anchored', 'ranged', 'standard' or 'minmax'; got 'robust'"),
        ({"scaling": "ranged"}, r"mine.yaml: .*recent_range with scaling: ranged"),
        ({"calibration": "shrink"}, r"key calibration: .*'ensemble' or 'none'.*; got 'shrink'"),
        ({"calibration": None}, r"key calibration: .*got no such key"),
        ({"split": {"train": 0.7, "validation": 0.2, "test": 0.2}}, "must add up to 1"),
        ({"split": {"train": 0.7, "validation": 0.3, "test": 0.0}}, r"key split\.test: .*greater than 0"),
        ({"tasks": {"ohlcv": {"weight": 1.0, "loss": "mae"}}}, r"mine.yaml, key tasks: .*'ohlcv'.*ohlc"),
        ({"tasks": {"bands": {"weight": 1.0, "loss": "mae"}}}, "must hold ohlc"),
        ({"lookback_bars": 10}, r"mine.yaml: lookback_bars .*20 .*got 10"),
        ({"horizon_bars": 19}, r"mine.yaml: horizon_bars .*18 .*got 19"),
        ({"name": "../up"}, r"key name: .*pattern"),
        ({"network": {"family": "lstm_dens"}}, r"key network: .*'lstm_dens'.*lstm_dense"),
        ({"network": {"dropout": 0.3}}, r"mine.yaml, key network: .*one of bilstm_seq2seq"),
        ({"network": None}, r"key network: .*got no such key"),
    ],
)
def test_a_bad_value_is_refused_with_file_and_key(
    tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ProfileError, match=sentence):
        load_profile(written(tmp_path, **changes))


def test_a_misspelt_key_is_told_and_not_that_the_right_one_is_missing(tmp_path: Path) -> None:
    content = yaml.safe_load(config_path("aligned").read_text("utf-8"))
    content["training"]["batchsize"] = content["training"].pop("batch_size")
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content), "utf-8")
    expected = r"key training.batchsize: .*got the unknown key 'batchsize'\. Did you mean batch_size\.$"
    with pytest.raises(ProfileError, match=expected):
        load_profile(str(path))


def test_a_repeated_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text(config_path("aligned").read_text("utf-8") + "seed: 7\n", "utf-8")
    with pytest.raises(ProfileError, match=r"twice\.yaml: .*key 'seed' is repeated"):
        load_profile(str(path))


@pytest.mark.parametrize("name", ["alined", "universe"])
def test_an_unknown_profile_names_the_shipped_ones(name: str) -> None:
    with pytest.raises(ProfileError, match=r"one of .*aligned.*stable.*v7"):
        load_profile(name)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="No such file"):
        load_profile(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    "settings",
    [Profile, SplitSettings, TaskSettings, TrainingSettings, *(one.settings for one in FAMILIES.values())],
)
def test_every_field_is_explained(settings: type[Settings]) -> None:
    """A sentence stands under each field: meaning, unit, special values."""
    source = "".join(inspect.getsource(one) for one in settings.__mro__ if one.__module__.startswith("v8"))
    names = {"split", "network", "training"}  # sections; their classes carry the sentence
    for field in settings.model_fields.keys() - names:
        assert re.search(rf'^    {field}: .*\n    """', source, re.MULTILINE), field


@pytest.mark.parametrize("family", [one.name for one in FAMILIES.values() if not one.is_formula])
def test_an_unknown_key_of_a_network_names_a_key_of_its_family(family: str, tmp_path: Path) -> None:
    shipped = [load_profile(name).network for name in profile_names()]
    network = next(one for one in shipped if one.family == family).model_dump(mode="json")
    key = next(name for name in network if name.endswith("_units"))
    network[key[:-1]] = [*network[key]]
    with pytest.raises(ProfileError, match=rf"network\.{family}\.{key[:-1]}: .*Did you mean {key}\."):
        load_profile(written(tmp_path, network=network))


@pytest.mark.process
def test_a_profile_is_read_without_keras() -> None:
    code = "import sys, v8.profile.profile as p; p.load_profile('aligned'); print('keras' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "False\n"


LOADS_EACH = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
from v8.base.errors import ProfileError
from v8.profile.profile import load_profile
for path in sys.argv[1:]:
    try:
        load_profile(path)
    except ProfileError as error:
        print(json.dumps(str(error)), flush=True)
"""


def refused(*paths: Path) -> list[str]:
    """Load profiles in a process of its own that has 1 GB, and return the sentences that refuse them."""
    process = subprocess.run(
        [sys.executable, "-c", LOADS_EACH, *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,  # the 2 s of the issue, on a machine that is many times busier
    )
    assert (process.returncode, process.stderr) == (0, "")
    sentences = [json.loads(line) for line in process.stdout.splitlines()]
    for path, sentence in zip(paths, sentences, strict=True):
        assert sentence.startswith(f"{path}")
        assert sentence.isprintable()
        assert 0 < len(sentence) <= 600
    return sentences


BOMB = "a: &a [1, 1]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}]\n" for a, b in itertools.pairwise("abcdefghijklmnopqrstuvwxyz")
)


HOSTILE = (
    ("name: 2024-13-45\n", r"got no such key|key"),
    ("? [a, b]\n: 1\n", r"must be a word, line 1"),
    ("? {a: b}\n: 1\n", r"must be a word, line 1"),
    ("seed: 1\n12: 1\n", r"must be a word, line 2"),
    ("seed: 1\nname: " + "[" * 3_000, r"are read 8 deep, line 2"),
    ("a: " + "{b: " * 3_000, r"are read 8 deep, line 1"),
    ("- " * 3_000, r"are read 8 deep, line 1"),
    ("? " * 3_000, r"are read 8 deep, line 1"),
    ("&a [*a]\n", r"anchors \(&\) and aliases \(\*\) are not read.*line 1"),
    (BOMB, r"anchors .* line 1"),
    ("<<: *a\n", r"anchors .* line 1"),
    ("seed: " + "9" * 5_000, r"key name: "),
    ("seed: " + "9" * 140_000, r"got 140,006 bytes, where at most 65,536 are read"),
    ("%YAML 1." + "9" * 5_000 + "\n---\na: 1\n", r"must be YAML"),
    ('name: "\\UFFFFFFFF"\n', r"must be YAML"),
    ('name: "\\U00110000"\n', r"must be YAML"),
    ("name: x\n\tseed: 1\n", r"must be YAML.*line 2"),
    ("name: a\0b\n", r"must be YAML.*#x0000"),
    ("name: !!python/name:os.system\n", r"tags \(!\) are not read: .* line 1"),
    ("name: !!timestamp 2024-13-45\n", r"tags \(!\) are not read"),
    ("a: 1\n---\nb: 2\n", r"must be YAML.*line 2"),
    ('"unclosed: 1\n', r"must be YAML.*line"),
    ("- a\n", "; got list"),
    ("", "; got NoneType"),
    ("".join(f"k{number}: 1\n" for number in range(5_000)), "unknown key|no such key"),
    ("k" * 60_000 + ": 1\n", r"profile|key|YAML"),
)


@pytest.mark.process
def test_hostile_yaml_is_one_sentence_soon_and_in_little_memory(tmp_path: Path) -> None:
    paths = []
    for number, (content, _) in enumerate(HOSTILE):
        paths.append(tmp_path / f"{number}.yaml")
        paths[-1].write_text(content, "utf-8")
    for sentence, (_, expected) in zip(refused(*paths), HOSTILE, strict=True):
        assert re.search(expected, sentence), sentence


@pytest.mark.parametrize("name", ["seed", "lookback_bars", "horizon_bars"])
@pytest.mark.parametrize(
    "value", ["2024-13-45", "2024-01-01", "9" * 5_000, "010", "0x10", "1:30", "1_0", ".inf", "yes"]
)
def test_what_only_looks_like_a_number_is_refused_as_text(name: str, value: str, tmp_path: Path) -> None:
    content = yaml.safe_load(config_path("aligned").read_text("utf-8"))
    content["training"]["learning_rate"] = 5e-4
    del content[name]
    path = tmp_path / "mine.yaml"
    path.write_text(f"{yaml.safe_dump(content)}{name}: {value}\n", "utf-8")
    with pytest.raises(ProfileError, match=rf"key {name}: .*valid integer; got '{re.escape(value[:9])}"):
        load_profile(str(path))


@pytest.mark.process
def test_bytes_that_are_no_text_and_places_that_are_no_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(config_path("aligned").read_text("utf-8"), "utf-16")
    assert "; got byte 0xff at position 0" in refused(path)[0]
    path.write_text(config_path("aligned").read_text("utf-8"), "utf-8-sig")
    assert load_profile(str(path)).digest == load_profile("aligned").digest
    path.unlink()
    with path.open("wb") as stream:
        stream.truncate(100_000_000)
    assert "got 100,000,000 bytes, where at most 65,536 are read" in refused(path)[0]
    path.unlink()
    os.mkfifo(path)
    assert "got a pipe, a socket" in refused(path)[0]
    path.unlink()
    path.symlink_to("/dev/zero")
    assert "got a pipe, a socket" in refused(path)[0]
    path.unlink()
    path.mkdir()
    assert "got a folder in" in refused(path)[0]
    with pytest.raises(ProfileError, match="got a name that"):
        load_profile("no\0name.yaml")


def test_a_step_has_as_many_windows_on_a_cpu_as_on_a_gpu() -> None:
    content = load_profile("v4_lstm").model_dump()
    content["training"] |= {"batch_size": 16, "gradient_accumulation": 2, "cpu_batch_size": 4}
    training = Profile.model_validate(content).training
    assert training.windows_per_step == 32
    assert (training.num_micro_batches(is_on_gpu=True), training.num_micro_batches(is_on_gpu=False)) == (2, 8)
    content["training"]["cpu_batch_size"] = 5
    with pytest.raises(ValueError, match=r"cpu_batch_size must divide the 32 windows of a step"):
        Profile.model_validate(content)


@pytest.mark.parametrize("key", ["checkpoint_activations", "cpu_batch_size", "quantiles", "covariates"])
def test_a_profile_without_a_key_that_came_later_keeps_its_digest(key: str) -> None:
    profile = load_profile("v4_gru")
    content = profile.model_dump()
    is_of_training = key in content["training"]
    (content["training"] if is_of_training else content).pop(key, None)
    assert Profile.model_validate(content).digest == profile.digest
    assert is_of_training or key not in profile.model_dump(mode="json")


FUNDING = {
    "file": "funding.csv",
    "time": "time",
    "columns": ["funding_rate"],
    "available_after_s": 0,
    "max_age_s": 43_200,
}


def beside(tmp_path: Path, *features: str, tables: object = (FUNDING,), **changes: object) -> Profile:
    """Return the aligned profile with features from elsewhere."""
    names = [*load_profile("aligned").features, *features]
    covariates = [*tables] if tables else None
    return load_profile(written(tmp_path, features=names, covariates=covariates, **changes))


def test_a_profile_with_covariates_comes_back_from_what_a_run_records_of_it(tmp_path: Path) -> None:
    profile = beside(tmp_path, "BTCUSDT.range_20", "csv.funding_rate")
    recorded = json.loads(json.dumps(profile.model_dump(mode="json")))
    assert recorded["covariates"] == [FUNDING]
    assert recorded_profile(recorded, where="run.json") == profile
    assert recorded_tables(recorded["covariates"], where="metadata.json") == profile.covariates
    with pytest.raises(ProfileError, match=r"metadata\.json, key 0\.max_age_s: .*got -1"):
        recorded_tables([{**FUNDING, "max_age_s": -1}], where="metadata.json")


@pytest.mark.parametrize(
    ("features", "tables", "rule"),
    [
        (["csv.funding_rate"], (), "features name csv.funding_rate: .*table with"),
        ([], (FUNDING,), r"features .*name csv\.funding_rate"),
        (
            ["csv.funding_rate"],
            (FUNDING, {**FUNDING, "columns": ["funding_rate"]}),
            "covariates must hold 'funding_rate' once",
        ),
        (["csv.funding_rate"], ({**FUNDING, "file": "../x.csv"},), r"key covariates\.0\.file: "),
        (
            ["csv.funding_rate"],
            ({**FUNDING, "available_after_s": 86_400},),
            r"mine.yaml, key covariates.0: .*got 43200",
        ),
        (["csv.funding_rate"], ({**FUNDING, "max_age": 1},), r"Did you mean max_age_s"),
        (["BTCUSDT.high"], (), r"mine.yaml: .*must hold BTCUSDT\.close with"),
        ([f"A{number}.roc" for number in range(21)], (), r"key features: .* 20 other series, not 21"),
        (["BTCUSDT.rang_20"], (), r"key features: .*feature of BTCUSDT: .*mean range_20"),
    ],
)
def test_covariates_that_cannot_be_are_refused(
    features: list[str], tables: object, rule: str, tmp_path: Path
) -> None:
    with pytest.raises(ProfileError, match=rule):
        beside(tmp_path, *features, tables=tables)


def test_a_formula_has_no_quantiles_and_says_so_first(tmp_path: Path) -> None:
    expected = r"quantiles must be \[\] with family range_paths, a formula .* got \(0\.1, 0\.5, 0\.9\)\."
    with pytest.raises(ProfileError, match=expected):
        load_profile(written(tmp_path, network={"family": "range_paths"}, quantiles=[0.1, 0.5, 0.9]))


def asked(tmp_path: Path, quantiles: list[float], **changes: object) -> Profile:
    """Return the aligned profile in recent ranges, with quantiles."""
    features = [*load_profile("aligned").features, "recent_range"]
    return load_profile(
        written(tmp_path, **{"scaling": "ranged", "features": features, "quantiles": quantiles, **changes})
    )


@pytest.mark.parametrize(
    ("quantiles", "rule"),
    [
        ([0.1, 0.9], "must hold 0.5, the median"),
        ([0.5], "must hold 3 to 19 levels"),
        ([0.5, 0.1, 0.9], "must ascend"),
        ([0.1, 0.5, 0.5, 0.9], "must ascend"),
        ([0.0, 0.5, 0.9], "must lie between 0.005 and 0.995"),
    ],
)
def test_quantiles_that_cannot_be_forecast_are_refused(
    tmp_path: Path, quantiles: list[float], rule: str
) -> None:
    with pytest.raises(ProfileError, match=re.escape(rule)):
        asked(tmp_path, quantiles)


@pytest.mark.parametrize("calibration", ["ensemble", "none"])
def test_paths_say_quantiles_beside_any_network(tmp_path: Path, calibration: str) -> None:
    levels = [0.1, 0.5, 0.9]
    tasks = {"ohlc": {"weight": 1.0, "loss": "mse"}}
    profile = asked(tmp_path, levels, scaling="anchored", tasks=tasks, calibration=calibration)
    assert profile.quantiles == (0.1, 0.5, 0.9) and profile.uses_simulated_paths
    assert profile.model_dump(mode="json")["quantiles"] == levels
    assert asked(tmp_path, [], calibration=calibration).uses_simulated_paths is (calibration == "ensemble")


def test_arrays_that_fit_are_taken() -> None:
    profile = load_profile("frontier")
    levels = [0.1, 0.5, 0.9]
    for quantiles in (np.array(levels), pd.Series(levels), pd.Index(levels), pd.array(levels)):
        assert profile.but(quantiles=quantiles) == profile.but(quantiles=levels)
    assert Profile("frontier", quantiles=np.array(levels)).quantiles == tuple(levels)
    network = {"family": "lstm_dense", "encoder_units": np.array([8, 4]), "dense_units": np.array([4])}
    assert profile.but(network={**network, "dropout": np.array(0.1)}).network.model_dump() == {
        "family": "lstm_dense",
        "encoder_units": (8, 4),
        "dense_units": (4,),
        "dropout": 0.1,
    }


@pytest.mark.tf
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learning_rate": {"x": 1}}, r"key training.learning_rate: .* valid number; got {'x': 1}"),
        ({"learning_rate": np.array([1e-3])}, "key training.learning_rate: .*valid number"),
        ({"quantiles": pd.NA}, "key quantiles: .*valid tuple; got a value of type NAType"),
        ({"quantiles": [0.1, pd.NA, 0.9]}, "key quantiles.1: .*valid number; got a value of type NAType"),
        (
            {"features": pd.DataFrame({"a": [1]})},
            "key features: .*valid tuple; got a value of type DataFrame",
        ),
        ({"quantiles": np.zeros(10_001)}, "key quantiles: .*valid tuple; got a value of type ndarray"),
        ({"tasks": {"ohlc": {"loss": {"a": 1}}}}, "key tasks.ohlc.loss: must be"),
        ({"training": {"epochs": {1: 2}}}, "key training.epochs: names its keys by texts"),
    ],
)
def test_other_values_are_refused_with_key_and_rule(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        load_profile("frontier").but(**changes)
    with pytest.raises(ProfileError, match=words):
        v8.train("demo", "frontier", series="BTCUSDT-1h", **changes)


@pytest.mark.parametrize("key", sorted(key_places()))
def test_whatever_a_program_writes_is_taken_or_refused_in_a_sentence(key: str) -> None:
    profile = load_profile("frontier")
    accepted = 0
    for value in (*ARRAYS, *OBJECTS):
        try:
            profile.but(**{key: value})
            accepted += 1
        except ProfileError as error:
            assert str(error).isprintable() and len(str(error)) <= 600
            assert str(error).startswith("profile ") and "; got " in str(error)
    assert accepted < len(ARRAYS) + len(OBJECTS)


def test_the_profile_that_shows_every_key_is_named_by_a_place_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = load_profile("aligned").model_dump(mode="json")
    del content["horizon_bars"]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProfileError) as refused:
        load_profile("mine.yaml")
    assert Path(refused.value.fix.split()[2]).is_file()
