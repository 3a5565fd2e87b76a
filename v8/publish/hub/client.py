"""Requests to the Hugging Face Hub for one repository: time limits, retries, and errors without the token.

The exceptions of the Hub's client hold the request, which holds the token. So errors of v8 are raised outside
the `except` blocks that caught them, and are not chained to them.

The client is the unmodified package `huggingface_hub`. Four things are done differently here:

- The client may wait for ever. Here every request has a time limit, and a call is abandoned if fewer than
  `SLOWEST_BYTES_S` bytes a second move for that long. Messages count the seconds of silence for the user.
- The client retries some requests and not others, and if the answer to a commit is lost it can commit twice.
  Here it never retries. `RetryPolicy` does, after it has looked at the state of the repository.
- The client transfers large files by xet where that is installed: a client in Rust that has no time limit,
  reports nothing and cannot be interrupted. Here large files are uploaded by LFS and downloaded by plain
  HTTP, which every Hub offers. Xet saves traffic by deduplication, but models have no content in common.
- The client's uploads wait for their threads even when the user presses Ctrl-C. Here a call and each of its
  requests run in threads that can be abandoned: then all waiting ends, and no further request is started.

Version 1 of the client uses `httpx` and version 2 uses `httpx2`, so neither is imported by name here.
"""

import math
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import huggingface_hub as hub
from huggingface_hub import constants, errors
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import _http
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from v8.base.errors import PublishError, V8Error, shown
from v8.base.http_client import RetryFailure, RetryPolicy, TransientError, asked_wait_s, in_thread
from v8.base.storage import digest_file, digest_git_blob, expanded
from v8.publish.hub import hub_endpoint

SLOWEST_BYTES_S: Final = 1_000
"""Bytes a second: a transfer that is slower than this counts as silent."""

REPORT_EVERY_S: Final = 10  # seconds between two messages about silence
_GRACE_S: Final = 3.0
"""Seconds that a call may last beyond its limit: a request that ends by its own limit explains more."""
_SHORTEST_S: Final = 1.0  # seconds that every try may be silent, however little time is left
_ABANDON_LIMIT_S: Final = 5.0
"""Seconds within which an abandoned call ends, unless it waits for another process."""

_PIECE_BYTES: Final = 1 << 16
_RATE_LIMIT_RESET: Final = re.compile(r"\bt\s*=\s*(\d+)")  # seconds, in the header `ratelimit`
_BUSY_STATUSES: Final = frozenset({408, 425, 429})
_CLIENT_LOCK: Final = threading.Lock()  # the client's settings are global

_NAME_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPO_NAME: Final = re.compile(f"{_NAME_PART}/{_NAME_PART}")
_TOKEN: Final = re.compile(r"[!-~]+")
_LFS_BATCH: Final = "/info/lfs/objects/batch"

HTTP: Final = import_module(errors.HfHubHTTPError.__bases__[0].__module__)  # the client's HTTP library
_CLIENT_ERRORS: Final = (HTTP.HTTPError, HTTP.InvalidURL, OSError, RuntimeError, ValueError)
_NO_ANSWER: Final = (HTTP.TransportError, ConnectionError, TimeoutError)

Result = TypeVar("Result")
Kind = Literal["model", "dataset", "space"]


class Refusal(Enum):
    """Why the Hub refused a request."""

    TOKEN = "the token is not valid"  # noqa: S105 - a description, no secret
    FORBIDDEN = "the user has no permission"
    REPOSITORY = "there is no such repository, or the user may not see it"
    REVISION = "there is no such revision"
    FILE = "there is no such file"
    OFFLINE = "the client is in offline mode"
    OTHER = "another reason, in the words of the Hub"


_REFUSALS_BY_ERROR: Final = {
    errors.RevisionNotFoundError: Refusal.REVISION,
    errors.RemoteEntryNotFoundError: Refusal.FILE,
    errors.GatedRepoError: Refusal.FORBIDDEN,  # must stand before its base class, which follows
    errors.RepositoryNotFoundError: Refusal.REPOSITORY,
}
_REFUSALS_BY_STATUS: Final = {401: Refusal.TOKEN, 403: Refusal.FORBIDDEN, 404: Refusal.REPOSITORY}


class UnreachableError(PublishError):
    """The Hub stayed out of reach after all tries. Publishing ends with this; pulling uses the cache."""


@dataclass(frozen=True, kw_only=True)
class HubRetryPolicy(RetryPolicy):
    """How long to wait for a Hub that has trouble; `report` gets a message about each pause and silence."""

    num_tries: int = 5
    first_s: float = 2.0
    longest_s: float = math.inf
    least_share: float = 1.0
    timeout_s: float = 120.0  # longest silence of one request, in seconds
    report: Callable[[str], None] = lambda text: None

    def unreachable_error(self, repo: str, refused: RetryFailure) -> UnreachableError:
        """Return the error for a repository whose Hub stayed out of reach."""
        trouble = refused.trouble
        rule = "the Hub must answer"
        got = f"{trouble.text}, {refused.num_tries} times in a row"
        fix = "Nothing is lost; repeat the same command later, it sends only what is missing"
        if refused.is_late:
            rule = f"waits at most {self.most_s:g} s for the Hub"
            if trouble.wait_s is None:
                got = f"{trouble.text}, {refused.num_tries} times in {refused.waited_s:.0f} s"
            else:
                got = f"{trouble.text} and the request to wait {trouble.wait_s:g} s"
                fix = (
                    "Nothing is lost; repeat the same command after that time, it sends only what is missing"
                )
        return UnreachableError(where=repo, rule=rule, got=got, fix=fix)


class Traffic:
    """The traffic between this process and the Hub, watched for silence.

    Attributes:
        succeeded: Number of successful requests per method: each PUT has stored a large file.
    """

    def __init__(self, retries: HubRetryPolicy) -> None:
        self.retries = retries
        self.succeeded = Counter[str]()
        self._call = _Call(retries.timeout_s)

    def call(self, repo: str, function: Callable[[], Result], left_s: float = math.inf) -> Result:
        """Run a function of the client in a thread of its own; one call at a time.

        Args:
            repo: Name of the repository, with which messages about silence begin.
            function: What is called; the result, or the exception, is passed on.
            left_s: Seconds that are left: the call must not be silent beyond them.

        Raises:
            TransientError: If next to nothing moves for too long.
            UnreachableError: If the call cannot be abandoned, because another process holds the same file.
        """
        timeout_s = min(self.retries.timeout_s, max(_SHORTEST_S, left_s - _GRACE_S))
        call = _Call(timeout_s)
        self._call = call
        answer = in_thread(function)
        try:
            while not wait([answer], timeout=1).done:
                if call.silent_s() >= timeout_s + _GRACE_S:
                    call.abandon()
                    if not wait([answer], timeout=_ABANDON_LIMIT_S).done:
                        raise UnreachableError(
                            where=repo,
                            rule=f"waits at most {self.retries.timeout_s:g} s for a file",
                            got="one that another process is downloading, too",
                            fix="Repeat the same command when the other one has ended",
                        )
                    raise TransientError(f"{call.silence()} for {timeout_s:.3g} s")
                silent_s = call.seconds_to_report()
                if silent_s:
                    silence = f"{call.silence()} for {silent_s} s of at most {timeout_s:.3g} s"
                    self.retries.report(f"{repo}: {silence}")
        finally:
            call.abandon()  # after an interruption no request of the call may go on
        return answer.result()

    def send(self, send: Callable[..., Any], request: Any, *, stream: bool = False, **options: Any) -> Any:
        """Send a request in a thread of its own; the client's `send` is replaced by this method.

        Args:
            send: The client's own method.
            request: The request.
            stream: Whether the caller reads the body of the response piece by piece.
            options: Further options of `send`.

        Raises:
            TransientError: If there is no answer, or the Hub is busy, or the call was abandoned.
        """
        call = self._call
        call.check(is_new_request=True)
        # Some functions of the client set no time limit; they get one here, too.
        limits = dict.fromkeys(("connect", "read", "write", "pool"), call.timeout_s)
        request.extensions = {**request.extensions, "timeout": limits}
        request.stream = _WatchedStream(request.stream, call)

        def send_and_check() -> Any:
            try:
                response = send(request, stream=True, **options)
                response.stream = _WatchedStream(response.stream, call)
                status = response.status_code
                if status not in _BUSY_STATUSES and status < 500 and not call.is_abandoned.done():
                    if not stream:
                        response.read()
                        call.note_traffic(None)
                    self.succeeded[response.request.method] += response.is_success
                    return response
                response.close()
                trouble = TransientError(f"status {status}", _requested_wait_s(response))
            except HTTP.TransportError as error:
                trouble = TransientError(f"no answer ({type(error).__name__})")
            call.trouble = trouble
            raise trouble  # outside the handler: it must not be chained to a request, which holds the token

        answer = in_thread(send_and_check)
        wait([answer, call.is_abandoned], return_when=FIRST_COMPLETED)
        call.check()
        return answer.result()


class _Call:
    """The state of one call: when data last moved, what failed, and whether the call was abandoned."""

    def __init__(self, timeout_s: float) -> None:
        now = time.monotonic()
        self.timeout_s = timeout_s
        self.is_abandoned: Future[None] = Future()  # has a result once the call is abandoned
        self.trouble: TransientError | None = None
        self._silent_since = now  # moves on with every byte, so that a slow transfer counts as silent, too
        self._last_traffic = now
        self._reported_s = 0

    def note_traffic(self, num_bytes: int | None) -> None:
        """Note that this number of bytes moved; None for a complete request."""
        now = time.monotonic()
        self._last_traffic = now
        credit_s = self.silent_s() if num_bytes is None else num_bytes / SLOWEST_BYTES_S
        self._silent_since = min(now, self._silent_since + credit_s)

    def silent_s(self) -> float:
        """Return for how many seconds next to nothing moved."""
        return time.monotonic() - self._silent_since

    def silence(self) -> str:
        """Describe the silence as a clause."""
        is_slow = self._last_traffic > self._silent_since
        return f"fewer than {SLOWEST_BYTES_S:,} bytes a second moved" if is_slow else "no bytes moved"

    def seconds_to_report(self) -> int | None:
        """Return the seconds of silence to report now; None if there is nothing new to report."""
        silent_s = int(self.silent_s()) // REPORT_EVERY_S * REPORT_EVERY_S
        is_new = silent_s > self._reported_s
        self._reported_s = silent_s
        return silent_s if is_new else None

    def abandon(self) -> None:
        """End all waiting of this call; it starts no further request."""
        if not self.is_abandoned.done():
            self.is_abandoned.set_result(None)

    def check(self, *, is_new_request: bool = False) -> None:
        """Raise `TransientError` if the call was abandoned, or before a new request after a failed one.

        A call may run several requests in parallel, and any of their errors may reach the caller first. So
        each of them raises the first failure again.
        """
        if is_new_request and self.trouble:
            raise TransientError(self.trouble.text, self.trouble.wait_s)
        if self.is_abandoned.done():
            raise TransientError("the call was given up")


class _WatchedStream(HTTP.SyncByteStream):  # type: ignore[name-defined, misc]
    """The body of a request or response; every piece of it is noted as traffic."""

    def __init__(self, body: Any, call: _Call) -> None:
        self._body = body
        self._call = call

    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._body:
                for start in range(0, len(piece), _PIECE_BYTES):
                    self._call.check()
                    yield piece[start : start + _PIECE_BYTES]
                    self._call.note_traffic(min(_PIECE_BYTES, len(piece) - start))
        except HTTP.TimeoutException as error:
            trouble = TransientError(f"no answer ({type(error).__name__})")
        else:
            return
        raise trouble  # the client does not retry this type of exception

    def close(self) -> None:
        """Close the body, and the connection with it."""
        if hasattr(self._body, "close"):
            self._body.close()


@contextmanager
def strict_client(retries: HubRetryPolicy, *, shows_progress: bool = False) -> Iterator[Traffic]:
    """Change the client as described at the top of this module, until the block ends.

    The client is global to the process, so threads wait here for each other. Its HTTP client is still made by
    the user's own factory, with the user's proxies and certificates. All settings are restored at the end.

    Args:
        retries: Time limits, and the function that reports pauses.
        shows_progress: Whether the client draws progress bars, which are for terminals only.
    """
    with _CLIENT_LOCK:
        factory = _http._GLOBAL_CLIENT_FACTORY
        traffic = Traffic(retries)
        had_bars = not are_progress_bars_disabled()
        had_no_xet = constants.HF_HUB_DISABLE_XET

        def make_watched_client() -> Any:
            client: Any = factory()
            client.send = partial(traffic.send, client.send)
            return client

        hub.set_client_factory(make_watched_client)
        constants.HF_HUB_DISABLE_XET = True
        if not shows_progress:
            disable_progress_bars()
        try:
            yield traffic
        finally:
            constants.HF_HUB_DISABLE_XET = had_no_xet
            if had_bars:
                enable_progress_bars()
            hub.set_client_factory(factory)


def _requested_wait_s(response: Any) -> float | None:
    """Return the pause that the Hub asks for by `Retry-After` or its rate limit header, in seconds."""
    wait_s = asked_wait_s(response.headers.get("retry-after"))
    if wait_s is None and response.status_code == 429:
        reset = _RATE_LIMIT_RESET.search(response.headers.get("ratelimit", ""))
        return float(reset[1]) if reset else None
    return wait_s


class HubRepo(ABC):
    """One repository, accessed with the user's token: HF_TOKEN, or the one of `hf auth login`, or none.

    Args:
        name: `user/name`.
        traffic: What `strict_client` returned.
        kind: The Hub's name for the kind of repository.
        flag: The parameter that names the repository in messages. The token appears in no message.

    Raises:
        PublishError: If it cannot be the name of a repository, or HF_ENDPOINT is not an address.
        V8Error: If the token has a form that no token has.
    """

    def __init__(self, name: str, traffic: Traffic, kind: Kind = "model", flag: str = "param:repo") -> None:
        check_repo_name(name, flag)
        self.name = name
        self.kind = kind
        self.flag = flag
        self.endpoint = hub_endpoint()
        self.cache = cache_folder()
        self._token = hub.get_token()
        self._traffic = traffic
        self._end_s = math.inf
        if self._token and not _TOKEN.fullmatch(self._token):
            # For a header with other characters the HTTP client would quote the token in its exception.
            raise self.refusal_error(Refusal.TOKEN, "")
        self._api = hub.HfApi(endpoint=self.endpoint, token=self._token or False)

    @property
    def owner(self) -> str:
        """User or organisation that the repository belongs to."""
        return self.name.partition("/")[0]

    @abstractmethod
    def refusal_error(self, refusal: Refusal, message: str) -> V8Error:
        """Return the error that the user reads; `message` is the Hub's own, without the token."""

    def request_with_retries(self, request: Callable[[], Result]) -> Result:
        """Call a function of the client, again if the Hub was out of reach."""
        return self.run_with_retries(lambda: self.request(request))

    def run_with_retries(self, work: Callable[[], Result], progress: Callable[[], int] = lambda: 0) -> Result:
        """Run a function that makes several requests, again if the Hub was out of reach.

        Args:
            work: The function; a `TransientError` of it means to run it again.
            progress: Counts what has been transferred for good.

        Raises:
            UnreachableError: If the Hub stays out of reach, or asks for a longer pause than allowed.
        """
        retries = self._traffic.retries

        def run_within(left_s: float) -> Result:
            self._end_s = time.monotonic() + left_s
            return work()

        def report_pause(trouble: TransientError, pause_s: float) -> None:
            retries.report(f"{self.name}: {trouble.text}; trying again in {pause_s:g} s")

        def refuse(refused: RetryFailure) -> UnreachableError:
            return retries.unreachable_error(self.name, refused)

        return retries.call(run_within, refuse, before_pause=report_pause, progress=progress)

    def request(self, function: Callable[[], Result]) -> Result:
        """Call a function of the client once, and translate all exceptions that it can raise."""
        try:
            return self._traffic.call(self.name, function, self._end_s - time.monotonic())
        except (V8Error, TransientError):
            raise
        except _CLIENT_ERRORS as error:
            translated = self._translated(error)
        raise translated  # outside the handler: it must not be chained to a request, which holds the token

    def files(self, revision: str, most: int | None = None) -> dict[str, RepoFile]:
        """Return the files of a commit by their paths, as the Hub lists them; at most so many if a number."""
        entries = self._api.list_repo_tree(self.name, recursive=True, revision=revision, repo_type=self.kind)
        files = islice((entry for entry in entries if isinstance(entry, RepoFile)), most)
        return {file.path: file for file in files}

    def file(self, path: str, revision: str, *, is_forced: bool = False) -> Path:
        """Download a file into the client's cache, unless it is there; with `is_forced` in any case."""

        def download() -> str:
            return self._api.hf_hub_download(
                self.name,
                path,
                repo_type=self.kind,
                revision=revision,
                cache_dir=self.cache,
                force_download=is_forced,
            )

        return Path(self.request_with_retries(download))

    def _translated(self, error: BaseException) -> V8Error | TransientError:
        """Return the error that the user reads for an exception of the client, or a temporary trouble."""
        causes = [error]  # uploads of large files raise exceptions that wrap the real cause
        cause = error.__cause__ or error.__context__
        while cause is not None:
            causes.append(cause)
            cause = cause.__cause__ or cause.__context__
        for cause in causes:
            if isinstance(cause, TransientError):
                return cause
            if isinstance(cause, errors.HfHubHTTPError):
                return self._translated_answer(cause)
        root = causes[-1]
        if isinstance(root, errors.OfflineModeIsEnabled):
            return self.refusal_error(Refusal.OFFLINE, "HF_HUB_OFFLINE is set")
        message = self._without_token(f"{type(root).__name__}: {root}")
        if isinstance(root, RuntimeError) or any(isinstance(cause, _NO_ANSWER) for cause in causes):
            return TransientError(message)
        return self.refusal_error(Refusal.OTHER, message)

    def _translated_answer(self, error: errors.HfHubHTTPError) -> V8Error | TransientError:
        """Return the error that the user reads for an answer of the Hub, or a temporary trouble."""
        status = error.response.status_code
        if status == 412:
            return TransientError("another commit came in between")
        message = error.server_message or f"{error}\n".splitlines()[0]
        refusal = _refusal_of(error, status)
        if refusal is not Refusal.FORBIDDEN and error.response.request.url.path.endswith(_LFS_BATCH):
            refusal = Refusal.OTHER
            message = f"{message} to large files by LFS, the way v8 sends them"
        return self.refusal_error(refusal, self._without_token(f"status {status}: {message}"))

    def _without_token(self, text: str) -> str:
        """Remove the token from a text that somebody else wrote, and make it one short line."""
        if self._token:
            text = text.replace(self._token, "(token)")
        return shown(text, 300)


def _refusal_of(error: errors.HfHubHTTPError, status: int) -> Refusal:
    for kind, refusal in _REFUSALS_BY_ERROR.items():
        if isinstance(error, kind):
            return refusal
    return _REFUSALS_BY_STATUS.get(status, Refusal.OTHER)


def is_listed(path: Path, entry: RepoFile | None) -> bool:
    """Return whether a file has the content that the Hub lists: by git's sha1, large files by sha256."""
    if entry is None or entry.size != path.stat().st_size:
        return False
    if entry.lfs:
        return digest_file(path) == entry.lfs.sha256
    return digest_git_blob(path.read_bytes()) == entry.blob_id


def check_repo_name(name: str, flag: str = "param:repo") -> None:
    """Check the name of a repository.

    Raises:
        PublishError: If it is no `user/name` that the Hub allows; `flag` is the parameter that named it.
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
    """Return the folder of the client's cache, from the environment as it is now, not as it was at import."""
    chosen = os.environ.get("HF_HUB_CACHE")
    if chosen:
        return expanded(chosen, variable="HF_HUB_CACHE")
    home = os.environ.get("HF_HOME")
    if home:
        return expanded(home, variable="HF_HOME") / "hub"
    return expanded(constants.HF_HUB_CACHE, variable="HF_HOME")
