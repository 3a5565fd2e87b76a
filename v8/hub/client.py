"""Asking the Hub: one repository, how long to insist, and errors that are sentences of ours.

The errors of the Hub's client hold the request, which holds the token: ours are raised outside of them. How
the client is kept from waiting for ever and from committing twice stands in `v8.hub.transport`.
"""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile

from v8.errors import PublishError, V8Error
from v8.hub.endpoint import hub_endpoint
from v8.hub.transport import HTTP, PassingTroubleError, StuckError, Traffic
from v8.redaction import shown
from v8.storage import digest_file, digest_git_blob

_NAME_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPO_NAME: Final = re.compile(f"{_NAME_PART}/{_NAME_PART}")
_TOKEN: Final = re.compile(r"[!-~]+")
_LFS_BATCH: Final = "/info/lfs/objects/batch"

_CLIENT_ERRORS: Final = (HTTP.HTTPError, HTTP.InvalidURL, OSError, RuntimeError, ValueError)
_NO_ANSWER: Final = (HTTP.TransportError, ConnectionError, TimeoutError)

Found = TypeVar("Found")


class Refusal(Enum):
    """What the Hub may refuse; each side has its own sentence for it."""

    TOKEN = "the Hub does not know the token"  # noqa: S105 - a meaning
    FORBIDDEN = "the token does not open it"
    REPOSITORY = "there is no such repository, or it is hidden"
    REVISION = "there is no such revision"
    FILE = "there is no such file"
    OFFLINE = "the client was told to ask nobody"
    OTHER = "anything else, in the words of the Hub"


class UnreachableError(PublishError):
    """The trouble did not pass. Publishing ends with it; pulling looks into the cache."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait for a Hub that has trouble.

    Args:
        timeout_s: Longest silence of one request, in seconds.
        waits_s: Pauses between tries when the Hub does not say how long, in seconds; as many as there
            are, so often is tried again. A try that moved something starts the count anew.
        longest_wait_s: So long after the last try that moved something all tries end that move nothing, in
            seconds, and the Hub may ask for a pause up to this.
        sleep: What waits, in seconds.
        tell: What is told about each pause, and about silence.
    """

    timeout_s: float = 120.0
    waits_s: tuple[float, ...] = (2.0, 4.0, 8.0, 16.0)
    longest_wait_s: float = 300.0
    sleep: Callable[[float], None] = time.sleep
    tell: Callable[[str], None] = lambda text: None

    def insist(
        self, where: str, ask: Callable[[], Found], traffic: Traffic, progress: Callable[[], int]
    ) -> Found:
        """Call `ask`, which uses `traffic`, until it returns; a `PassingTroubleError` of it means once more.

        Messages name `where`, the repository; `progress` counts what was moved for good so far.

        Raises:
            UnreachableError: If the trouble does not pass, or the Hub asks for a longer pause than ours.
        """
        num_failed, moved, since = 0, progress(), time.monotonic()
        while True:
            try:
                with traffic.ending_within(since + self.longest_wait_s - time.monotonic()):
                    return ask()
            except PassingTroubleError as error:
                trouble = error
            if progress() > moved:
                num_failed, moved, since = 0, progress(), time.monotonic()
            wait_s = self._next_wait_s(where, trouble, num_failed, time.monotonic() - since)
            num_failed += 1
            self.tell(f"{where}: {trouble.text}; trying again in {wait_s:g} s")
            self.sleep(wait_s)

    def _next_wait_s(
        self, where: str, trouble: PassingTroubleError, num_failed: int, waited_s: float
    ) -> float:
        if num_failed >= len(self.waits_s):
            rule, when = "the Hub must answer", "later"
            got = f"{trouble.text}, {num_failed + 1} times in a row"
        else:
            wait_s = self.waits_s[num_failed] if trouble.wait_s is None else trouble.wait_s
            if waited_s + wait_s <= self.longest_wait_s:
                return wait_s
            rule, when = f"waits at most {self.longest_wait_s:g} s for the Hub", "after that time"
            got = f"{trouble.text} and the request to wait {wait_s:g} s"
            if trouble.wait_s is None:
                when, got = "later", f"{trouble.text}, {num_failed + 1} times in {waited_s:.0f} s"
        fix = f"Nothing is lost; repeat the same command {when}, it sends only what is missing"
        raise UnreachableError(where=where, rule=rule, got=got, fix=fix)


class HubRepo(ABC):
    """One repository, asked with the user's token: HF_TOKEN, or the one of `hf auth login`, or none.

    It is asked through the `traffic` of `strict_client`. The token appears in no message.

    Raises:
        PublishError: If it cannot be the name of a repository, or HF_ENDPOINT no address.
        V8Error: If the token has a form that no token has.
    """

    kind: ClassVar[str] = "model"
    """What the Hub calls its kind."""

    flag: ClassVar[str] = "--repo"
    """The flag that names it, for messages."""

    def __init__(self, name: str, retries: RetryPolicy, traffic: Traffic) -> None:
        check_repo_name(name, self.flag)
        self.name, self.endpoint, self.cache = name, hub_endpoint(), cache_folder()
        self._token, self._retries, self._traffic = get_token(), retries, traffic
        if self._token and not _TOKEN.fullmatch(self._token):
            # A header with other characters makes the HTTP client quote the whole token in its error.
            raise self.refused(Refusal.TOKEN, "")
        self._api = HfApi(endpoint=self.endpoint, token=self._token or False)

    @abstractmethod
    def refused(self, refusal: Refusal, said: str) -> V8Error:
        """Return the error that the user reads; `said` is in the words of the Hub, without the token."""

    def insist(self, ask: Callable[[], Found]) -> Found:
        """Call the client again and again as `RetryPolicy.insist` does."""
        return self.insist_on(lambda: self.ask(ask))

    def insist_on(self, work: Callable[[], Found], progress: Callable[[], int] = lambda: 0) -> Found:
        """Do work that asks the Hub several times, again and again as `RetryPolicy.insist` does."""
        return self._retries.insist(self.name, work, self._traffic, progress)

    def ask(self, ask: Callable[[], Found]) -> Found:
        """Call the client once, and turn everything it can raise into an error of ours."""
        try:
            return self._traffic.call(self.name, ask)
        except (V8Error, PassingTroubleError):
            raise
        except StuckError:
            trouble: V8Error | PassingTroubleError = self._waits_for_another()
        except _CLIENT_ERRORS as error:
            trouble = self._understood(error)
        raise trouble  # outside of the handler, so that no request and no token hangs on it

    def files(self, revision: str, most: int | None = None) -> dict[str, RepoFile]:
        """Return the files of a commit by their paths, as the Hub lists them, or the first of them."""
        entries = self._api.list_repo_tree(self.name, recursive=True, revision=revision, repo_type=self.kind)
        files = islice((entry for entry in entries if isinstance(entry, RepoFile)), most)
        return {file.path: file for file in files}

    def file(self, path: str, revision: str, *, is_anew: bool = False) -> Path:
        """Download a file into the client's cache, unless it is there."""
        found = self.insist(
            lambda: self._api.hf_hub_download(
                self.name,
                path,
                repo_type=self.kind,
                revision=revision,
                cache_dir=self.cache,
                force_download=is_anew,
            )
        )
        return Path(found)

    def _waits_for_another(self) -> V8Error:
        return UnreachableError(
            where=self.name,
            rule=f"waits at most {self._traffic.timeout_s:g} s for a file",
            got="one that another process is downloading, too",
            fix="Repeat the same command when the other one has ended",
        )

    def _understood(self, error: BaseException) -> V8Error | PassingTroubleError:
        causes = [error]  # uploads of large files wrap what went wrong
        while inner := causes[-1].__cause__ or causes[-1].__context__:
            causes.append(inner)
        for cause in causes:
            if isinstance(cause, PassingTroubleError):
                return cause
            if isinstance(cause, HfHubHTTPError):
                return self._answered(cause)
        root = causes[-1]
        if isinstance(root, OfflineModeIsEnabled):
            return self.refused(Refusal.OFFLINE, "HF_HUB_OFFLINE is set")
        said = self._scrubbed(f"{type(root).__name__}: {root}")
        if isinstance(root, RuntimeError) or any(isinstance(cause, _NO_ANSWER) for cause in causes):
            return PassingTroubleError(said)
        return self.refused(Refusal.OTHER, said)

    def _answered(self, error: HfHubHTTPError) -> V8Error | PassingTroubleError:
        status = error.response.status_code
        if status == 412:
            return PassingTroubleError("another commit came in between")
        said = error.server_message or f"{error}\n".splitlines()[0]
        refusal = _refusal(error, status)
        if refusal is not Refusal.FORBIDDEN and error.response.request.url.path.endswith(_LFS_BATCH):
            refusal, said = Refusal.OTHER, f"{said} to large files by LFS, the way v8 sends them"
        return self.refused(refusal, self._scrubbed(f"status {status}: {said}"))

    def _scrubbed(self, text: str) -> str:
        """Take the token out of a text that somebody else wrote, and make it one short line."""
        return shown(text.replace(self._token, "(token)") if self._token else text, 300)


def _refusal(error: HfHubHTTPError, status: int) -> Refusal:
    if isinstance(error, RevisionNotFoundError):
        return Refusal.REVISION
    if isinstance(error, RemoteEntryNotFoundError):
        return Refusal.FILE
    if isinstance(error, GatedRepoError) or status == 403:
        return Refusal.FORBIDDEN
    if isinstance(error, RepositoryNotFoundError) or status == 404:
        return Refusal.REPOSITORY
    return Refusal.TOKEN if status == 401 else Refusal.OTHER


def is_listed(path: Path, entry: RepoFile | None) -> bool:
    """Compare a file with the id under which the Hub lists it: git's sha1, or the sha256 of a large one."""
    if entry is None or entry.size != path.stat().st_size:
        return False
    if entry.lfs:
        return digest_file(path) == entry.lfs.sha256
    return digest_git_blob(path.read_bytes()) == entry.blob_id


def check_repo_name(name: str, flag: str = "--repo") -> None:
    """Refuse what cannot be the name of a repository.

    Raises:
        PublishError: If it is no `user/name` that the Hub allows.
    """
    is_allowed = len(name) <= 96 and not name.endswith(".git")
    if not is_allowed or not _REPO_NAME.fullmatch(name) or "--" in name or ".." in name:
        raise PublishError(
            where=flag,
            rule="is user/name in letters, digits, '-', '_' and '.', at most 96 characters",
            got=repr(name)[:120],
            fix="Write for example someone/crypto-forecasters",
        )


def cache_folder() -> Path:
    """Return the client's cache, from the environment as it is now and not as it was at import."""
    if chosen := os.environ.get("HF_HUB_CACHE"):
        return Path(chosen).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    return Path(constants.HF_HUB_CACHE)
