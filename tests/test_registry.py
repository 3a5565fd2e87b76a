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
