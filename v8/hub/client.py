"""Asking the Hub: one repository, how long to insist, and errors that are sentences of ours.

The errors of the Hub's client hold the request, which holds the token: ours are raised outside of them.

The client is `huggingface_hub`, unmodified, but four of its habits are not wanted here.

- It waits for ever. Here every request has a limit, and a call during which fewer than `SLOWEST_BYTES_S`
  move for that long is given up; the user sees the silence counted.
- It retries some requests and not others, and once the answer to a commit is lost it can commit twice. Here
  it never retries: `v8.net.RetryPolicy` does, after looking at what is there.
- It moves large files by xet where that is installed: a client in Rust that takes no limit, tells nothing and
  cannot be interrupted. Here large files go by LFS and come by plain downloads, which every Hub offers; xet
  saves traffic by deduplication, and models of a few megabytes share nothing.
- Its uploads wait for their threads even when the user presses Ctrl-C. Here a call runs in a thread that can
  be left, and so does every request of it: leaving ends all waiting, and no request is begun any more.

It speaks `httpx` in its first major version and `httpx2` in its second, and neither is named here.
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
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import huggingface_hub as hub
import yaml
from huggingface_hub import constants, errors
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import _http
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from v8.errors import PublishError, V8Error, shown
from v8.hub import TOKEN_PAGE, hub_endpoint
from v8.net import Refused, RetryPolicy, TransientError, asked_wait_s, in_thread
from v8.storage import digest_file, digest_git_blob, expanded, packaged

SLOWEST_BYTES_S: Final = 1_000
"""A transfer that is slower, in bytes a second, counts as silence as far as it is."""

TOLD_EVERY_S: Final = 10  # silence is told about every so many seconds
_GRACE_S: Final = 3.0  # a request that ends by its own limit says more than a call that is left
_SHORTEST_S: Final = 1.0  # every try may be silent for this long, in seconds, however late it begins
_TO_LEAVE_S: Final = 5.0
"""A call that is left ends within this, in seconds, unless it waits for another process."""

_PIECE_BYTES: Final = 1 << 16
_RESET: Final = re.compile(r"\bt\s*=\s*(\d+)")
_BUSY: Final = frozenset({408, 425, 429})
_ONE_AT_A_TIME: Final = threading.Lock()

_NAME_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPO_NAME: Final = re.compile(f"{_NAME_PART}/{_NAME_PART}")
_TOKEN: Final = re.compile(r"[!-~]+")
_LFS_BATCH: Final = "/info/lfs/objects/batch"
_REFUSALS: Final = yaml.safe_load(packaged("v8.hub", "refusals.yaml"))

HTTP: Final = import_module(errors.HfHubHTTPError.__bases__[0].__module__)  # what the client speaks HTTP with
_CLIENT_ERRORS: Final = (HTTP.HTTPError, HTTP.InvalidURL, OSError, RuntimeError, ValueError)
_MEANINGS: Final = {
    errors.RevisionNotFoundError: "REVISION",
    errors.RemoteEntryNotFoundError: "FILE",
    errors.GatedRepoError: "FORBIDDEN",  # which is a kind of the next
    errors.RepositoryNotFoundError: "REPOSITORY",
}
_STATUSES: Final = {401: "TOKEN", 403: "FORBIDDEN", 404: "REPOSITORY"}
_NO_ANSWER: Final = (HTTP.TransportError, ConnectionError, TimeoutError)

Found = TypeVar("Found")
Kind = Literal["model", "dataset", "space"]


def told(what: str, kind: str, **words: object) -> dict[str, str]:
    """Return the parts of an error from `refusals.yaml`."""
    parts = _REFUSALS[what]["OTHER"] | _REFUSALS[what].get(kind, {})
    return {part: text.format(**words) for part, text in parts.items()}


class UnreachableError(PublishError):
    """The trouble did not pass. Publishing ends with it; pulling looks into the cache."""


@dataclass(frozen=True, kw_only=True)
class HubRetryPolicy(RetryPolicy):
    """How long to wait for a Hub that has trouble; `tell` hears of each pause, and of silence."""

    num_tries: int = 5
    first_s: float = 2.0
    longest_s: float = math.inf
    least_share: float = 1.0
    timeout_s: float = 120.0  # longest silence of one request, in seconds
    tell: Callable[[str], None] = lambda text: None

    def refused(self, where: str, refused: Refused) -> UnreachableError:
        """Return the error for trouble with a repository that did not pass."""
        kind = "OTHER"
        if refused.is_late:
            kind = "LATE" if refused.trouble.wait_s is None else "ASKED_TO_WAIT"
        return UnreachableError(**told("wait", kind, where=where, refused=refused, most=self.most_s))


class Traffic:
    """What moves between this process and the Hub, and for how long next to nothing did.

    Attributes:
        succeeded: Requests that succeeded by their method: each PUT has stored a large file.
    """

    def __init__(self, retries: HubRetryPolicy) -> None:
        self.retries = retries
        self.succeeded = Counter[str]()
        self._call = _Call(retries.timeout_s)

    def call(self, where: str, ask: Callable[[], Found], left_s: float = math.inf) -> Found:
        """Return or raise what `ask` does in a thread of its own; one call at a time.

        What is told about silence begins with `where`, the repository. A call with `left_s` seconds left must
        not be silent beyond them.

        Raises:
            TransientError: If next to nothing moves for too long.
            UnreachableError: If it cannot be left either: another process holds the file it wants.
        """
        timeout_s = min(self.retries.timeout_s, max(_SHORTEST_S, left_s - _GRACE_S))
        call = self._call = _Call(timeout_s)
        answer = in_thread(ask)
        try:
            while not wait([answer], timeout=1).done:
                if call.silent_s() >= timeout_s + _GRACE_S:
                    call.leave()
                    if not wait([answer], timeout=_TO_LEAVE_S).done:
                        words = {"where": where, "most": self.retries.timeout_s}
                        raise UnreachableError(**told("wait", "SAME_FILE", **words))
                    raise TransientError(f"{call.silence()} for {timeout_s:.3g} s")
                past_s = call.next_told()
                if past_s:
                    silence = f"{call.silence()} for {past_s} s of at most {timeout_s:.3g} s"
                    self.retries.tell(f"{where}: {silence}")
        finally:
            call.leave()  # after an interruption nothing of it may go on
        return answer.result()

    def send(self, send: Callable[..., Any], request: Any, *, stream: bool = False, **options: Any) -> Any:
        """Send a request in a thread of its own; raise instead of an answer that means to try again.

        Raises `TransientError` if there is no answer, or the Hub is busy, or the call was left.
        """
        call = self._call
        call.check(is_beginning=True)
        # Some calls of the Hub's client ask for no limit; there is one for them, too.
        limits = dict.fromkeys(("connect", "read", "write", "pool"), call.timeout_s)
        request.extensions = {**request.extensions, "timeout": limits}
        request.stream = _Watched(request.stream, call)

        def answered() -> Any:
            try:
                response = send(request, stream=True, **options)
                response.stream = _Watched(response.stream, call)
                status = response.status_code
                if status not in _BUSY and status < 500 and not call.is_left.done():
                    if not stream:
                        response.read()
                        call.moved(None)
                    self.succeeded[response.request.method] += response.is_success
                    return response
                response.close()
                trouble = TransientError(f"status {status}", _asked_wait_s(response))
            except HTTP.TransportError as error:
                trouble = TransientError(f"no answer ({type(error).__name__})")
            call.trouble = trouble
            raise trouble  # outside of the handler, so that no request and no token hangs on it

        answer = in_thread(answered)
        wait([answer, call.is_left], return_when=FIRST_COMPLETED)
        call.check()
        return answer.result()


class _Call:
    """One call: when something last moved, what failed of it, and whether it was left."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.is_left: Future[None] = Future()
        self.trouble: TransientError | None = None
        self._moved_at = self._heard_at = time.monotonic()
        self._told_s = 0

    def moved(self, num_bytes: int | None) -> None:
        """Note that so many bytes moved; None for a whole request."""
        self._heard_at = now = time.monotonic()
        paid_s = self.silent_s() if num_bytes is None else num_bytes / SLOWEST_BYTES_S
        self._moved_at = min(now, self._moved_at + paid_s)

    def silent_s(self) -> float:
        """Return for how long next to nothing moved, in seconds."""
        return time.monotonic() - self._moved_at

    def silence(self) -> str:
        """Say how little moves."""
        is_drip = self._heard_at > self._moved_at
        return f"fewer than {SLOWEST_BYTES_S:,} bytes a second moved" if is_drip else "no bytes moved"

    def next_told(self) -> int | None:
        """Return the seconds of silence to tell now; None when they have been told, or are too few."""
        whole_s = int(self.silent_s()) // TOLD_EVERY_S * TOLD_EVERY_S
        is_new = whole_s > self._told_s
        self._told_s = whole_s
        return whole_s if is_new else None

    def leave(self) -> None:
        """End all waiting of this call, and let it begin nothing more."""
        if not self.is_left.done():
            self.is_left.set_result(None)

    def check(self, *, is_beginning: bool = False) -> None:
        """Raise TransientError when the call was left, or to begin a request after one that failed.

        Of several requests at once any may be heard first, so each tells what happened.
        """
        if is_beginning and self.trouble:
            raise TransientError(self.trouble.text, self.trouble.wait_s)
        if self.is_left.done():
            raise TransientError("the call was given up")


class _Watched(HTTP.SyncByteStream):  # type: ignore[name-defined, misc]
    """A body, whose every piece is noted."""

    def __init__(self, body: Any, call: _Call) -> None:
        self._body = body
        self._call = call

    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._body:
                for start in range(0, len(piece), _PIECE_BYTES):
                    self._call.check()
                    yield piece[start : start + _PIECE_BYTES]
                    self._call.moved(min(_PIECE_BYTES, len(piece) - start))
        except HTTP.TimeoutException as error:
            trouble = TransientError(f"no answer ({type(error).__name__})")
        else:
            return
        raise trouble  # which the client does not retry

    def close(self) -> None:
        """Close the body, and the connection with it."""
        if hasattr(self._body, "close"):
            self._body.close()


def _watched(client: Any, traffic: Traffic) -> Any:
    """Let a client send every request as `Traffic` does."""
    client.send = partial(traffic.send, client.send)
    return client


@contextmanager
def strict_client(retries: HubRetryPolicy, *, shows_progress: bool = False) -> Iterator[Traffic]:
    """Make the client behave as said at the top of this module, until the block ends.

    The client is one for the whole process, so threads wait here for each other. It sends through the one
    that the user's own factory makes, with its proxies and certificates; the next one is as before. Progress
    bars are for terminals only.
    """
    with _ONE_AT_A_TIME:
        factory = _http._GLOBAL_CLIENT_FACTORY
        traffic = Traffic(retries)
        had_bars = not are_progress_bars_disabled()
        had_no_xet = constants.HF_HUB_DISABLE_XET
        hub.set_client_factory(lambda: _watched(factory(), traffic))
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


def _asked_wait_s(response: Any) -> float | None:
    """Return the pause the Hub asks for, from `Retry-After` or its rate limit header, in seconds."""
    asked_s = asked_wait_s(response.headers.get("retry-after"))
    reset = _RESET.search(response.headers.get("ratelimit", "")) if response.status_code == 429 else None
    return float(reset[1]) if asked_s is None and reset else asked_s


class HubRepo(ABC):
    """One repository, asked with the user's token: HF_TOKEN, or the one of `hf auth login`, or none.

    It is asked through the `traffic` of `strict_client`; `kind` is what the Hub calls its kind, `flag` what
    names it in messages. The token appears in none.

    Raises `PublishError` if it cannot be the name of a repository, or HF_ENDPOINT no address; `V8Error` if
    the token has a form that no token has.
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
            # A header with other characters makes the HTTP client quote the whole token in its error.
            raise self.refused("TOKEN", "")
        self._api = hub.HfApi(endpoint=self.endpoint, token=self._token or False)

    @abstractmethod
    def refused(self, refusal: str, said: str) -> V8Error:
        """Return the error that the user reads, by a key of `refusals.yaml`.

        That is TOKEN, FORBIDDEN, REPOSITORY, REVISION, FILE, OFFLINE or OTHER; `said` is in the words of the
        Hub, without the token.
        """

    def told(self, what: str, kind: str, **words: object) -> dict[str, str]:
        """Return the parts of the error for a refusal of what was asked for, from `refusals.yaml`."""
        words |= {"name": self.name, "owner": self.name.partition("/")[0], "flag": self.flag}
        return told(what, kind, **words, endpoint=self.endpoint, token_page=TOKEN_PAGE)

    def call(self, ask: Callable[[], Found]) -> Found:
        """Call the client again and again while trouble may pass."""
        return self.call_on(lambda: self.ask(ask))

    def call_on(self, work: Callable[[], Found], progress: Callable[[], int] = lambda: 0) -> Found:
        """Do work that asks the Hub several times, again and again while trouble may pass.

        It raises `TransientError` to be done once more; `progress` counts what was moved for good.
        Raises `UnreachableError` if the trouble does not pass, or the Hub asks for a longer pause than ours.
        """
        retries = self._traffic.retries

        def within(left_s: float) -> Found:
            self._end_s = time.monotonic() + left_s
            return work()

        def say(trouble: TransientError, pause_s: float) -> None:
            retries.tell(f"{self.name}: {trouble.text}; trying again in {pause_s:g} s")

        refuse = partial(retries.refused, self.name)
        return retries.call(within, refuse, before_pause=say, progress=progress)

    def ask(self, ask: Callable[[], Found]) -> Found:
        """Call the client once, and turn everything it can raise into an error of ours."""
        try:
            return self._traffic.call(self.name, ask, self._end_s - time.monotonic())
        except (V8Error, TransientError):
            raise
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
        download = partial(self._api.hf_hub_download, self.name, path, repo_type=self.kind, revision=revision)
        return Path(self.call(lambda: download(cache_dir=self.cache, force_download=is_anew)))

    def _understood(self, error: BaseException) -> V8Error | TransientError:
        causes = [error]  # uploads of large files wrap what went wrong
        while inner := causes[-1].__cause__ or causes[-1].__context__:
            causes.append(inner)
        for cause in causes:
            if isinstance(cause, TransientError):
                return cause
            if isinstance(cause, errors.HfHubHTTPError):
                return self._answered(cause)
        root = causes[-1]
        if isinstance(root, errors.OfflineModeIsEnabled):
            return self.refused("OFFLINE", "HF_HUB_OFFLINE is set")
        said = self._scrubbed(f"{type(root).__name__}: {root}")
        if isinstance(root, RuntimeError) or any(isinstance(cause, _NO_ANSWER) for cause in causes):
            return TransientError(said)
        return self.refused("OTHER", said)

    def _answered(self, error: errors.HfHubHTTPError) -> V8Error | TransientError:
        status = error.response.status_code
        if status == 412:
            return TransientError("another commit came in between")
        said = error.server_message or f"{error}\n".splitlines()[0]
        refusal = _refusal(error, status)
        if refusal != "FORBIDDEN" and error.response.request.url.path.endswith(_LFS_BATCH):
            refusal = "OTHER"
            said = f"{said} to large files by LFS, the way v8 sends them"
        return self.refused(refusal, self._scrubbed(f"status {status}: {said}"))

    def _scrubbed(self, text: str) -> str:
        """Take the token out of a text that somebody else wrote, and make it one short line."""
        return shown(text.replace(self._token, "(token)") if self._token else text, 300)


def _refusal(error: errors.HfHubHTTPError, status: int) -> str:
    named = (name for kind, name in _MEANINGS.items() if isinstance(error, kind))
    return next(named, _STATUSES.get(status, "OTHER"))


def is_listed(path: Path, entry: RepoFile | None) -> bool:
    """Compare a file with the id under which the Hub lists it: git's sha1, or the sha256 of a large one."""
    if entry is None or entry.size != path.stat().st_size:
        return False
    if entry.lfs:
        return digest_file(path) == entry.lfs.sha256
    return digest_git_blob(path.read_bytes()) == entry.blob_id


def check_repo_name(name: str, flag: str = "param:repo") -> None:
    """Refuse what cannot be the name of a repository.

    Raises `PublishError` if it is no `user/name` that the Hub allows.
    """
    is_allowed = len(name) <= 96 and not name.endswith(".git")
    if not is_allowed or not _REPO_NAME.fullmatch(name) or "--" in name or ".." in name:
        raise PublishError(**told("publish", "NAME", flag=flag, said=repr(name)[:120]))


def cache_folder() -> Path:
    """Return the client's cache, from the environment as it is now and not as it was at import."""
    chosen = os.environ.get("HF_HUB_CACHE")
    if chosen:
        return expanded(chosen, variable="HF_HUB_CACHE")
    home = os.environ.get("HF_HOME")
    if home:
        return expanded(home, variable="HF_HOME") / "hub"
    return expanded(constants.HF_HUB_CACHE, variable="HF_HOME")
