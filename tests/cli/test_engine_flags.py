"""`--engine` and `--address`: what they choose, and what is refused before anything starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from v8.base.errors import ProfileError
from v8.runs.engines import choose_engine
from v8.runs.options import ENGINES, Placement


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back the variables that choosing sets."""
    for name in (
        "TF_NUM_INTRAOP_THREADS",
        "TF_NUM_INTEROP_THREADS",
        "OMP_NUM_THREADS",
        "CUDA_VISIBLE_DEVICES",
    ):
        monkeypatch.setenv(name, "1")
    for name in ("OPENBLAS_NUM_THREADS", "XLA_FLAGS"):
        monkeypatch.setenv(name, "")


def test_an_engine_of_other_machines_learns_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = replace(ENGINES["ray"], name="toy", package=None, open=lambda placement: placement)
    monkeypatch.setitem(ENGINES, "toy", elsewhere)
    assert choose_engine(
        "toy", device="gpu", workers="3", fleet_size=8, address="10.0.0.1:6379"
    ) == Placement(3, 8, device="gpu", address="10.0.0.1:6379")


def test_an_engine_whose_package_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "toy", replace(ENGINES["ray"], name="toy", package="no_such_package"))
    with pytest.raises(
        ProfileError, match=r"--engine toy: needs the package no_such_package, v8's extra of t"
    ):
        choose_engine("toy")


@pytest.mark.parametrize(
    ("engine", "address", "told"),
    [
        ("local", "10.0.0.1:6379", r"--address: is auto or HOST:PORT .* got an address with --engine local"),
        ("toy", "ray://10.0.0.1:10001", r"--address: .*; got 'ray://10\.0\.0\.1:10001' with --engine toy"),
        ("toy", "", r"--address: .*; got '' with --engine toy"),
        ("rai", None, r"--engine: .*an? engine is one"),
    ],
)
def test_flags_that_contradict_are_refused(
    engine: str, address: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ProfileError, match=told):
        monkeypatch.setitem(ENGINES, "toy", replace(ENGINES["ray"], name="toy", package=None))
        choose_engine(engine, address=address)
