"""Resources that one run opens and the next can use again: worker processes and compiled programs.

    with resource_scope() as resources:
        pool = resources.get(key, open_pool)  # opened at the first call, returned again at the next

Scopes nest: a back-test opens one around all of its folds, each fold's engine opens one inside it, and both
are the same. What is open is closed when the outermost block ends, also after an error.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar


class Closeable(Protocol):
    """Something that holds memory or processes until it is closed."""

    def close(self) -> None:
        """Release everything."""


Resource = TypeVar("Resource", bound=Closeable)


class ResourceScope:
    """Holds the resource that is open, and closes it."""

    def __init__(self) -> None:
        self._resources: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        """Count the resources that are open."""
        return len(self._resources)

    def get(self, key: Hashable, open_resource: Callable[[], Resource]) -> Resource:
        """Return the resource of a key; it is opened where there is none.

        The resources of other keys are closed first, so that memory holds one of them at a time.
        """
        if key not in self._resources:
            self.close()
            self._resources[key] = open_resource()
        resource: Resource = self._resources[key]
        return resource

    def close(self) -> None:
        """Close every resource."""
        while self._resources:
            _, resource = self._resources.popitem()
            resource.close()


_open_scopes: list[ResourceScope] = []


@contextmanager
def resource_scope() -> Iterator[ResourceScope]:
    """Yield the scope of the outermost block, which is closed when that block ends."""
    scope = _open_scopes[-1] if _open_scopes else ResourceScope()
    _open_scopes.append(scope)
    try:
        yield scope
    finally:
        _open_scopes.pop()
        if not _open_scopes:
            scope.close()
