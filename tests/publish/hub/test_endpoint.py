"""HF_ENDPOINT: an address of a Hub, or one sentence that names the variable and no password."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from signs import without_signs

from v8.base.errors import PublishError
from v8.publish.hub import hub_endpoint

PASSWORD = "Tr0ub4dor"


@pytest.mark.parametrize(
    "address",
    [
        "http://[",
        "file:///etc/passwd",
        "hub.example.org",
        "http://",
        " ",
        "http://hub.example.org:99999",
        "http://hub.example.org:port",
        "http://hub example.org",
        "http://hub.example.org\x1b[31m",
        "http://hüb.example.org",
        "http://hub.example.org?a=b",
        f"http://me:{PASSWORD}@hub.example.org",
        f"http://me:{PASSWORD} @hub.example.org",
        f"https://{PASSWORD}@hub.example.org",
        "http://" + "x" * 100_000 + "[",
    ],
)
def test_what_is_no_address_of_a_hub_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(PublishError, match=r"^HF_ENDPOINT: .*got one ") as caught:
        hub_endpoint()
    assert PASSWORD not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "address", ["http://[::1]:8080", "https://hub.example.org/path/", "http://localhost:1"]
)
def test_addresses_of_hubs_are_taken(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    assert hub_endpoint() == address.rstrip("/")


@pytest.mark.process
@pytest.mark.parametrize("address", ["http://[", "file:///etc", f"http://me:{PASSWORD}@["])
def test_every_command_that_asks_the_hub_says_so_in_one_line(address: str) -> None:
    # The Hub's client itself reads the address while it is imported, and fails on the first of these.
    process = subprocess.run(
        [sys.executable, "-m", "v8", "pull", "--repo", "someone/fleet"],
        env={**os.environ, "HF_ENDPOINT": address},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 5
    assert without_signs(process.stderr).startswith("error: HF_ENDPOINT: ")
    assert len(without_signs(process.stderr).splitlines()) == 1
    assert PASSWORD not in process.stderr
