"""The cookie of a browser that has shown a key. The cookie is signed, ends by itself, and never holds the key: it says
only until when the signature is good."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from functools import cache
from typing import Final

from pydantic import SecretStr
from starlette.requests import cookie_parser

SECONDS: Final = 12 * 3600
"""A cookie is good for a working day."""
PREFIX: Final = "dosirak_ui_"
_SALT: Final = b"dosirak ui cookie"


@dataclass(frozen=True, slots=True)
class Cookie:
    """The cookies of one key. Another key has another name and another secret, so a changed key ends every cookie."""

    name: str
    secret: bytes
    key_digest: bytes

    @staticmethod
    def of(key: SecretStr | None) -> Cookie | None:
        """Returns the cookies of a server's key; None for a server without one."""
        return None if key is None else _derived(key.get_secret_value())

    def is_key(self, sent: str) -> bool:
        """Returns whether a text is the key, in the same time for every text."""
        return hmac.compare_digest(key_digest(sent.strip()), self.key_digest)

    def made(self, secure: bool) -> str:
        """Returns the header `Set-Cookie` that lets a browser in for SECONDS."""
        payload = f"{int(time.time()) + SECONDS}.{secrets.token_urlsafe(12)}"
        marks = "; Secure" if secure else ""
        value = f"{payload}.{self._signature(payload)}"
        return f"{self.name}={value}; Max-Age={SECONDS}; Path=/; HttpOnly; SameSite=Strict{marks}"

    def ended(self) -> str:
        """Returns the header `Set-Cookie` that takes the cookie away."""
        return f"{self.name}=; Max-Age=0; Path=/; HttpOnly; SameSite=Strict"

    def is_in(self, header: str) -> bool:
        """Returns whether the header `Cookie` has a cookie of this key that is still good."""
        payload, _, signature = cookie_parser(header).get(self.name, "").rpartition(".")
        if not hmac.compare_digest(signature.encode("utf-8", "replace"), self._signature(payload).encode()):
            return False
        return int(payload.partition(".")[0]) > time.time()

    def _signature(self, payload: str) -> str:
        mac = hmac.digest(self.secret, payload.encode("utf-8", "replace"), "sha256")
        return base64.urlsafe_b64encode(mac).decode().rstrip("=")


def cookie_names(header: str) -> list[str]:
    return list(cookie_parser(header))


def key_digest(key: str) -> bytes:
    """Returns the sha256 of a key, which tells callers apart."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


@cache
def _derived(key: str) -> Cookie:
    """Derives the secret slowly (scrypt, RFC 7914: 16 MiB, some 50 ms), so that a cookie does not help to guess the
    key. Every instance with the same key derives the same secret."""
    made = hashlib.scrypt(key.encode("utf-8", "surrogatepass"), salt=_SALT, n=2**14, r=8, p=1, dklen=40)
    return Cookie(f"{PREFIX}{made[:4].hex()}", made[8:], key_digest(key))
