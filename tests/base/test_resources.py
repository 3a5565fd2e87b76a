"""What is set up once for several runs, and ends with the last of them."""

from __future__ import annotations

import pytest

from v8.base.child import resource_scope


class Resource:
    """Something that can be closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_a_resource_stays_open_until_the_outermost_block_ends() -> None:
    with resource_scope():
        with resource_scope() as scope:
            resource = scope.get("it", Resource)
        with resource_scope() as scope:
            assert scope.get("it", Resource) is resource
        assert not resource.is_closed
    assert resource.is_closed
    with resource_scope() as scope:
        assert len(scope) == 0


def test_a_resource_of_another_key_is_closed_before_the_next_is_opened() -> None:
    with resource_scope() as scope:
        first = scope.get("first", Resource)
        second = scope.get("second", Resource)
        assert first.is_closed
        assert not second.is_closed
        assert len(scope) == 1


def test_a_resource_is_closed_after_an_error() -> None:
    resource = Resource()
    with pytest.raises(ValueError, match="of a run"), resource_scope(), resource_scope() as scope:
        scope.get("it", lambda: resource)
        raise ValueError("of a run")
    assert resource.is_closed
