"""This module reads the address of the server under load. It opens no connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from service.evaluation.scenarios.figures import NotMeasured

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Address:
    """`prefix` stands before every path: a server behind a proxy may have one."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.prefix}"

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def machine(self) -> str:
        """The same for all names of this machine's loopback; ports and proxies on it do not matter."""
        return "localhost" if self.host in LOOPBACK else self.host


def parse_address(url: str) -> Address:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise NotMeasured(f"--host {url}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise NotMeasured(f"--host {url} is no address: write it as http://127.0.0.1:3000")
    if parts.username or parts.query or parts.fragment:
        raise NotMeasured(f"--host {parts.hostname}: leave out user, query and fragment; a key goes into --key")
    return Address(
        parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), parts.path.rstrip("/")
    )
