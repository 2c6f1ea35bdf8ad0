"""The address of a server: where it is reached, whether this machine can listen there, and what listens there already.
It starts nothing."""

from __future__ import annotations

import socket

import httpx

from service.settings import Settings


def address(settings: Settings) -> str:
    """Returns where a server with these settings is reached from its own machine."""
    host = settings.host
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{reachable}:{settings.port}"


def authorization(settings: Settings) -> dict[str, str]:
    """Returns the header that a server with these settings asks for."""
    key = settings.admin_key
    return {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}


def resolve(host: str, port: int) -> tuple[socket.AddressFamily, str]:
    """Returns the family and the IP address of `host`. Raises socket.gaierror where it names none."""
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return family, str(where[0])


def try_to_listen(family: socket.AddressFamily, ip: str, port: int) -> None:
    """Listens for a moment. Raises OSError where this machine cannot listen there."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((ip, port))
        probe.listen()


def is_dosirak(settings: Settings) -> bool:
    """Returns whether a server of this project answers at the address, to the key of these settings."""
    try:
        answer = httpx.get(f"{address(settings)}/", headers=authorization(settings), timeout=2)
        return bool(answer.json()["name"] == "Dosirak")
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False
