from __future__ import annotations

from dataclasses import dataclass

import pytest

from v8.errors import ProfileError
from v8.registry import Registry, advice, nearest


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
    with pytest.raises(ProfileError, match=r"--fruit aple: a fruit is one of pear, apple; got 'aple'.*apple"):
        Registry("fruit", [Fruit("pear"), Fruit("apple")]).find("aple", where="--fruit aple")


def test_what_is_like_no_name_suggests_none() -> None:
    assert nearest("learnin_rate", ["covariates", "learning_rate"]) == "learning_rate"
    assert nearest("learnin_rate", ["covariates"]) is None
    assert advice("sweet", ["pear"], "Choose one") == "Choose one"


def test_a_name_is_given_once() -> None:
    fruits = Registry("fruit", [Fruit("pear")])
    with pytest.raises(ProfileError, match="fruit pear: each fruit is registered once"):
        fruits.register(Fruit("pear"))


def test_a_registered_entry_can_be_forgotten_again() -> None:
    fruits = Registry("fruit", [Fruit("pear")])
    fruits.pop("pear")
    assert not fruits


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "../x", "a/b", ".hidden", "<script>", "=cmd", "-x", "1st", "a.b", "a b", "x" * 5_000),
        *("a\n", "a\0", "\x1b[31m", "\ud800", "é", "con", "NUL", "Com1", "lpt9", None, 7, b"x", ["x"]),
    ],
)
def test_a_name_is_a_plain_word(name: object) -> None:
    fruits = Registry("fruit", [Fruit("pear")])
    with pytest.raises(ProfileError, match="fruit, its name: a name begins with a letter") as caught:
        fruits.register(Fruit(name))  # type: ignore[arg-type]
    assert str(caught.value).isprintable() and len(str(caught.value)) <= 600
    assert list(fruits) == ["pear"]


@pytest.mark.parametrize(
    "name", ["model", "Model", "naive", "actual", "model_q5", "open_time", "csv", "frames"]
)
def test_a_name_does_not_stand_for_something_else(name: str) -> None:
    fruits = Registry("fruit", [Fruit("pear")])
    with pytest.raises(ProfileError, match=f"fruit {name}: its name must not stand for something else"):
        fruits.register(Fruit(name))
    assert list(fruits) == ["pear"]


def test_large_and_small_letters_are_the_same_name() -> None:
    with pytest.raises(ProfileError, match="fruit Pear: each fruit is registered once"):
        Registry("fruit", [Fruit("pear")]).register(Fruit("Pear"))


def test_a_kind_has_reserved_names_of_its_own() -> None:
    with pytest.raises(ProfileError, match="got the reserved name kernel"):
        Registry("fruit", reserved=["kernel"]).register(Fruit("kernel"))
