from __future__ import annotations

from dataclasses import dataclass

import pytest

from v8.base.errors import ProfileError
from v8.base.registry import Registry
from v8.data.market.sources import SOURCES
from v8.model.baselines.baselines import BASELINES
from v8.profile.families import FAMILIES
from v8.profile.indicators import FEATURES
from v8.profile.tasks import TASKS
from v8.runs.events import TRACKERS
from v8.runs.options import ENGINES


@dataclass(frozen=True)
class Fruit:
    name: str
    sentence: str = "It is sweet."
    source: str = "a tree"


def test_entries_keep_their_order_and_are_found_by_name() -> None:
    fruits = Registry("fruit", [Fruit("pear"), Fruit("apple")])
    assert list(fruits) == ["pear", "apple"]
    assert fruits.find("apple") is fruits["apple"]


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ProfileError, match=r"--fruit aple: .*got 'aple'.*apple"):
        Registry("fruit", [Fruit("pear"), Fruit("apple")]).find("aple", where="--fruit aple")


def test_a_name_is_given_once() -> None:
    fruits = Registry("fruit", [Fruit("pear")])
    with pytest.raises(ProfileError, match=r"fruit pear: .*got a second one"):
        fruits.register(Fruit("pear"))


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "../x", "a/b", ".hidden", "<script>", "=cmd", "-x", "1st", "a.b", "a b", "x" * 5_000),
        *("a\n", "a\0", "\x1b[31m", "\ud800", "é", "con", "NUL", "Com1", "lpt9", None, 7, b"x", ["x"]),
    ],
)
def test_a_name_is_a_plain_word(name: object) -> None:
    fruits = Registry("fruit", [Fruit("pear")])
    with pytest.raises(ProfileError, match=r"fruit, its name: .*a name begins with") as caught:
        fruits.register(Fruit(name))  # type: ignore[arg-type]
    assert str(caught.value).isprintable() and len(str(caught.value)) <= 600
    assert list(fruits) == ["pear"]


@pytest.mark.parametrize(
    "name", ["model", "Model", "naive", "actual", "model_q5", "open_time", "csv", "frames"]
)
def test_a_name_does_not_stand_for_something_else(name: str) -> None:
    fruits = Registry("fruit", [Fruit("pear")])
    with pytest.raises(ProfileError, match=f"fruit {name}: its name must not"):
        fruits.register(Fruit(name))
    assert list(fruits) == ["pear"]


def test_large_and_small_letters_are_the_same_name() -> None:
    with pytest.raises(ProfileError, match=r"fruit Pear: .*got a second one"):
        Registry("fruit", [Fruit("pear")]).register(Fruit("Pear"))


def test_a_kind_has_reserved_names_of_its_own() -> None:
    with pytest.raises(ProfileError, match=r"fruit kernel: .*got the reserved name"):
        Registry("fruit", reserved=["kernel"]).register(Fruit("kernel"))


@pytest.mark.parametrize("key", ["sentence", "source"])
@pytest.mark.parametrize(
    ("text", "rule"),
    [
        *((text, "is one line of") for text in ("", " ", "two\nlines", "\x1b[31mred")),
        *((text, "is one line of") for text in ("\u202egnp", "x" * 400, 7, None, ["x"])),
        *((text, "is plain text without <") for text in ("<script>alert(1)</script>", "a < b")),
        *((text, "is plain text without ") for text in ("[x](y)", "`code`")),
    ],
)
def test_a_text_of_an_entry_is_one_line_that_means_the_same_everywhere(
    key: str, text: object, rule: str
) -> None:
    fruits = Registry("fruit", [Fruit("pear")])
    with pytest.raises(ProfileError, match=f"fruit apple, its {key}: {rule}") as caught:
        fruits.register(Fruit("apple", **{key: text}))  # type: ignore[arg-type]
    assert str(caught.value).isprintable() and len(str(caught.value)) <= 600
    assert list(fruits) == ["pear"]


def test_a_source_may_be_an_address() -> None:
    fruits = Registry("fruit", [Fruit("pear")])
    fruits.register(Fruit("apple", source="https://example.org/apples"))
    with pytest.raises(ProfileError, match=r"fruit plum, its sentence: .*got 'see https://example.org'"):
        fruits.register(Fruit("plum", sentence="see https://example.org"))
    assert list(fruits) == ["pear", "apple"]


def test_the_texts_of_what_v8_ships_keep_the_rule_for_plug_ins() -> None:
    for registry in (BASELINES, ENGINES, FAMILIES, FEATURES, SOURCES, TASKS, TRACKERS):
        for entry in registry.values():
            Registry(registry.kind)._require_plain_texts(entry)
