"""Bearers are the callers that show a key or its cookie: the operator's key of the settings, which may do everything,
and the keys of `/v1/keys`."""

from __future__ import annotations

import hmac
from collections.abc import Iterator

from pydantic import SecretStr

from service.api.answering.callers import caller_of
from service.api.edge.cookie import PREFIX, Cookie, cookie_names, key_digest
from service.api.edge.wrong_keys import WrongKeys
from service.api.http.scopes import EVERY, Caller
from service.errors import Unauthorized
from service.storage.keys import OPERATOR, Key, Keys, actor_of


class Bearers:
    """Both kinds of keys; a server without any is open. `wrong_keys` counts what is none of them."""

    def __init__(self, admin_key: SecretStr | None, keys: Keys) -> None:
        self.wrong_keys = WrongKeys()
        self._admin = Cookie.of(admin_key)
        self._keys = keys

    @property
    def are_needed(self) -> bool:
        """Returns whether callers must show a key. Raises Unavailable while that is not known."""
        return self._admin is not None or self._keys.are_needed

    def caller(self, sent: str) -> Caller | None:
        """Returns who sends this key, None for no key of this server. Raises Unauthorized for one that has ended,
        Unavailable while the keys cannot be read. Texts that are no key take the same time."""
        if self._admin is not None and self._admin.is_key(sent):
            return _operator(self._admin.key_digest)
        key = self._keys.sent(sent)
        if key is not None and self._keys.has_ended(key):
            raise Unauthorized("This key has ended: ask the operator for a new one, or for a later `expires_at`")
        return None if key is None else caller_of(key)

    def by_cookie(self, header: str) -> Caller | None:
        """Returns whose cookie the header `Cookie` has."""
        if self._admin is not None and self._admin.is_in(header):
            return _operator(self._admin.key_digest)
        return next((caller_of(key) for key, cookie in self._issued(header) if cookie.is_in(header)), None)

    def cookie_of(self, sent: str) -> Cookie | None:
        """Returns the cookies of a key; None for no key of this server. Raises as `caller`."""
        if self.caller(sent) is None:
            return None
        key = self._keys.sent(sent)
        return self._admin if key is None else _cookie(key)

    def cookies(self, header: str) -> list[Cookie]:
        """Returns the kinds of cookies that the header may have, for taking them away."""
        return [*([self._admin] if self._admin else []), *(cookie for _, cookie in self._issued(header))]

    def _issued(self, header: str) -> Iterator[tuple[Key, Cookie]]:
        for name in cookie_names(header):
            key = self._keys.living(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None
            if key is not None:
                yield key, _cookie(key)


def _operator(digest: bytes) -> Caller:
    owner = f"{OPERATOR}{digest.hex()}"
    return Caller(owner, actor_of(owner), EVERY)


def _cookie(key: Key) -> Cookie:
    """Returns the cookies of a key. Another secret, as after a rotation, ends them."""
    return Cookie(f"{PREFIX}{key.id}", hmac.digest(key.secrets[0].mac, b"cookie", "sha256"), key_digest(key.id))
