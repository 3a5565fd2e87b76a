"""What `publish` and `pull` do and print: they send models or their page to the Hub, and fetch models."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from v8.base.errors import ProfileError, listed
from v8.base.registry import annex_hooks
from v8.base.storage import passing_folder
from v8.base.terminal import print_all_lines, print_lines, print_message, print_table
from v8.base.wording import Table, plural
from v8.data.market.sources import CandleSource
from v8.publish.hub import publish as hub
from v8.publish.hub import staging
from v8.publish.hub.client import HubRetryPolicy, check_repo_name
from v8.publish.hub.pull import pull
from v8.publish.hub.staging import Staged, stage_run

RETRIES: Final = HubRetryPolicy(report=print_message)


def check_publishing(repo: str, source: CandleSource) -> None:
    """Refuse before hours of training what publishing would refuse afterwards.

    Raises `PublishError` if the source is simulated, or the token cannot write the repository.
    """
    staging.check_publishing(repo, source, RETRIES)


def publish_run(
    run: Path, repo: str, *, is_private: bool = False, collection: str | None = None, **choice: Any
) -> None:
    """Stage a run, publish it and print its address.

    Args:
        run: Its folder.
        repo: The repository on the Hub, USER/NAME.
        is_private: Create a new repository as a private one.
        collection: Title of a collection of the owner's, into which the repository is put.
        choice: What is published, options of `stage_run`.

    Raises:
        PublishError: If it may not or cannot be published.
        ArtifactError: If the run is damaged.
    """
    with passing_folder("v8-publish") as folder:
        staged = stage_run(run, folder, repo, **choice)
        print_all_lines(_summary(staged))
        published = publish_staged(staged, repo, is_private=is_private, collection=collection)
        sent = published.sent
        if sent:
            print_lines(f"Sent {len(sent.additions)} files, {sent.num_bytes:,} bytes.")
        print_all_lines(_address_lines(published))


def preview_run(run: Path, repo: str, *, is_private: bool, **choice: Any) -> None:
    """Stage a run as `publish_run` does, ask the Hub and print what publishing would change; send nothing."""
    check_repo_name(repo)
    with passing_folder("v8-publish") as folder:
        staged = stage_run(run, folder, repo, **choice)
        plan, difference = hub.preview(staged, repo, is_private=is_private, retries=RETRIES)
        rows = [(file.path, f"{file.size_bytes:,}", file.sha256[:12]) for file in plan.files]
        print_table(Table(("file", "bytes", "sha256"), rows, f"Plan for {repo} (nothing is sent)"))
        print_all_lines(_summary(plan))
        print_all_lines(_would_change("repository", repo, difference))


def publish_page(
    space: str, repo: str, *, is_private: bool, is_dry: bool, collection: str | None = None
) -> None:
    """Stage the page of published models as a Space; publish it, or only print what that would change.

    Raises `PublishError` if it may not or cannot be published, `PullError` if nothing is published in `repo`
    that this user may read.
    """
    check_repo_name(space, "--space")
    stages = annex_hooks("space")
    if not stages:
        raise ProfileError(
            where="--space",
            rule="publishes a page, which an annex of v8 has",
            got="no such annex",
            fix="Install v8 with its annexes",
        )
    with passing_folder("v8-space") as folder:
        staged = stages[0](folder, space, repo)
        print_lines(f"The page of {repo} for {space}: {plural(len(staged.paths), 'file')}, one commit.")
        if is_dry:
            _, difference = hub.preview(staged, space, retries=RETRIES)
            print_all_lines(_would_change("Space", space, difference))
            return
        published = publish_staged(staged, space, is_private=is_private, collection=collection)
    print_all_lines(_address_lines(published, f" at {published.revision[:12]}"))


def publish_staged(
    staged: hub.Publication, repo: str, print_text: Callable[[str], None] = print_lines, **options: Any
) -> hub.Published:
    """Publish what is staged, and print beforehand what will change."""

    def announce(difference: hub.Difference) -> None:
        for line in _differences(repo, difference):
            print_text(line)

    return hub.publish(staged, repo, **options, retries=RETRIES, announce=announce)


def _address_lines(published: hub.Published, revision: str = "") -> Iterator[str]:
    """Yield the address of what was published; `revision` is added to it."""
    yield f"{'Published:' if published.sent else 'Nothing has changed since'} {published.url}{revision}"
    if published.collection:
        yield f"It stands in {published.collection}"


def pull_models(repo: str, series: Sequence[str], revision: str | None, *, is_offline: bool) -> None:
    """Pull models, and print what they are and where they lie."""
    pulled = pull(repo, series or None, revision=revision, is_offline=is_offline)
    files = {name: pulled.manifest.files_of(name) for name in pulled.series}
    rows = []
    for name in pulled.series:
        span = pulled.manifest.data[name]
        num_bytes = sum(file.size_bytes for file in files[name])
        rows.append((name, span.last_open, span.source, f"{num_bytes:,}"))
    title = f"{repo} at {pulled.revision}, profile {pulled.manifest.profile_name}"
    print_table(Table(("series", "data until", "candles from", "bytes"), rows, title))
    if pulled.why_cached:
        print_lines(f"Not confirmed by the Hub, because {pulled.why_cached}.")
    num_files = sum(len(series_files) for series_files in files.values())
    print_lines(
        f"{num_files} files have the published sha256; {pulled.num_downloaded} of them were downloaded now.",
        f"Folder: {pulled.folder}",
        f'In Python: v8.load("{repo}", "{pulled.series[0]}", revision="{pulled.revision}")',
    )


def _summary(staged: Staged) -> Iterator[str]:
    """Yield why some series are held back, and what will be sent."""
    for series, reason in staged.held_back.items():
        yield f"{series}: held back, because {reason}."
    num_bytes = sum(file.size_bytes for file in staged.files)
    yield (
        f"{len(staged.metadata)} models of {staged.manifest.profile_name} for {staged.repo}: "
        f"{len(staged.files)} files, {num_bytes:,} bytes, one commit."
    )


def _would_change(kind: str, repo: str, difference: hub.Difference | None) -> Iterator[str]:
    """Yield what publishing would change; the difference is None if there is no repository yet."""
    if difference:
        yield from _differences(f"{repo} (nothing is sent)", difference)
    elif difference is None:
        yield f"There is no {kind} {repo} yet that this user may see; publishing makes it."
    else:
        yield f"{repo} holds all of it already: publishing changes nothing."


def _differences(repo: str, difference: hub.Difference) -> Iterator[str]:
    """Yield the numbers of files and models that change, by the kind of change; a page has no models."""
    yield f"Difference to what is in {repo}:"
    has_models = any(difference.models.values())
    for change, paths in difference.files.items():
        models = difference.models[change]
        num_models = f"{plural(len(models), 'model')}, " if has_models else ""
        line = f"  {change + ':':<8} {num_models}{plural(len(paths), 'file')}"
        yield f"{line}: {listed(models)}" if models else line
