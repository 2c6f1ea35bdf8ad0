"""This module decides whether a request comes from this machine, by its peer, its `Host` and its `Origin`. It knows no
keys.

It reads `Host` and `Origin` because a web page can let its own name point to 127.0.0.1 (DNS rebinding): the browser
then connects from this machine, and only these two headers still name the page.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from functools import lru_cache
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip")
"""A proxy passed on a request with one of these headers. Servers may replace the peer with the header's value."""
_AUTHORITY: Final = re.compile(r"(?P<host>\[[0-9a-f.]*:[0-9a-f:.]*\]|[a-z0-9._-]+)(?::[0-9]{0,5})?", re.IGNORECASE)
_ORIGIN: Final = re.compile(r"https?://(?P<authority>[^/?#@\s]+)", re.IGNORECASE)
_LOCAL_NAME: Final = re.compile(r"(?:[a-z0-9_-]+\.)*localhost\.?", re.IGNORECASE)

REMEMBERED: Final = 256
"""Texts whose verdict is kept: a client sends the same ones each time."""


def foreign_part(scope: Scope, origins: Collection[str] = ()) -> str | None:
    """Returns which part of a request is not of this machine, in words for the client; None where all of it is. Pages
    of `origins` count as this machine's."""
    headers = Headers(scope=scope)
    if any(name in headers for name in FORWARDED):
        return "a proxy passed the request on"
    if not is_local_peer(scope):
        return "the request comes from another address"
    if not all(map(is_local_authority, headers.getlist("host"))):
        return "the header Host names no loopback address"
    if not all(each in origins or is_local_origin(each) for each in headers.getlist("origin")):
        return "the header Origin names a page of another server"
    return None


def is_local_peer(scope: Scope) -> bool:
    """Returns whether the connection begins on this machine. A Unix socket has no client address, and its server
    address is a path without a port. A TCP peer that is gone has no client address either, but its server has a port:
    it may be remote."""
    if scope.get("client"):
        return is_loopback_address(scope["client"][0])
    server = scope.get("server")
    return server is not None and server[1] is None


@lru_cache(REMEMBERED)
def is_local_authority(text: str) -> bool:
    """Returns whether a `Host` is a loopback address or a name of `localhost`, with or without a port.

    >>> is_local_authority("[::1]:3000"), is_local_authority("app.localhost"), is_local_authority("localhost.evil.com")
    (True, True, False)
    """
    found = _AUTHORITY.fullmatch(text)
    return found is not None and _is_local_host(found["host"])


def is_local_origin(text: str) -> bool:
    """Returns whether an `Origin` is http or https of a local authority. `null`, which sandboxed pages send, is not."""
    found = _ORIGIN.fullmatch(text)
    return found is not None and is_local_authority(found["authority"])


@lru_cache(REMEMBERED)
def is_loopback_address(text: str) -> bool:
    """Returns whether the text is a loopback IP address, also IPv4 in IPv6; False for a text that is no address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _is_local_host(host: str) -> bool:
    return is_loopback_address(host.strip("[]")) or _LOCAL_NAME.fullmatch(host) is not None
