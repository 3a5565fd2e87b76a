"""The client of the Hub made strict: time limits, no retries of its own, errors that are sentences of ours.

The client is `huggingface_hub`, unmodified, but three of its habits are not wanted here. It waits for
ever, so every request gets a time limit. It retries some requests and not others, and once the answer
to a commit is lost it can commit twice, so it does not retry at all: `RetryPolicy` does, after looking
at what is there. And its errors hold the request, which holds the token: ours are raised outside of them.

It speaks `httpx` in its first major version and `httpx2` in its second, and neither is named here.
"""

from __future__ import annotations

import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from huggingface_hub import HfApi, close_session, get_session, get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from v8.errors import PublishError, V8Error
from v8.storage import digest_file, digest_git_blob

DEFAULT_ENDPOINT: Final = "https://huggingface.co"
TOKEN_PAGE: Final = f"{DEFAULT_ENDPOINT}/settings/tokens"

_NAME_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPO_NAME: Final = re.compile(f"{_NAME_PART}/{_NAME_PART}")
_TOKEN: Final = re.compile(r"[!-~]+")
_RESET: Final = re.compile(r"\bt\s*=\s*(\d+)")
_BUSY: Final = frozenset({408, 425, 429})

_HTTP: Final = import_module(HfHubHTTPError.__bases__[0].__module__)
"""What the client speaks HTTP with."""

_CLIENT_ERRORS: Final = (_HTTP.HTTPError, _HTTP.InvalidURL, OSError, RuntimeError, ValueError)
_NO_ANSWER: Final = (_HTTP.TransportError, ConnectionError, TimeoutError)

_ONE_AT_A_TIME: Final = threading.Lock()

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


class PassingTroubleError(Exception):
    """The Hub did not answer, or asked to come back later. What it did meanwhile has to be looked at.

    Args:
        text: What happened, as a clause without secrets.
        wait_s: How long the Hub asks to wait, in seconds; None when it did not say.
    """

    def __init__(self, text: str, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.text, self.wait_s = text, wait_s


class UnreachableError(PublishError):
    """The trouble did not pass. Publishing ends with it; pulling looks into the cache."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait for a Hub that has trouble.

    Args:
        timeout_s: Longest silence of one request, in seconds.
        waits_s: Pauses between tries when the Hub does not say how long, in seconds; as many as there
            are, so often is tried again. A try that moved something starts the count anew.
        longest_wait_s: The Hub may ask for a pause up to this, in seconds.
        sleep: What waits, in seconds.
        tell: What is told about each pause.
    """

    timeout_s: float = 120.0
    waits_s: tuple[float, ...] = (2.0, 4.0, 8.0, 16.0)
    longest_wait_s: float = 300.0
    sleep: Callable[[float], None] = time.sleep
    tell: Callable[[str], None] = lambda text: None

    def insist(self, where: str, ask: Callable[[], Found], progress: Callable[[], int] = lambda: 0) -> Found:
        """Call `ask` until it returns; a `PassingTroubleError` of it means trying again.

        Messages name `where`, the repository; `progress` counts what was moved for good so far.

        Raises:
            UnreachableError: If the trouble does not pass, or the Hub asks for a longer pause than ours.
        """
        num_failed, moved = 0, progress()
        while True:
            try:
                return ask()
            except PassingTroubleError as error:
                trouble = error
            if progress() > moved:
                num_failed, moved = 0, progress()
            wait_s = self._next_wait_s(where, trouble, num_failed)
            num_failed += 1
            self.tell(f"{where}: {trouble.text}; trying again in {wait_s:g} s")
            self.sleep(wait_s)

    def _next_wait_s(self, where: str, trouble: PassingTroubleError, num_failed: int) -> float:
        if num_failed >= len(self.waits_s):
            rule, when = "the Hub must answer", "later"
            got = f"{trouble.text}, {num_failed + 1} times in a row"
        else:
            wait_s = self.waits_s[num_failed] if trouble.wait_s is None else trouble.wait_s
            if wait_s <= self.longest_wait_s:
                return wait_s
            rule, when = f"waits at most {self.longest_wait_s:g} s for the Hub", "after that time"
            got = f"{trouble.text} and the request to wait {wait_s:g} s"
        fix = f"Nothing is lost; repeat the same command {when}, it sends only what is missing"
        raise UnreachableError(where=where, rule=rule, got=got, fix=fix)


class HubRepo(ABC):
    """One model repository, asked with the user's token: HF_TOKEN, or the one of `hf auth login`, or none.

    Use it inside `strict_client`. The token appears in no message.

    Raises:
        PublishError: If it cannot be the name of a repository.
        V8Error: If the token has a form that no token has.
    """

    def __init__(self, name: str, retries: RetryPolicy) -> None:
        check_repo_name(name)
        self.name, self.endpoint = name, hub_endpoint()
        self._token, self._retries = get_token(), retries
        if self._token and not _TOKEN.fullmatch(self._token):
            # A header with other characters makes the HTTP client quote the whole token in its error.
            raise self.refused(Refusal.TOKEN, "")
        self._api = HfApi(endpoint=self.endpoint, token=self._token or False)

    @abstractmethod
    def refused(self, refusal: Refusal, said: str) -> V8Error:
        """Return the error that the user reads; `said` is in the words of the Hub, without the token."""

    def insist(self, ask: Callable[[], Found]) -> Found:
        """Call the client again and again as `RetryPolicy.insist` does."""
        return self._retries.insist(self.name, lambda: self.ask(ask))

    def ask(self, ask: Callable[[], Found]) -> Found:
        """Call the client once, and turn everything it can raise into an error of ours."""
        try:
            return ask()
        except (V8Error, PassingTroubleError):
            raise
        except _CLIENT_ERRORS as error:
            trouble = self._understood(error)
        raise trouble  # outside of the handler, so that no request and no token hangs on it

    def files(self, revision: str, most: int | None = None) -> dict[str, RepoFile]:
        """Return the files of a commit by their paths, as the Hub lists them, or the first of them."""
        entries = self._api.list_repo_tree(self.name, recursive=True, revision=revision)
        files = islice((entry for entry in entries if isinstance(entry, RepoFile)), most)
        return {file.path: file for file in files}

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
        said = error.server_message or str(error).splitlines()[0]
        return self.refused(_refusal(error, status), self._scrubbed(f"status {status}: {said}"))

    def _scrubbed(self, text: str) -> str:
        """Take the token out of a text that somebody else wrote, and make it one short line."""
        shown = text.replace(self._token, "(token)") if self._token else text
        return " ".join(shown.split())[:300]


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


def hub_endpoint() -> str:
    """Return the address of the Hub: `HF_ENDPOINT`, read now and not at import, or the public one."""
    return (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def check_repo_name(name: str) -> None:
    """Refuse what cannot be the name of a repository.

    Raises:
        PublishError: If it is no `user/name` that the Hub allows.
    """
    is_allowed = len(name) <= 96 and not name.endswith(".git")
    if not is_allowed or not _REPO_NAME.fullmatch(name) or "--" in name or ".." in name:
        raise PublishError(
            where="--repo",
            rule="is user/name in letters, digits, '-', '_' and '.', at most 96 characters",
            got=repr(name)[:120],
            fix="Write for example someone/crypto-forecasters",
        )


@contextmanager
def strict_client(timeout_s: float, *, shows_progress: bool = False) -> Iterator[Counter[str]]:
    """Give the client time limits and take its retries away, until the block ends.

    The client is one for the whole process, so threads wait here for each other. It stays the one that the
    user's own factory made, with its proxies and certificates; the next one is as patient as before.
    What it yields counts the requests that succeeded by their method: each PUT has stored a large file.

    No request may be silent for longer than `timeout_s` seconds; progress bars are for terminals only.
    """
    with _ONE_AT_A_TIME:
        client, succeeded, had_bars = get_session(), Counter[str](), not are_progress_bars_disabled()
        client.send = _strict(client.send, timeout_s, succeeded)  # type: ignore[method-assign]
        if not shows_progress:
            disable_progress_bars()
        try:
            yield succeeded
        finally:
            if had_bars:
                enable_progress_bars()
            close_session()


def _strict(send: Callable[..., Any], timeout_s: float, succeeded: Counter[str]) -> Callable[..., Any]:
    limits = dict.fromkeys(("connect", "read", "write", "pool"), timeout_s)

    def send_strictly(request: Any, **options: Any) -> Any:
        # Some calls of the Hub's client ask for no limit; there is one for them, too.
        request.extensions = {**request.extensions, "timeout": limits}
        try:
            response = send(request, **options)
        except _HTTP.TransportError as error:
            trouble = PassingTroubleError(f"no answer ({type(error).__name__})")
        else:
            if response.status_code not in _BUSY and response.status_code < 500:
                succeeded[request.method] += response.is_success
                return response
            trouble = PassingTroubleError(f"status {response.status_code}", _asked_wait_s(response))
            response.close()
        raise trouble

    return send_strictly


def _asked_wait_s(response: Any) -> float | None:
    """Return the pause the Hub asks for, from `Retry-After` or its rate limit header, in seconds."""
    retry_after = response.headers.get("retry-after", "").strip()
    if retry_after.isdecimal():
        return float(retry_after)
    reset = _RESET.search(response.headers.get("ratelimit", "")) if response.status_code == 429 else None
    return float(reset[1]) if reset else None
