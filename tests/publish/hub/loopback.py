"""A small Hugging Face Hub on 127.0.0.1, for the unmodified `huggingface_hub` client.

It keeps repositories, Spaces as `spaces/user/name` and datasets as `datasets/user/name`, as lists of
commits, each with all its files, and collections of them; it answers the routes that publishing and pulling
use, counts what it is asked, and misbehaves when a test says so. Large files are served from a second port
under another name, as the real Hub serves them from another host: so redirects are real.

Routes, as `requests`, `count` and the faults name them:

    whoami create validate-yaml preupload lfs-batch lfs-put lfs-verify commit info tree resolve lfs-get
    xet-token collection collections collection-items

A client that moves large files by xet asks for `xet-token` first, whose answer here is always an error of the
server; with `hub.has_xet` files are offered by xet, too.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml
from local_server import start_serving

USER = "someone"
WRITE_TOKEN = "hf_WriteTokenOfTheLoopbackHub"
READ_TOKEN = "hf_ReadTokenOfTheLoopbackHub"
STRANGER_TOKEN = "hf_StrangersTokenOfTheLoopbackHub"
"""May write, but only below `stranger/`."""

MAX_REGULAR_BYTES = 10_000_000
GITATTRIBUTES = b"*.keras filter=lfs diff=lfs merge=lfs -text\n"

UNKNOWN = "unknown"

_REPO = r"(?P<repo>[^/]+/[^/]+)"
_API = r"/api/(?P<kind>models|spaces|datasets)/"
_PAGE = r"/((?P<kind>spaces|datasets)/)?"
_SLUG = r"(?P<slug>[^/]+/[^/]+)"
_ROUTES = {
    "whoami": ("GET", r"/api/whoami-v2"),
    "create": ("POST", r"/api/repos/create"),
    "validate-yaml": ("POST", r"/api/validate-yaml"),
    "collections": ("POST", r"/api/collections"),
    "collection": ("GET", rf"/api/collections/{_SLUG}"),
    "collection-items": ("POST", rf"/api/collections/{_SLUG}/items"),
    "preupload": ("POST", rf"{_API}{_REPO}/preupload/(?P<revision>[^/]+)"),
    "lfs-batch": ("POST", rf"{_PAGE}{_REPO}\.git/info/lfs/objects/batch"),
    "lfs-verify": ("POST", rf"{_PAGE}{_REPO}\.git/info/lfs/objects/verify"),
    "lfs-put": ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})"),
    "lfs-get": ("GET|HEAD", r"/lfs/(?P<oid>[0-9a-f]{64})"),
    "commit": ("POST", rf"{_API}{_REPO}/commit/(?P<revision>[^/]+)"),
    "xet-token": ("GET", rf"{_API}{_REPO}/xet-(read|write)-token/(?P<revision>[^/]+)"),
    "tree": ("GET", rf"{_API}{_REPO}/tree/(?P<revision>[^/]+)"),
    "info": ("GET", rf"{_API}{_REPO}(/revision/(?P<revision>[^/]+))?"),
    "resolve": ("GET|HEAD", rf"{_PAGE}{_REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)"),
}


@dataclass(frozen=True)
class Account:
    """Whom a token belongs to.

    Args:
        name: User name; repositories below it can be written.
        role: `write` or `read`.
    """

    name: str
    role: str = "write"


@dataclass(frozen=True)
class Blob:
    """One file of a commit."""

    content: bytes
    is_lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def oid(self) -> str:
        """The git blob id: of the content, or of the pointer file that stands for a large one."""
        return git_sha1(self.pointer if self.is_lfs else self.content)

    @property
    def pointer(self) -> bytes:
        version = "version https://git-lfs.github.com/spec/v1"
        return f"{version}\noid sha256:{self.sha256}\nsize {len(self.content)}\n".encode()


@dataclass(frozen=True)
class Commit:
    """One commit with every file of the repository after it."""

    oid: str
    title: str
    files: Mapping[str, Blob]
    description: str = ""


@dataclass
class Repo:
    """A repository: its commits, oldest first; the first holds `.gitattributes` only."""

    is_private: bool
    commits: list[Commit]

    def find(self, revision: str) -> Commit | None:
        if revision == "main":
            return self.commits[-1]
        return next((commit for commit in self.commits if commit.oid == revision), None)


@dataclass
class Collection:
    """A collection: its title, and what it holds, each a kind and a name."""

    title: str
    is_private: bool
    items: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Request:
    """One request that arrived; `num_bytes` is the size of its body."""

    method: str
    route: str
    path: str
    num_bytes: int


@dataclass
class Fault:
    """What goes wrong with the next `times` requests of a route whose path holds `where`."""

    kind: str
    times: int
    where: str = ""
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    byte: int = 0
    message: str = ""


@dataclass(frozen=True)
class Answer:
    """What the Hub says."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class LoopbackHub:
    """The server; a context manager. Read `hub.url` for HF_ENDPOINT or `endpoint=`."""

    def __init__(self) -> None:
        self.tokens = {
            WRITE_TOKEN: Account(USER),
            READ_TOKEN: Account(USER, "read"),
            STRANGER_TOKEN: Account("stranger"),
        }
        self.orgs: list[str] = []
        self.repos: dict[str, Repo] = {}
        self.collections: dict[str, Collection] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[Request] = []
        self.warnings: list[str] = []
        self.mistakes: list[str] = []
        self._faults: dict[str, list[Fault]] = {}
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self.is_garbling = self.has_xet = False
        # To some versions of the client a host with another port is the same host.
        self._hub = _Server(self, "127.0.0.1")
        self._cdn = _Server(self, "localhost")

    def __enter__(self) -> LoopbackHub:
        self._hub.start()
        self._cdn.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Go down: nothing answers any more."""
        self._stopping.set()
        self._hub.stop()
        self._cdn.stop()

    # What a test reads

    @property
    def url(self) -> str:
        return self._hub.url

    @property
    def cdn_url(self) -> str:
        return self._cdn.url

    @property
    def routes(self) -> list[str]:
        """Routes of all requests, in order."""
        return [request.route for request in self.requests]

    def count(self, route: str | None = None) -> int:
        """Return how many requests came, to one route or in all."""
        return len(self.requests) if route is None else self.routes.count(route)

    @property
    def uploaded_bytes(self) -> int:
        """Bytes of bodies that carry file content: LFS PUTs and commits."""
        return sum(request.num_bytes for request in self.requests if request.route in ("lfs-put", "commit"))

    def forget(self) -> None:
        """Forget the requests counted so far."""
        self.requests.clear()

    def commits(self, repo: str) -> list[Commit]:
        """Return the commits after the one that created the repository."""
        return self.repos[repo].commits[1:]

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        """Return the content of every file but `.gitattributes`."""
        commit = self.repos[repo].find(revision)
        assert commit is not None, revision
        return {path: blob.content for path, blob in commit.files.items() if path != ".gitattributes"}

    # What a test puts in place without a client

    def create(self, repo: str, files: Mapping[str, bytes] | None = None, *, is_private: bool = False) -> str:
        """Make a repository, with a commit of some files when there are any; return the newest oid."""
        first = Commit(_new_oid(repo), "initial commit", {".gitattributes": Blob(GITATTRIBUTES, False)})
        self.repos[repo] = Repo(is_private, [first])
        return self.commit(repo, dict(files)) if files else first.oid

    def commit(self, repo: str, changes: Mapping[str, bytes | None], title: str = "by the test") -> str:
        """Add a commit that writes, or with None deletes, files; return its oid."""
        blobs = {
            path: None if content is None else Blob(content, is_large(path, len(content)))
            for path, content in changes.items()
        }
        for blob in blobs.values():
            if blob and blob.is_lfs:
                self.objects[blob.sha256] = blob.content
        return self._add_commit(repo, title, blobs)

    # What a test lets go wrong

    def answer(
        self,
        route: str,
        status: int,
        *,
        times: int = 1,
        where: str = "",
        message: str = "a fault of the test",
        **headers: str,
    ) -> None:
        """Answer with an error and do nothing; `retry_after="3"` becomes `Retry-After: 3`."""
        named = {name.replace("_", "-").title(): value for name, value in headers.items()}
        self._plan(route, Fault("answer", times, where, status=status, headers=named, message=message))

    def cut(self, route: str, *, times: int = 1, where: str = "") -> None:
        """Do nothing and close the connection; a download is cut in the middle of its body."""
        self._plan(route, Fault("cut", times, where))

    def lose_answer(self, route: str, *, times: int = 1) -> None:
        """Do what is asked, then close the connection without an answer."""
        self._plan(route, Fault("lose", times))

    def slow(self, route: str, seconds: float, *, times: int = 1, where: str = "") -> None:
        """Do what is asked, then answer late."""
        self._plan(route, Fault("slow", times, where, seconds=seconds))

    def stall(self, route: str, *, times: int = 1, where: str = "") -> None:
        """Read no body, do nothing and say nothing, until the server stops."""
        self._plan(route, Fault("stall", times, where))

    def drip(self, route: str, seconds: float, *, times: int = 1, where: str = "") -> None:
        """Do what is asked, then send a byte of the body every so many seconds."""
        self._plan(route, Fault("drip", times, where, seconds=seconds))

    def flip(self, route: str, *, times: int = 1, where: str = "", byte: int = 0) -> None:
        """Send a body with the lowest bit of one byte changed (`resolve`; `lfs-get` for large files)."""
        self._plan(route, Fault("flip", times, where, byte=byte))

    def garble(self, *, times: int = 1) -> None:
        """Keep other content than a commit brings: the lowest bit of every first byte is changed."""
        self._plan("commit", Fault("garble", times))

    def behave(self) -> None:
        """Drop all faults that are left."""
        self._faults.clear()

    def _plan(self, route: str, fault: Fault) -> None:
        assert route in _ROUTES, f"{route} is none of {', '.join(_ROUTES)}"
        self._faults.setdefault(route, []).append(fault)

    def take_fault(self, route: str, path: str) -> Fault | None:
        with self._lock:
            for fault in self._faults.get(route, []):
                if fault.times > 0 and fault.where in path:
                    fault.times -= 1
                    return fault
        return None

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end of the server."""
        self._stopping.wait(seconds)

    # The Hub itself

    def handle(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer one request."""
        url = urlsplit(target)
        route, parts = find_route(method, target)
        with self._lock:
            self.requests.append(Request(method, route, unquote(url.path), len(body)))
            if route == UNKNOWN:
                return _error(404, f"no route {method} {url.path}")
            return self._answer(
                Call(route, parts, parse_qs(url.query), headers, body, self._account(headers))
            )

    def _account(self, headers: Mapping[str, str]) -> Account | str | None:
        """Return who asks, None for nobody, or the text "unknown" for a wrong token."""
        words = headers.get("authorization", "").split()
        return self.tokens.get(words[1], "unknown") if len(words) == 2 else None

    def _answer(self, call: Call) -> Answer:
        if call.route in ("lfs-put", "lfs-get"):  # signed addresses of another host; no token is sent
            return getattr(self, f"_{call.route.replace('-', '_')}")(call)
        if call.account == "unknown":
            message = "Invalid credentials in Authorization header"
            return _error(401, message, X_Error_Message=message)
        refusal = self._refuse(call)
        return refusal or getattr(self, f"_{call.route.replace('-', '_')}")(call)

    def _refuse(self, call: Call) -> Answer | None:
        name = call.parts.get("repo")
        if name is None:
            return None
        repo = self.repos.get(name)
        owner = name.removeprefix("spaces/").removeprefix("datasets/").partition("/")[0]
        is_reader = isinstance(call.account, Account) and call.account.name == owner
        if repo is None or (repo.is_private and not is_reader):
            status = 404 if isinstance(call.account, Account) else 401
            return _error(status, "Repository not found", X_Error_Code="RepoNotFound")
        if "revision" in call.parts and not repo.find(call.parts["revision"] or "main"):
            return _error(404, "Invalid rev id", X_Error_Code="RevisionNotFound")
        is_writing = call.route in ("preupload", "lfs-batch", "lfs-verify", "commit")
        return self._refuse_writing(call.account, owner) if is_writing else None

    @staticmethod
    def _refuse_writing(account: Account | str | None, owner: str) -> Answer | None:
        if not isinstance(account, Account):
            return _error(401, "Unauthorized")
        if account.role != "write" or account.name != owner:
            return _error(403, f"Forbidden: you don't have the rights to write below {owner}")
        return None

    def _whoami(self, call: Call) -> Answer:
        if not isinstance(call.account, Account):
            return _error(401, "Unauthorized")
        auth = {"accessToken": {"displayName": "loopback", "role": call.account.role}, "type": "access_token"}
        orgs = [{"name": name, "roleInOrg": "write"} for name in self.orgs]
        return _json({"type": "user", "name": call.account.name, "orgs": orgs, "auth": auth})

    def _create(self, call: Call) -> Answer:
        content = call.json()
        if not isinstance(call.account, Account):
            return _error(401, "Unauthorized")
        owner = content.get("organization") or call.account.name
        refusal = self._refuse_writing(call.account, owner)
        if refusal:
            return refusal
        kind = content.get("type") or "model"
        name = f"{'' if kind == 'model' else f'{kind}s/'}{owner}/{content['name']}"
        if kind == "space" and content.get("sdk") not in ("docker", "gradio", "static"):
            return _error(400, "a Space needs an sdk")
        if name in self.repos:
            return _json({"error": "You already created this repo", "url": f"{self.url}/{name}"}, status=409)
        self.create(name, is_private=content.get("visibility") == "private")
        return _json({"url": f"{self.url}/{name}", "name": name})

    def _collections(self, call: Call) -> Answer:
        content = call.json()
        if refusal := self._refuse_writing(call.account, content["namespace"]):
            return refusal
        if not 0 < len(content["title"]) <= 60:
            return _error(400, "a title has 1 to 60 letters")
        # The Hub names a collection by its title and a number of its own.
        words = re.sub(r"[^a-z0-9]+", "-", content["title"].lower())
        slug = f"{content['namespace']}/{words}-{hashlib.sha1(content['title'].encode()).hexdigest()[:24]}"
        if slug in self.collections:
            return _json({"error": "Collection already exists", "slug": slug}, status=409)
        self.collections[slug] = Collection(content["title"], content["private"])
        return self._told_collection(slug)

    def _collection(self, call: Call) -> Answer:
        known = call.parts["slug"] in self.collections
        return self._told_collection(call.parts["slug"]) if known else _error(404, "Collection not found")

    def _collection_items(self, call: Call) -> Answer:
        slug = call.parts["slug"]
        asked = call.json()["item"]
        if slug not in self.collections:
            return _error(404, "Collection not found")
        if refusal := self._refuse_writing(call.account, slug.partition("/")[0]):
            return refusal
        folder = "" if asked["type"] == "model" else f"{asked['type']}s/"
        if folder + asked["id"] not in self.repos:
            return _error(404, "no such item on the Hub")
        items = self.collections[slug].items
        item = (asked["type"], asked["id"])
        if item in items:
            return _error(409, "the item is already in the collection")
        items.append(item)
        return self._told_collection(slug)

    def _told_collection(self, slug: str) -> Answer:
        found = self.collections[slug]
        items = [
            {"_id": str(place), "type": kind, "id": name, "position": place}
            for place, (kind, name) in enumerate(found.items)
        ]
        about = {"slug": slug, "title": found.title, "owner": {"name": slug.partition("/")[0]}}
        about |= {"items": items, "lastUpdated": "2026-11-23T00:00:00.000Z", "position": 0}
        return _json(about | {"private": found.is_private, "theme": "green", "upvotes": 0})

    def _validate_yaml(self, call: Call) -> Answer:
        content = call.json()
        match = re.match(r"---\n(.*?)\n---\n", content["content"], re.DOTALL)
        try:
            card = yaml.safe_load(match[1]) if match else None
        except yaml.YAMLError as error:
            return _json({"errors": [{"message": str(error)}], "warnings": []}, status=400)
        warnings = [] if isinstance(card, dict) else [{"message": "empty or missing yaml metadata"}]
        self.warnings += [warning["message"] for warning in warnings]
        return _json({"errors": [], "warnings": warnings})

    def _preupload(self, call: Call) -> Answer:
        commit = self._find(call)
        files = call.json()["files"]
        if len(files) > 256:
            return _error(413, "at most 256 files a call")
        return _json({"files": [self._mode(file, commit) for file in files]})

    @staticmethod
    def _mode(file: Mapping[str, Any], commit: Commit) -> dict[str, Any]:
        base64.b64decode(file["sample"], validate=True)
        is_lfs = is_large(file["path"], file["size"])
        mode = {"path": file["path"], "uploadMode": "lfs" if is_lfs else "regular", "shouldIgnore": False}
        known = commit.files.get(file["path"])
        if known:
            mode["oid"] = known.sha256 if known.is_lfs else known.oid
        return mode

    def _lfs_batch(self, call: Call) -> Answer:
        content = call.json()
        return _json(
            {"transfer": "basic", "objects": [self._action(call, one) for one in content["objects"]]}
        )

    def _action(self, call: Call, asked: Mapping[str, Any]) -> dict[str, Any]:
        oid = asked["oid"]
        known = {"oid": oid, "size": asked["size"]}
        if oid in self.objects:
            return known
        verify = f"{self.url}/{call.parts['repo']}.git/info/lfs/objects/verify"
        actions = {"upload": {"href": f"{self.cdn_url}/lfs/{oid}"}, "verify": {"href": verify}}
        return known | {"actions": actions}

    def _lfs_put(self, call: Call) -> Answer:
        if hashlib.sha256(call.body).hexdigest() != call.parts["oid"]:
            return _error(400, "the content has another sha256")
        self.objects[call.parts["oid"]] = call.body
        return Answer(200, headers={"ETag": f'"{call.parts["oid"]}"'})

    def _lfs_verify(self, call: Call) -> Answer:
        content = call.json()
        is_known = len(self.objects.get(content["oid"], b"")) == content["size"]
        return _json({}) if is_known else _error(404, "no such object")

    def _commit(self, call: Call) -> Answer:
        lines = [json.loads(line) for line in call.body.splitlines()]
        header = lines[0]["value"]
        changes = lines[1:]
        name = call.parts["repo"]
        newest = self.repos[name].commits[-1].oid
        if header.get("parentCommit", newest) != newest:
            return _error(412, "A commit has happened since. Please refresh and try again.")
        blobs: dict[str, Blob | None] = {}
        for change in changes:
            value = change["value"]
            if change["key"] == "lfsFile" and value["oid"] not in self.objects:
                return _error(400, "LFS pointer pointed to a file that does not exist")
            blobs[value["path"]] = self._changed(change["key"], value)
        oid = self._add_commit(name, header["summary"], blobs, header.get("description") or "")
        url = f"{self.url}/{name}/commit/{oid}"
        return _json({"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": ""})

    def _changed(self, key: str, value: Mapping[str, Any]) -> Blob | None:
        if key == "lfsFile":
            return Blob(self.objects[value["oid"]], True)
        if key != "file":
            return None
        content = base64.b64decode(value["content"])
        return Blob(_flipped(content, 0) if self.is_garbling else content, False)

    def _info(self, call: Call) -> Answer:
        commit = self._find(call)
        name = call.parts["repo"]
        siblings = [{"rfilename": path} for path in sorted(commit.files)]
        about = {"id": name, "modelId": name, "sha": commit.oid, "private": self.repos[name].is_private}
        return _json(about | {"siblings": siblings, "tags": []}, X_Repo_Commit=commit.oid)

    def _tree(self, call: Call) -> Answer:
        return Answer(200, json.dumps(list(_tree_entries(self._find(call)))).encode())

    def _resolve(self, call: Call) -> Answer:
        commit = self._find(call)
        headers = {"X-Repo-Commit": commit.oid}
        blob = commit.files.get(call.parts["path"])
        if blob is None:
            return Answer(404, b"Entry not found", headers | {"X-Error-Code": "EntryNotFound"})
        if not blob.is_lfs:
            return _content(blob.content, call.headers, headers | {"ETag": f'"{blob.oid}"'})
        linked = {"X-Linked-Size": str(len(blob.content)), "X-Linked-Etag": f'"{blob.sha256}"'}
        location = {"Location": f"{self.cdn_url}/lfs/{blob.sha256}", "ETag": f'"{blob.oid}"'}
        token = f"{self.url}/api/models/{call.parts['repo']}/xet-read-token/{commit.oid}"
        xet = {"X-Xet-Hash": blob.sha256, "Link": f'<{token}>; rel="xet-auth"'} if self.has_xet else {}
        return Answer(302, headers=headers | linked | location | xet)

    def _xet_token(self, call: Call) -> Answer:
        return _error(503, "this Hub has no xet")

    def _lfs_get(self, call: Call) -> Answer:
        content = self.objects.get(call.parts["oid"])
        if content is None:
            return _error(404, "no such object")
        return _content(content, call.headers, {"ETag": f'"{call.parts["oid"]}"'})

    def _find(self, call: Call) -> Commit:
        found = self.repos[call.parts["repo"]].find(call.parts["revision"] or "main")
        assert found is not None  # see `_refuse`
        return found

    def _add_commit(
        self, name: str, title: str, changes: Mapping[str, Blob | None], description: str = ""
    ) -> str:
        commits = self.repos[name].commits
        files = {**commits[-1].files, **changes}
        kept = {path: blob for path, blob in sorted(files.items()) if blob is not None}
        commits.append(Commit(_new_oid(name, len(commits)), title, kept, description))
        return commits[-1].oid


@dataclass(frozen=True)
class Call:
    """A request, read: its route, the named parts of its path, and who asks."""

    route: str
    parts: Mapping[str, Any]
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    account: Account | str | None

    def json(self) -> Any:
        return json.loads(self.body)


def find_route(method: str, target: str) -> tuple[str, dict[str, Any]]:
    """Return the route of a request and the named parts of its path."""
    path = urlsplit(target).path
    for route, (methods, pattern) in _ROUTES.items():
        match = re.fullmatch(pattern, path)
        if match and method in methods.split("|"):
            parts = {name: value and unquote(value) for name, value in match.groupdict().items()}
            if (kind := parts.pop("kind", None)) in ("spaces", "datasets"):
                parts["repo"] = f"{kind}/{parts['repo']}"
            return route, parts
    return UNKNOWN, {}


def git_sha1(content: bytes) -> str:
    """Return the id git gives to a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def is_large(path: str, num_bytes: int) -> bool:
    """Return whether a file is kept as a large one."""
    return path.endswith((".keras", ".parquet")) or num_bytes > MAX_REGULAR_BYTES


def _tree_entries(commit: Commit) -> Iterator[dict[str, Any]]:
    """Yield all folders and files: nobody asks for less."""
    folders = {str(folder) for path in commit.files for folder in PurePosixPath(path).parents} - {"."}
    for path in sorted(folders):
        yield {"type": "directory", "oid": git_sha1(path.encode()), "size": 0, "path": path}
    for path, blob in commit.files.items():
        entry: dict[str, Any] = {"type": "file", "oid": blob.oid, "size": len(blob.content), "path": path}
        if blob.is_lfs:
            entry["lfs"] = {"oid": blob.sha256, "size": len(blob.content), "pointerSize": len(blob.pointer)}
        yield entry


def _content(content: bytes, asked: Mapping[str, str], headers: Mapping[str, str]) -> Answer:
    """Answer with a file, or with the part of it that `Range` asks for."""
    headers = {**headers, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked.get("range", ""))
    if not match:
        return Answer(200, content, headers)
    first = int(match[1])
    last = min(int(match[2] or len(content) - 1), len(content) - 1)
    if first > last:
        return Answer(416, headers=headers | {"Content-Range": f"bytes */{len(content)}"})
    span = f"bytes {first}-{last}/{len(content)}"
    return Answer(206, content[first : last + 1], headers | {"Content-Range": span})


def _json(content: Any, *, status: int = 200, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, json.dumps(content).encode(), {"Content-Type": "application/json", **named})


def _error(status: int, message: str, **headers: str) -> Answer:
    return _json({"error": message}, status=status, **{"X_Error_Message": message, **headers})


def _new_oid(*parts: object) -> str:
    return hashlib.sha1(repr((parts, time.monotonic_ns())).encode()).hexdigest()


class _Server(ThreadingHTTPServer):
    """One port; its connections are closed when it stops, so that no thread waits for a client."""

    daemon_threads = True

    def __init__(self, hub: LoopbackHub, name: str) -> None:
        handler = type("Handler", (_Handler,), {"hub": hub})
        super().__init__(("127.0.0.1", 0), handler)
        self._hub = hub
        self._name = name
        self._open: set[socket.socket] = set()
        self._is_stopped = False

    @property
    def url(self) -> str:
        return f"http://{self._name}:{self.server_address[1]}"

    def start(self) -> None:
        self._thread = start_serving(self)

    def stop(self) -> None:
        if self._is_stopped:
            return
        self._is_stopped = True
        self.shutdown()
        self._thread.join()
        self.server_close()
        for connection in list(self._open):
            _hang_up(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up, which some tests want; keep mistakes of this Hub."""
        error = sys.exception()
        if not isinstance(error, OSError):
            self._hub.mistakes.append("".join(traceback.format_exception(error)))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: LoopbackHub

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PUT = do_GET

    def log_message(self, *_: Any) -> None:
        """Tests read `hub.requests` instead."""

    def _serve(self) -> None:
        route, _ = find_route(self.command, self.path)
        fault = self.hub.take_fault(route, unquote(self.path))
        kind = fault.kind if fault else ""
        if kind == "stall":
            self.hub.requests.append(Request(self.command, route, unquote(self.path), 0))
            self.hub.pause(600)
            self._hang_up()
            return
        body = self._body()
        if fault and kind in ("answer", "cut") and not (kind == "cut" and self.command == "GET"):
            self.hub.requests.append(Request(self.command, route, unquote(self.path), len(body)))
            if kind == "cut":
                self._hang_up()
            else:
                body = json.dumps({"error": fault.message}).encode()
                self._send(Answer(fault.status, body, {"Content-Type": "application/json", **fault.headers}))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        if kind == "garble":
            self.hub.is_garbling = True
        answer = self.hub.handle(self.command, self.path, headers, body)
        self.hub.is_garbling = False
        if fault and kind == "slow":
            self.hub.pause(fault.seconds)
        if kind == "lose":
            self._hang_up()
        elif fault and kind == "drip":
            self._send(answer, byte_s=fault.seconds)
        elif fault and kind == "flip":
            self._send(Answer(answer.status, _flipped(answer.body, fault.byte), answer.headers))
        else:
            self._send(answer, is_cut=kind == "cut")

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _send(self, answer: Answer, *, is_cut: bool = False, byte_s: float = 0.0) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if byte_s and self.command != "HEAD":
            for byte in range(len(answer.body)):
                self.wfile.write(answer.body[byte : byte + 1])
                self.hub.pause(byte_s)
        elif self.command != "HEAD":
            self.wfile.write(answer.body[: len(answer.body) // 2] if is_cut else answer.body)
        if is_cut:
            self._hang_up()

    def _hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        _hang_up(self.connection)


def _flipped(content: bytes, byte: int) -> bytes:
    changed = bytearray(content)
    if changed:
        changed[byte % len(changed)] ^= 1
    return bytes(changed)


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the client was faster
