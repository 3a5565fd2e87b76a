"""The Hugging Face Hub: the layout of a repository, publishing a run in one commit, pulling models.

`huggingface_hub` reads the address of the Hub while it is imported, and an invalid one would break the
import. So the address is checked here, before any module imports it.
"""

import os
from typing import Final
from urllib.parse import urlsplit

from v8.base.errors import PublishError

DEFAULT_ENDPOINT: Final = "https://huggingface.co"
TOKEN_PAGE: Final = f"{DEFAULT_ENDPOINT}/settings/tokens"


def hub_endpoint() -> str:
    """Return the address of the Hub: `HF_ENDPOINT`, read now and not at import, or the public one.

    Raises:
        PublishError: If it is not the address of a Hub. The address itself is not quoted, because it may hold
            a password.
    """
    address = os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
    fault = _fault(address)
    if fault:
        raise PublishError(
            where="HF_ENDPOINT",
            rule="is the address of a Hub: http or https, a host, and no password, query or blank",
            got=fault,
            fix=f"Unset it for {DEFAULT_ENDPOINT}, or write for example https://hub.example.org",
        )
    return address.rstrip("/")


def _fault(address: str) -> str | None:
    """Describe what is wrong with an address, as a noun phrase; None if nothing is."""
    if not address.isprintable() or not address.isascii() or any(map(str.isspace, address)):
        return "one with a blank, a control character or a letter that no address has"
    try:
        parts = urlsplit(address)
        host = parts.hostname
        port = parts.port
    except ValueError:
        return "one whose host or port cannot be read"
    if "@" in parts.netloc:
        return "one with a user name or a password; HF_TOKEN is the place for a secret"
    if parts.scheme not in ("http", "https"):
        return f"one that begins with {parts.scheme}:" if parts.scheme else "one without http:// or https://"
    if not host or port == 0:
        return "one without a host"
    return "one with a query" if parts.query or parts.fragment else None


hub_endpoint()
