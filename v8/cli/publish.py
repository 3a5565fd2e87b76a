"""`python -m v8 publish RUN --repo user/name`: a run's models to the Hugging Face Hub, in one commit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from v8.errors import ProfileError, listed
from v8.invocation import command
from v8.tables import Table

if TYPE_CHECKING:
    from v8.hub.layout import Choice, Staged
    from v8.hub.publish import Difference


def publish(
    repo: Annotated[
        str, typer.Option("--repo", metavar="USER/NAME", help="Where to; made when it does not exist.")
    ],
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run folder, for example runs/aligned.")
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(
            "--space",
            metavar="USER/NAME",
            help="Publish the page of the models in --repo instead.",
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository one that only you can see.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Ask the Hub what would change and print it; send nothing.")
    ] = False,
    only_skilled: Annotated[
        bool,
        typer.Option(
            "--only-skilled",
            help="Hold back models that lose to the naive forecast, by more than chance. Those that only a "
            "better baseline beats are published and say so.",
        ),
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Publish a run although some of its series are not done.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove published models that the run does not have.")
    ] = False,
) -> None:
    """Publish a run's models with card, leaderboard and manifest; or the page that shows them."""
    from v8.cli.space import publish_page
    from v8.hub.layout import Choice

    if (run is None) == (space is None):
        raise _one_of_two("neither" if run is None else "both")
    if run is None or space is not None:
        publish_page(str(space), repo, is_private=private, is_dry=dry_run)
        return
    choice = Choice(is_partial=partial, is_only_skilled=only_skilled)
    if dry_run:
        _print_preview(run, repo, choice, is_private=private, is_pruning=prune)
    else:
        publish_run(run, repo, choice, is_private=private, is_pruning=prune)


def _one_of_two(got: str) -> ProfileError:
    return ProfileError(
        where=command("publish"),
        rule="publishes a run folder to --repo, or the page of the models in --repo to --space",
        got=got,
        fix="Write for example runs/aligned --repo you/fleet, and then --repo you/fleet --space you/page",
    )


def publish_run(
    run: Path,
    repo: str,
    choice: Choice | None = None,
    *,
    is_private: bool = False,
    is_pruning: bool = False,
) -> None:
    """Stage a run, publish it and print where it is; without a choice it has to be complete.

    Published models that the run does not have stay, or go with `is_pruning`.

    Raises:
        PublishError: If it may not or cannot be published.
        ArtifactError: If the run is damaged.
    """
    from v8.cli.printing import print_lines
    from v8.hub.client import RetryPolicy
    from v8.hub.layout import Choice
    from v8.hub.publish import publish as send

    def announce(found: Difference) -> None:
        print_lines(f"Difference to what is in {repo}:", *_differences(found))

    with _staged(run, repo, choice or Choice()) as staged:
        print_lines(*_summary(staged, repo))
        retries = RetryPolicy(tell=_tell)
        published = send(
            staged, repo, is_private=is_private, is_pruning=is_pruning, retries=retries, announce=announce
        )
        if published.sent is None:
            print_lines(f"Nothing has changed since {published.url}")
            return
        sent = f"{len(published.sent.additions)} files, {published.sent.num_bytes:,} bytes"
        print_lines(f"Sent {sent}.", f"Published: {published.url}")


def check_publishing(repo: str, source: str, *, is_publishable: bool) -> None:
    """Refuse before hours of training what publishing would refuse after them.

    Raises:
        PublishError: If the source is simulated, or the token cannot write the repository.
    """
    from v8.hub.client import RetryPolicy
    from v8.hub.layout import check_source
    from v8.hub.publish import check_access

    check_source(source, is_publishable=is_publishable)
    check_access(repo, RetryPolicy(tell=_tell))


def _print_preview(run: Path, repo: str, choice: Choice, *, is_private: bool, is_pruning: bool) -> None:
    from v8.cli.printing import print_lines, print_table
    from v8.hub.client import RetryPolicy, check_repo_name
    from v8.hub.publish import preview

    check_repo_name(repo)
    with _staged(run, repo, choice) as staged:
        retries = RetryPolicy(tell=_tell)
        plan, found = preview(staged, repo, is_private=is_private, is_pruning=is_pruning, retries=retries)
        rows = [(file.path, f"{file.size_bytes:,}", file.sha256[:12]) for file in plan.files]
        print_table(Table(("file", "bytes", "sha256"), rows, f"Plan for {repo} (nothing is sent)"))
        print_lines(*_summary(plan, repo))
        if found is None:
            print_lines(f"There is no repository {repo} yet that this user may see; publishing makes it.")
        elif found:
            print_lines(f"Difference to what is in {repo} (nothing is sent):", *_differences(found))
        else:
            print_lines(f"{repo} holds all of it already: publishing changes nothing.")


def _differences(found: Difference) -> list[str]:
    from v8.wording import plural

    models = found.models
    lines = []
    for what, paths in found.files.items():
        told = f"  {what + ':':<8} {plural(len(models[what]), 'model')}, {plural(len(paths), 'file')}"
        lines.append(f"{told}: {listed(models[what])}" if models[what] else told)
    return lines


@contextmanager
def _staged(run: Path, repo: str, choice: Choice) -> Iterator[Staged]:
    from v8.hub.layout import stage_run
    from v8.storage import passing_folder

    with passing_folder("v8-publish") as folder:
        yield stage_run(run, folder, repo, choice)


def _summary(staged: Staged, repo: str) -> list[str]:
    num_bytes = sum(file.size_bytes for file in staged.files)
    held_back = [f"{series}: held back, because {reason}." for series, reason in staged.held_back.items()]
    return [
        *held_back,
        f"{len(staged.run.metadata)} models of {staged.manifest.profile_name} for {repo}: "
        f"{len(staged.files)} files, {num_bytes:,} bytes, one commit.",
    ]


def _tell(text: str) -> None:
    sys.stderr.write(text + "\n")
