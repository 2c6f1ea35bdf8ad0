"""Keys let callers in: each has an owner, scopes, models, limits and an end. They lie in the records, which instances
share; what a key is compared with is an HMAC, so no copy of the records lets anybody in.

A key is `sk-dosirak-<number>-<secret>`. The secret has 256 bits, so nobody finds it by trying; its salt is the HMAC's
key. A process reads the keys at most every FRESH_SECONDS, and a key that was deleted elsewhere ends so soon.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
import structlog
from msgspec.structs import replace

from models.errors import RepositoryError
from models.repository.disk.records import Records
from service.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded, Unavailable

KIND: Final = "keys"
DOCUMENT: Final = "server/keys"
PREFIX: Final = "sk-dosirak-"
_ID: Final = "key_"
OPERATOR: Final = "key:"
"""The operator's key has no id: its owner is this with the digest of the key."""
ADMIN: Final = "admin"
WIDE: Final = frozenset({ADMIN, "models:write"})
FRESH_SECONDS: Final = 0.25
MOST_KEYS: Final = 1000
MOST_SECRETS: Final = 8
LOCK_SECONDS: Final = 5.0
log = structlog.get_logger(__name__)


class Secret(msgspec.Struct, frozen=True):
    """What a key is compared with. `until`: when it ends because another took its place; None while it is the last."""

    salt: bytes
    mac: bytes
    until: float | None = None

    @staticmethod
    def new() -> tuple[str, Secret]:
        """Returns a secret for its bearer, and what it is compared with."""
        plain, salt = secrets.token_urlsafe(32), secrets.token_bytes(16)
        return plain, Secret(salt, _mac(salt, plain))

    def fits(self, sent: str, now: float) -> bool:
        is_same = hmac.compare_digest(self.mac, _mac(self.salt, sent))
        return is_same and (self.until is None or now < self.until)


class KeyLimits(msgspec.Struct, frozen=True):
    """What a key may use of all instances of a database, and requests at a time of each; None is without a limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    requests_per_day: int | None = None
    tokens_per_day: int | None = None
    concurrent: int | None = None


class Key(msgspec.Struct, frozen=True):
    """One key. `id` names it, and is the owner of what its bearers store, also after a rotation. Times are seconds
    since 1970. `models` are names, or names with a version; None allows all."""

    id: str
    name: str
    scopes: frozenset[str]
    created_at: float
    secrets: tuple[Secret, ...]
    models: frozenset[str] | None = None
    expires_at: float | None = None
    limits: KeyLimits | None = None

    def has_ended(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    @property
    def manages(self) -> bool:
        """Returns whether this key will always be able to manage the others."""
        return ADMIN in self.scopes and self.expires_at is None


_NOBODY: Final = Key("", "", frozenset(), 0.0, (Secret(bytes(16), bytes(32)),))
Known = Mapping[str, Key]
Change = Callable[[dict[str, Key]], Key]


class Keys:
    """`is_managed`: the operator has a key that lies elsewhere, so the last of these may go. Methods that change keys
    wait for disk or database: call them in a thread. They raise NotFound, Conflict, and what the records raise."""

    def __init__(self, records: Records, *, is_managed: bool) -> None:
        self._records = records
        self._is_managed = is_managed
        self._known: Known | None = None
        self._content: bytes | None = None
        self._stale_at = 0.0
        self._is_read = True

    @property
    def are_needed(self) -> bool:
        """Returns whether there is any key, also one that has ended: the server is closed then."""
        return bool(self._current())

    def sent(self, text: str) -> Key | None:
        """Returns the key that a caller has sent, also one that has ended; None where there is no such key."""
        number, _, secret = text.removeprefix(PREFIX).partition("-")
        key, now = self._current().get(_id(number), _NOBODY), time.time()
        fits = [each.fits(secret, now) for each in key.secrets]
        return key if any(fits) and key is not _NOBODY else None

    def living(self, id: str) -> Key | None:
        """Returns a key that has not ended."""
        key = self._current().get(id)
        return None if key is None or key.has_ended(time.time()) else key

    def has_ended(self, key: Key) -> bool:
        return key.has_ended(time.time())

    def all(self) -> list[Key]:
        """Returns the keys, oldest first."""
        return sorted(self._current().values(), key=lambda each: (each.created_at, each.id))

    def get(self, id: str) -> Key:
        return _named(self._current(), id)

    def add(self, **facts: Any) -> tuple[Key, str]:
        """Makes a key, and returns it with the text that its bearer sends: nobody sees that text again. The facts are
        those of `change`, a name and scopes among them."""
        number, (plain, secret) = secrets.token_hex(8), Secret.new()

        def add(known: dict[str, Key]) -> Key:
            if len(known) >= MOST_KEYS:
                raise QuotaExceeded(f"There are {MOST_KEYS} keys already: delete some first", max_keys=MOST_KEYS)
            new = Key(_id(number), "", frozenset(), time.time(), (secret,))
            known[new.id] = key = _with(new, facts)
            return key

        return self._changed(add), f"{PREFIX}{number}-{plain}"

    def change(self, id: str, **facts: Any) -> Key:
        """Changes these facts of a key. `limits` names the limits to change; None takes all away."""

        def change(known: dict[str, Key]) -> Key:
            known[id] = key = _with(_named(known, id), facts)
            return key

        return self._changed(change)

    def rotate(self, id: str, grace_seconds: float) -> tuple[Key, str]:
        """Gives a key another secret, and returns both as `add` does. The one before ends after `grace_seconds`, and
        those before it when they were said to; without a grace all end now. Of more than MOST_SECRETS those that end
        first are dropped."""
        plain, secret = Secret.new()

        def rotate(known: dict[str, Key]) -> Key:
            key, now = _named(known, id), time.time()
            former = [replace(key.secrets[0], until=now + grace_seconds), *key.secrets[1:]] if grace_seconds else []
            former.sort(key=lambda each: each.until or now, reverse=True)
            good = [each for each in former if (each.until or now) > now]
            known[id] = key = replace(key, secrets=(secret, *good[: MOST_SECRETS - 1]))
            return key

        return self._changed(rotate), f"{PREFIX}{id.removeprefix(_ID)}-{plain}"

    def delete(self, id: str) -> None:
        def delete(known: dict[str, Key]) -> Key:
            return known.pop(_named(known, id).id)

        self._changed(delete)

    def _changed(self, change: Change) -> Key:
        with self._records.locked(KIND, LOCK_SECONDS):
            known = dict(_read(self._records.document(KIND, DOCUMENT)))
            key = change(known)
            _require_sense(key)
            self._require_manager(known.values())
            content = msgspec.json.encode(list(known.values())) if known else None
            self._records.put_document(KIND, DOCUMENT, content)
        self._stale_at = 0.0
        return key

    def _require_manager(self, left: Iterable[Key]) -> None:
        """Raises Conflict where keys were left that nobody could manage."""
        rest = list(left)
        if rest and not self._is_managed and not any(each.manages for each in rest):
            raise Conflict(
                "No key would be left that manages the others: have one with the scope admin and without expires_at "
                "first, or set DOSIRAK_ADMIN_KEY"
            )

    def _current(self) -> Known:
        """Returns the keys. Once they have been read, records that cannot be read for now leave them as they are.
        Raises Unavailable before: without the keys nobody can be let in."""
        now = time.monotonic()
        if self._known is not None and now < self._stale_at:
            return self._known
        try:
            content = self._records.document(KIND, DOCUMENT)
            if self._known is None or content != self._content:
                self._known, self._content = _read(content), content
        except (OSError, RepositoryError, msgspec.MsgspecError) as error:
            if self._is_read:
                log.error("keys_not_read", reason=type(error).__name__)
            self._is_read = False
            if self._known is None:
                raise Unavailable("The server's keys cannot be read now: try again shortly", retry_after=1) from None
        else:
            self._is_read = True
        self._stale_at = now + FRESH_SECONDS
        return self._known


def _read(content: bytes | None) -> Known:
    keys = msgspec.json.decode(content, type=list[Key]) if content else []
    return {each.id: each for each in keys}


def _named(known: Known, id: str) -> Key:
    if id not in known:
        raise NotFound(f"There is no key {id[:80]!r}; GET /v1/keys lists them", param="id")
    return known[id]


def _with(key: Key, facts: Mapping[str, Any]) -> Key:
    limits = facts.get("limits")
    changed = {} if limits is None else {"limits": replace(key.limits or KeyLimits(), **limits)}
    return replace(key, **{**facts, **changed})


def _require_sense(key: Key) -> None:
    """Raises InvalidRequest for a list of models beside a scope that changes every model."""
    if key.models is not None and (wide := key.scopes & WIDE):
        raise InvalidRequest(
            f"`models` cannot bound a key with the scope {min(wide)}, which reaches every model: leave one of both out",
            param="models",
        )


def is_key_id(text: str) -> bool:
    return text.startswith(_ID)


def actor_of(owner: str) -> str:
    """Returns an owner as people read it: of the operator's digest the first eight characters."""
    return owner[: len(OPERATOR) + 8] if owner.startswith(OPERATOR) else owner


def _id(number: str) -> str:
    return _ID + number


def _mac(salt: bytes, secret: str) -> bytes:
    return hmac.digest(salt, secret.encode("utf-8", "surrogatepass"), "sha256")
