"""Limits says what the store accepts; each refusal names the field that passed its limit. It knows no database."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from service.errors import InvalidRequest, QuotaExceeded, StorageFull, UnsupportedField
from service.storage.sessions.values import Json, NewMessage, SessionFields

MOST_CHARACTERS = {
    "title": 200,
    "model": 300,
    "policy": 100,
    "query": 200,
    "key": 255,
    "name": 100,
    "role": 50,
    "version": 300,
    "digest": 300,
    "finish_reason": 100,
    "answer_id": 100,
    "comment": 2000,
    "tool_call_id": 128,
}
MOST_LEVELS = 20
LONGEST_TTL_SECONDS = 10 * 365 * 86400.0
LARGEST_PAGE = 100
_FIELDS = frozenset(SessionFields.__annotations__)


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings of the same names without `sessions_` before them."""

    ttl_seconds: float = 30 * 86400.0
    max_message_bytes: int = 256 * 1024
    max_messages: int = 10_000
    max_per_owner: int = 10_000
    max_metadata_bytes: int = 16 * 1024

    def check_fields(self, fields: SessionFields) -> None:
        """Raises UnsupportedField for an unknown key, InvalidRequest for a value that cannot be stored."""
        for name in fields.keys() - _FIELDS:
            raise UnsupportedField(f"`{name}` is not a field of a session: remove it", param=name)
        for name in ("title", "model", "policy"):
            check_text(fields.get(name), name)  # type: ignore[arg-type]  # a str or None by the type's definition
        self.check_content(fields.get("system") or "", "system")
        if "metadata" in fields:
            self.check_metadata(fields["metadata"])
        ttl = fields.get("ttl_seconds")
        if ttl is not None and not 1 <= ttl <= LONGEST_TTL_SECONDS:
            raise InvalidRequest(f"`ttl_seconds` must be 1 to {LONGEST_TTL_SECONDS:.0f}", param="ttl_seconds")

    def check_metadata(self, metadata: Json) -> None:
        check_levels(metadata, "metadata")
        try:
            size = len(json.dumps(metadata, ensure_ascii=False, allow_nan=False).encode())
        except (TypeError, ValueError):
            raise InvalidRequest(
                "`metadata` must be a JSON object of well-formed text and finite numbers", param="metadata"
            ) from None
        if size > self.max_metadata_bytes:
            raise InvalidRequest(
                f"`metadata` has {size} bytes; keep it within {self.max_metadata_bytes}",
                param="metadata",
                limit_bytes=self.max_metadata_bytes,
            )

    def check_message(self, message: NewMessage) -> None:
        check_text(message.name, "name")
        check_text(message.role, "role")
        check_text(message.tool_call_id, "tool_call_id")
        self.check_content(message.content, "content")
        self.check_content(message.reasoning or "", "reasoning")
        for call in message.tool_calls or ():
            self.check_content("".join(map(str, call.values())), "tool_calls")

    def check_content(self, content: str, param: str) -> None:
        size = len(_encoded(content, param))
        if size > self.max_message_bytes:
            raise InvalidRequest(
                f"`{param}` has {size} bytes; keep it within {self.max_message_bytes}, or split it",
                param=param,
                limit_bytes=self.max_message_bytes,
            )

    def check_room(self, present: int, more: int) -> None:
        """Raises QuotaExceeded where a session with `present` messages would pass its limit with `more`."""
        if present + more > self.max_messages:
            raise QuotaExceeded(
                f"A session holds at most {self.max_messages} messages: delete some, or start a new session",
                limit=self.max_messages,
            )

    def check_owned(self, present: int, what: Literal["sessions", "documents"]) -> None:
        """Raises QuotaExceeded where an owner with `present` of these may not have another."""
        if present >= self.max_per_owner:
            raise QuotaExceeded(
                f"You have {self.max_per_owner} {what}, the most allowed: delete some", limit=self.max_per_owner
            )

    def check_votes(self, present: int) -> None:
        """Raises QuotaExceeded where a session with `present` votes may not get another."""
        if present >= self.max_messages:
            raise QuotaExceeded(
                f"A session holds at most {self.max_messages} votes: delete the session, or vote in a new one",
                limit=self.max_messages,
            )


def check_text(value: str | None, param: str) -> None:
    """Raises InvalidRequest for text that is too long or cannot be stored as it is."""
    if value is None:
        return
    _encoded(value, param)
    if len(value) > MOST_CHARACTERS[param]:
        raise InvalidRequest(
            f"`{param}` has {len(value)} characters; keep it within {MOST_CHARACTERS[param]}", param=param
        )


def check_answer_id(value: str | None, param: str) -> None:
    """Raises InvalidRequest for a text that no answer has as its id."""
    check_text(value, param)
    if value is not None and not value.isascii():
        raise InvalidRequest(f"`{param}` has other characters than ASCII: send the id that the answer had", param=param)


def check_results(called: set[str], messages: Sequence[NewMessage], places: Sequence[str] = ()) -> None:
    """Raises InvalidRequest for a result that names no call since the user's last message. `called` are the calls
    before these messages. `places` say where the client wrote what each result names."""
    results = 0
    for index, message in enumerate(messages):
        called = set() if message.role == "user" else called | {str(call["id"]) for call in message.tool_calls or ()}
        if message.role != "tool":
            continue
        if message.tool_call_id not in called:
            where = places[results] if places else f"messages[{index}].tool_call_id"
            raise InvalidRequest(
                f"{where} names no call of the session since the user's last message: send the id of one", param=where
            )
        results += 1


def check_limit(limit: int) -> None:
    if not 1 <= limit <= LARGEST_PAGE:
        raise InvalidRequest(f"`limit` must be 1 to {LARGEST_PAGE}", param="limit")


def check_levels(value: object, param: str) -> None:
    """Raises InvalidRequest for JSON that is nested too deep to be walked through."""
    if _deeper(value, MOST_LEVELS):
        raise InvalidRequest(f"`{param}` is nested deeper than {MOST_LEVELS} levels: flatten it", param=param)


def check_distinct(ids: Iterable[str]) -> None:
    seen = list(ids)
    if len(set(seen)) < len(seen):
        raise InvalidRequest("Two messages of one turn have the same `id`: give each its own", param="id")


def _deeper(value: object, levels: int) -> bool:
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return bool(inside) and (levels == 0 or any(_deeper(each, levels - 1) for each in inside))


def _encoded(value: str, param: str) -> bytes:
    if "\x00" in value:
        raise InvalidRequest(f"`{param}` contains the character U+0000, which cannot be stored: remove it", param=param)
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"`{param}` contains half of a surrogate pair, which is no text: send whole characters", param=param
        ) from None


def check_room(needed: int, most: int) -> None:
    """Raises StorageFull where files would have more bytes than all may have together."""
    if needed > most:
        raise StorageFull(
            f"All files together may have {most} bytes and would have {needed}: delete files, or set "
            "DOSIRAK_FILES_TOTAL_BYTES higher",
            max_total_bytes=most,
            needed_bytes=needed,
        )


def check_filename(name: str) -> None:
    """Raises InvalidRequest for a name that cannot be kept."""
    if not name or len(name) > 255 or "\x00" in name or not name.isprintable():
        raise InvalidRequest("`file` must have a name of 1 to 255 printable characters", param="file")
