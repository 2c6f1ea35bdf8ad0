"""Addresses that settings name, checked: origins of web pages, the collector of traces, and the network that the ranks
of one engine talk over. The module opens no connection."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from service.errors import Conflict

EVERY: Final = "*"
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s,*]+")
_OWN_PORTS: Final = {"http": 80, "https": 443}


def origins_of(text: str) -> tuple[str, ...]:
    """Returns the origins of a list with commas or blanks, in their order.

    >>> origins_of("https://app.example, http://localhost:5173")
    ('https://app.example', 'http://localhost:5173')

    Raises ValueError for a text that no browser sends: such an entry would never match."""
    origins = tuple(dict.fromkeys(text.replace(",", " ").split()))
    if EVERY in origins and len(origins) > 1:
        raise ValueError("* is every origin: name it alone, or name the others")
    for each in origins:
        if each != EVERY and not _is_origin(each):
            raise ValueError(
                f"{each[:80]!r} is no origin: write scheme, host and port as browsers do, such as https://app.example "
                "or http://localhost:5173, in small letters, without a path and without the scheme's own port"
            )
    return origins


def _is_origin(text: str) -> bool:
    if not _ORIGIN.fullmatch(text) or text != text.lower():
        return False
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        return False
    return bool(parts.hostname) and not text.endswith(":") and (port is None or port != _OWN_PORTS.get(parts.scheme))


TRACES_PATH: Final = "/v1/traces"
"""Where a collector takes traces, below its base (OTLP 1.9, "OTLP/HTTP Request")."""
EXAMPLE: Final = "http://collector:4318"


def checked_url(url: str) -> str:
    """Returns `url`. Raises ValueError, as a sentence without the URL's own text, where no span could be sent to it."""
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:  # an unfinished IPv6 address, or a port that is none
        named, parts = False, urlsplit("")
    if parts.scheme not in ("http", "https") or not named or not url.isprintable() or " " in url:
        raise ValueError(f"must be a URL of a collector that takes OTLP over HTTP, as {EXAMPLE}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "must be a URL without user, query and fragment: put credentials into OTEL_EXPORTER_OTLP_HEADERS"
        )
    return url


def traces_url(base: str) -> str:
    """Returns where a collector with this base takes traces; a base that names that path already stays as it is."""
    bare = base.rstrip("/")
    return bare if bare.endswith(TRACES_PATH) else f"{bare}{TRACES_PATH}"


def standard_traces_url(env: Mapping[str, str]) -> str | None:
    """Returns where OpenTelemetry's own variables want traces sent; None where they name no collector, or want none.
    Raises ValueError, with the variable's name, for what cannot be sent to.

    https://opentelemetry.io/docs/specs/otel/protocol/exporter/
    """
    if env.get("OTEL_SDK_DISABLED", "").lower() == "true" or env.get("OTEL_TRACES_EXPORTER", "") == "none":
        return None
    for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        if not (url := env.get(name)):
            continue
        _refuse_other_protocols(env)
        try:
            return checked_url(url) if "TRACES" in name else traces_url(checked_url(url))
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
    return None


def _refuse_other_protocols(env: Mapping[str, str]) -> None:
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if protocol := env.get(name):
            if protocol != "http/protobuf":
                raise ValueError(
                    f"{name}={protocol[:40]}, but traces go over HTTP with protobuf: set DOSIRAK_OTLP_ENDPOINT to the "
                    "collector's address for that (its port 4318 as a rule), or OTEL_TRACES_EXPORTER=none for no traces"
                )
            return


SETTING: Final = "DOSIRAK_TRUSTED_NETWORK"


@dataclass(frozen=True, slots=True)
class Place:
    """An address of this host, and the name of its interface."""

    address: str
    interface: str


LOOPBACK: Final = Place("127.0.0.1", "lo")


def checked_network(text: str) -> str:
    """Returns a network in CIDR notation. Raises ValueError, which says what to write."""
    try:
        network = ipaddress.ip_network(text.strip())
    except ValueError as error:
        raise ValueError(f"must be a network in CIDR notation, as 10.1.0.0/16: {error}") from None
    if not network.prefixlen:
        raise ValueError(f"{network} trusts every address: name the network of the nodes alone")
    return str(network)


def lies_in(address: str, network: str) -> bool:
    """Returns whether an address, of either family, lies in a network."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found) in ipaddress.ip_network(network)


def place_in(network: str) -> Place:
    """Returns this host's first address in the network. Raises Conflict where it has none."""
    places = list(_places())
    for place in places:
        if lies_in(place.address, network):
            return place
    raise Conflict(
        f"No address of this host lies in {SETTING}={network}; it has {', '.join(each.address for each in places)}",
        param="engine_options",
    )


def addresses_of(host: str, network: str) -> list[str]:
    """Returns the addresses of a host, by name or number, that lie in the network. Raises OSError where the name is
    not known, and Conflict where it is known by addresses outside alone."""
    found = [str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    if inside := [each for each in found if lies_in(each, network)]:
        return list(dict.fromkeys(inside))
    raise Conflict(f"{host} is {', '.join(dict.fromkeys(found))}, which does not lie in {SETTING}={network}")


def _places() -> Iterable[Place]:
    import psutil  # it is not needed where one host is enough

    for interface, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family in (socket.AF_INET, socket.AF_INET6):
                yield Place(each.address.partition("%")[0], interface)
