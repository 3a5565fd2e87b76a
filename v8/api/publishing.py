"""Publishing from Python: what the command `publish` does, without its lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from v8.hub.client import RetryPolicy
from v8.hub.publish import publish
from v8.hub.staging import Choice, stage_run
from v8.storage import passing_folder


def publish_folder(run: Path, repo: str, *, series: Sequence[str] = (), is_private: bool = False) -> str:
    """Publish finished models of a run beside those that the repository has; return the commit's address.

    Args:
        run: A run folder.
        repo: "user/name"; made when missing.
        series: Those to publish; all of the run, which must be complete, when empty.
        is_private: Whether a repository that is made is hidden from others.

    Raises:
        PublishError: If it may not or cannot be published.
        ArtifactError: If the run is damaged.
    """
    choice = Choice(is_partial=bool(series), series=tuple(series))
    retries = RetryPolicy(tell=lambda text: print(text, file=sys.stderr))  # noqa: T201 - the notebook waits
    with passing_folder("v8-publish") as folder:
        staged = stage_run(run, folder, repo, choice)
        return publish(staged, repo, is_private=is_private, retries=retries).url
