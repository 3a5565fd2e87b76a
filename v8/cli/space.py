"""`python -m v8 publish --repo user/models --space user/page`: the page of published models as a Space."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from v8.wording import plural

if TYPE_CHECKING:
    from v8.hub.publish import Difference


def publish_page(space: str, repo: str, *, is_private: bool, is_dry: bool) -> None:
    """Stage the Space, publish it or tell what publishing would change, and print where it is.

    Raises:
        PublishError: If it may not or cannot be published.
        PullError: If nothing is published in `repo` that this user may read.
    """
    from v8.cli.printing import print_lines
    from v8.hub.client import RetryPolicy, check_repo_name
    from v8.hub.space import preview_space, publish_space, stage
    from v8.storage import passing_folder

    check_repo_name(space, "--space")
    retries = RetryPolicy(tell=_tell)
    with passing_folder("v8-space") as folder:
        staged = stage(folder, space, repo)
        print_lines(f"The page of {repo} for {space}: {plural(len(staged.paths), 'file')}, one commit.")
        if is_dry:
            print_lines(*_told(space, preview_space(staged, space, retries=retries)))
            return
        announced = publish_space(
            staged,
            space,
            is_private=is_private,
            retries=retries,
            announce=lambda found: print_lines(f"Difference to what is in {space}:", *_lines(found)),
        )
        is_new = "Published" if announced.sent else "Nothing has changed since"
        print_lines(f"{is_new}: {announced.url} at {announced.revision[:12]}")


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _told(space: str, found: Difference | None) -> list[str]:
    if found is None:
        return [f"There is no Space {space} yet that this user may see; publishing makes it."]
    if not found:
        return [f"{space} holds all of it already: publishing changes nothing."]
    return [f"Difference to what is in {space} (nothing is sent):", *_lines(found)]


def _lines(found: Difference) -> list[str]:
    return [f"  {what + ':':<8} {plural(len(paths), 'file')}" for what, paths in found.files.items()]
