"""A place is the address and the network interface that the ranks of one engine talk over.

vLLM's ranks send pickles to each other in the clear: whoever reaches their ports runs code as this user. So they talk
over loopback, or over the network that the operator says is trusted.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from service.errors import Conflict

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
    there = list(_places())
    for place in there:
        if lies_in(place.address, network):
            return place
    raise Conflict(
        f"No address of this host lies in {SETTING}={network}; it has {', '.join(each.address for each in there)}",
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
