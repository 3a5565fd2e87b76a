"""Base addresses of servers of candles: checked as they are read, and kept without their passwords."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

import requests
from requests.utils import get_auth_from_url

from v8.errors import ProfileError

Auth = tuple[str, str]
"""User and password."""


@dataclass(frozen=True)
class Address:
    """Where a server is, and what opens it; no text but `url` is ever shown or written.

    Args:
        url: Without user and password, without a slash at the end.
        auth: User and password, if the address named them.
    """

    url: str
    auth: Auth | None = field(default=None, repr=False)

    @property
    def host(self) -> str:
        """Host and port, for people."""
        return urlsplit(self.url).netloc

    @property
    def folder_name(self) -> str:
        """A name for a folder of its own: what comes from two servers must not mix, whoever runs them."""
        return re.sub(r"[^A-Za-z0-9.-]+", "_", self.url.partition("://")[2])


def read_address(url: str, *, variable: str, kind: str, default: str) -> Address:
    """Check a base address, and split off user and password.

    Args:
        url: As somebody wrote it.
        variable: The environment variable it comes from, for the error.
        kind: What it is the address of, such as "a candle archive".
        default: What stands without that variable, for the error.

    Raises:
        ProfileError: If it is no address that could be asked.
    """
    try:
        address, prepared = urlsplit(url), requests.Request("GET", url).prepare()
        is_sound = address.scheme in {"http", "https"} and bool(address.hostname) and bool(prepared.url)
    except ValueError:  # of requests, too: for a host that is none
        is_sound = False
    # An @ behind the host is that of a password with a / in it, which would be taken for the host.
    if not is_sound or not url.isprintable() or re.search(r"[ ?#]|://[^/]*/.*@", url):
        raise ProfileError(
            where=variable,
            rule=f"is the address of {kind}, http://HOST/PATH or https://HOST/PATH",
            got=repr(url.rpartition("@")[2]),  # a password may stand before it, in whatever form
            fix=f"Correct it, or unset it for {default}",
        )
    user, password = get_auth_from_url(url)
    bare = address._replace(netloc=address.netloc.rpartition("@")[2])
    return Address(urlunsplit(bare).rstrip("/"), (user, password) if user or password else None)
