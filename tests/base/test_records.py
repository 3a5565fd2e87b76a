"""Records: what a file must hold, and the sentence that says what it holds instead."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from v8.base.errors import ArtifactError
from v8.base.records import Count, Number, Sha256, Text, check_format, checked, read_json_object


@dataclass(frozen=True)
class Shipment:
    """A record with one key of each kind."""

    num_crates: Count
    weight_kg: Number
    receiver: Text
    seal: Sha256
    stops: tuple[Text, ...] = ()


CONTENT = {"num_crates": 3, "weight_kg": 4, "receiver": "Ada", "seal": "0f" * 32, "stops": ["Bern", "Oslo"]}


def test_a_whole_record_is_read_and_keys_it_does_not_know_are_left_alone() -> None:
    read = checked(Shipment, CONTENT | {"colour": "red"}, where="a.json", fix="Restore it")
    assert read == Shipment(3, 4.0, "Ada", "0f" * 32, ("Bern", "Oslo"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_crates": -1}, "key num_crates: .*; got -1\\."),
        ({"num_crates": True}, "key num_crates: .*; got True\\."),
        ({"num_crates": 3.0}, "key num_crates: .*; got 3.0\\."),
        ({"weight_kg": "4"}, "key weight_kg: .*; got '4'\\."),
        ({"weight_kg": float("nan")}, "key weight_kg: .*; got nan\\."),
        ({"weight_kg": float("inf")}, "key weight_kg: .*; got inf\\."),
        ({"receiver": ""}, "key receiver: .*; got ''\\."),
        ({"seal": "0F" * 32}, "key seal: .* pattern"),
        ({"seal": "0f" * 32 + "\n"}, "key seal: .* pattern"),
        ({"stops": ["Bern", None]}, "key stops.1: .*; got None\\."),
        ({"stops": "Bern"}, "key stops: .*; got 'Bern'\\."),
    ],
)
def test_the_first_key_at_fault_is_named_with_its_value(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        checked(Shipment, CONTENT | changes, where="a.json", fix="Restore it")
    assert re.search(f"a.json, {sentence}", str(caught.value))


def test_a_missing_key_a_key_of_a_key_and_a_value_too_long_to_show() -> None:
    with pytest.raises(ArtifactError, match=r"^a\.json, key a\.num_crates: .*got no such key"):
        checked(Shipment, {}, where="a.json, key a", fix="Mend it", rule="must be as v8 wrote it")
    with pytest.raises(ArtifactError, match=r"a\.json, key weight_kg: .*got 'x{116}\.\.\. \("):
        content = CONTENT | {"weight_kg": "x" * 999}
        checked(Shipment, content, where="a.json", fix="Mend it", rule="must be as v8 wrote it")


@pytest.mark.parametrize(
    "content", [{"format": 4}, {"format": "3"}, {"format": 3.0}, {"format": True}, {}, [], None]
)
def test_only_one_format_is_read(content: object) -> None:
    check_format({"format": 3}, 3, kind="run", where="a.json", fix="Mend it")
    with pytest.raises(ArtifactError, match=r"^a\.json: .*format 3; got format "):
        check_format(content, 3, kind="run", where="a.json", fix="Mend it")


def test_a_file_nested_without_end_is_damage(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 200_000)
    with pytest.raises(ArtifactError, match=r"deep\.json: .*got damage"):
        read_json_object(tmp_path / "deep.json", fix="Restore it")
