"""`python -m v8 publish RUN --repo user/name`: a run's models to the Hugging Face Hub, in one commit."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from v8.errors import listed

if TYPE_CHECKING:
    from v8.hub.staging import Choice, Staged


def publish(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, for example runs/aligned.")],
    repo: Annotated[
        str, typer.Option("--repo", metavar="USER/NAME", help="Where to; made when it does not exist.")
    ],
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository one that only you can see.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be sent; ask nobody, need no token.")
    ] = False,
    only_skilled: Annotated[
        bool, typer.Option("--only-skilled", help="Hold back models that lose to the naive forecast.")
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Publish a run although some of its series are not done.")
    ] = False,
) -> None:
    """Publish a run's models with card, leaderboard and manifest; unchanged content changes nothing."""
    from v8.commands.printing import print_lines, print_table
    from v8.hub.client import check_repo_name
    from v8.hub.staging import Choice

    choice = Choice(is_partial=partial, is_only_skilled=only_skilled)
    if not dry_run:
        publish_run(run, repo, choice, is_private=private)
        return
    check_repo_name(repo)
    with _staged(run, repo, choice) as staged:
        rows = [(file.path, f"{file.size_bytes:,}", file.sha256[:12]) for file in staged.files]
        print_table(f"Plan for {repo} (nothing is sent)", ("file", "bytes", "sha256"), rows)
        print_lines(*_summary(staged, repo))


def publish_run(run: Path, repo: str, choice: Choice | None = None, *, is_private: bool = False) -> None:
    """Stage a run, publish it and print where it is; without a choice it has to be complete.

    Raises:
        PublishError: If it may not or cannot be published.
        ArtifactError: If the run is damaged.
    """
    from v8.commands.printing import print_lines
    from v8.hub.client import RetryPolicy
    from v8.hub.publish import publish as send
    from v8.hub.staging import Choice

    with _staged(run, repo, choice or Choice()) as staged:
        print_lines(*_summary(staged, repo))
        published = send(staged, repo, is_private=is_private, retries=RetryPolicy(tell=_tell))
        sent = published.sent
        if sent is None:
            print_lines(f"Nothing has changed since {published.url}")
            return
        if sent.deletions:
            print_lines(f"Removed files of an earlier run: {listed(sent.deletions)}.")
        print_lines(
            f"Sent {len(sent.additions)} files, {sent.num_bytes:,} bytes.", f"Published: {published.url}"
        )


def check_publishing(repo: str, source: str, *, is_publishable: bool) -> None:
    """Refuse before hours of training what publishing would refuse after them.

    Raises:
        PublishError: If the source is simulated, or the token cannot write the repository.
    """
    from v8.hub.client import RetryPolicy
    from v8.hub.publish import check_access
    from v8.hub.staging import check_source

    check_source(source, is_publishable=is_publishable)
    check_access(repo, RetryPolicy(tell=_tell))


@contextmanager
def _staged(run: Path, repo: str, choice: Choice) -> Iterator[Staged]:
    from v8.hub.staging import stage_run

    with tempfile.TemporaryDirectory(prefix="v8-publish-") as folder:
        yield stage_run(run, Path(folder), repo, choice)


def _summary(staged: Staged, repo: str) -> list[str]:
    num_bytes = sum(file.size_bytes for file in staged.files)
    held_back = [f"{series}: held back, because {reason}." for series, reason in staged.held_back.items()]
    return [
        *held_back,
        f"{len(staged.manifest.series)} models of {staged.manifest.profile_name} for {repo}: "
        f"{len(staged.files)} files, {num_bytes:,} bytes, one commit.",
    ]


def _tell(text: str) -> None:
    sys.stderr.write(text + "\n")
