"""The tables define the schema, once. Few modules may name them (tests/test_architecture.py).

    sessions ─< messages, summaries    knowledge ─< passages    idempotency (a key of an owner, the answer it got)
    sessions ─< feedback (votes, each on the answer in one message, or in two)
    files (their contents are on the disk)    batches (each reads a file; `facts` is what no query asks for)
    answers (responses and chat completions that clients read again)    usage (counts by owner, period and model)
    session_grams, message_grams, passage_grams    the search indexes, in each database's own form: see `search`

Rows have a `number` for joins and for the index, and a random `id` for callers. Each carries its owner.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeDecorator

Json = Mapping[str, object]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Moment(TypeDecorator[datetime]):
    """A time in microseconds since 1970, so that order and equality are those of whole numbers in both databases."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        return None if value is None else _EPOCH + value * _MICROSECOND


class JsonText(TypeDecorator[Json | Sequence[Json]]):
    """JSON as text, unescaped, with its keys in their original order."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Json | Sequence[Json] | None, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value, ensure_ascii=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Json | Sequence[Json] | None:
        return None if value is None else json.loads(value)


NUMBER = BigInteger().with_variant(Integer(), "sqlite")  # SQLite's own row number, never used twice
metadata = MetaData()

sessions = Table(
    "sessions",
    metadata,
    Column("number", NUMBER, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("owner", Text, nullable=False),
    Column("title", Text),
    Column("model", Text),
    Column("system", Text),
    Column("policy", Text),
    Column("metadata", JsonText, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("message_count", Integer, nullable=False),
    Column("next_position", Integer, nullable=False),
    Column("ttl_seconds", Double, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Column("cut", JsonText),
    Column("edited", Integer, nullable=False, server_default="0"),
    Index("sessions_newest", "owner", "created_at", "id"),
    Index("sessions_expiry", "expires_at"),
    sqlite_autoincrement=True,
)

_PINNED = Column("pinned", Boolean, nullable=False)
_ANSWER_ID = Column("answer_id", Text)

messages = Table(
    "messages",
    metadata,
    Column("number", NUMBER, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("session", NUMBER, ForeignKey("sessions.number", name="messages_session"), nullable=False),
    Column("owner", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("role", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("name", Text),
    _PINNED,
    Column("created_at", Moment, nullable=False),
    Column("context", JsonText),
    Column("model", Text),
    Column("version", Text),
    Column("digest", Text),
    Column("usage", JsonText),
    Column("finish_reason", Text),
    _ANSWER_ID,
    Column("tool_calls", JsonText),
    Column("tool_call_id", Text),
    Column("reasoning", Text),
    UniqueConstraint("session", "position", name="messages_order"),
    Index("messages_pinned", "session", "position", sqlite_where=_PINNED, postgresql_where=_PINNED),
    Index(
        "messages_answer",
        "owner",
        "answer_id",
        sqlite_where=_ANSWER_ID.is_not(None),
        postgresql_where=_ANSWER_ID.is_not(None),
    ),
    sqlite_autoincrement=True,
)

summaries = Table(
    "summaries",
    metadata,
    Column("owner", Text, nullable=False),
    Column("session", NUMBER, ForeignKey("sessions.number", name="summaries_session"), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("before", Integer),
    Column("content", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
)

feedback = Table(
    "feedback",
    metadata,
    Column("number", NUMBER, primary_key=True),
    Column("id", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("session", NUMBER, ForeignKey("sessions.number", name="feedback_session"), nullable=False),
    Column("message", NUMBER, ForeignKey("messages.number", name="feedback_message"), unique=True),
    Column("model", Text),
    Column("version", Text),
    Column("digest", Text),
    Column("rating", Integer, nullable=False),
    Column("comment", Text),
    Column("created_at", Moment, nullable=False),
    Column("other_id", Text),
    Column("other_session", NUMBER, ForeignKey("sessions.number", name="feedback_other_session")),
    Column("other_message", NUMBER, ForeignKey("messages.number", name="feedback_other_message")),
    Column("other_model", Text),
    Column("other_version", Text),
    Index("feedback_newest", "owner", "created_at", "id"),
    Index("feedback_session_number", "session"),
    Index("feedback_other_session_number", "other_session"),
    Index("feedback_other_message_number", "other_message"),
    sqlite_autoincrement=True,
)

knowledge = Table(
    "knowledge",
    metadata,
    Column("number", NUMBER, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("owner", Text, nullable=False),
    Column("session_id", Text),
    Column("title", Text),
    Column("content", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Index("knowledge_newest", "owner", "created_at", "id"),
    Index("knowledge_session", "session_id"),
    sqlite_autoincrement=True,
)

passages = Table(
    "passages",
    metadata,
    Column("number", NUMBER, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("knowledge", NUMBER, ForeignKey("knowledge.number", name="passages_knowledge"), nullable=False),
    Column("session_id", Text),
    Column("content", Text, nullable=False),
    Index("passages_knowledge_number", "knowledge"),
    sqlite_autoincrement=True,
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("body_hash", Text, nullable=False),
    Column("claim", Text, nullable=False),
    Column("lease_until", Moment, nullable=False),
    Column("session_id", Text),
    Column("response", LargeBinary),
    Column("expires_at", Moment, nullable=False),
    Column("answer_id", Text),
    Index("idempotency_expiry", "expires_at"),
    Index("idempotency_session", "session_id"),
    Index("idempotency_answer", "answer_id"),
)

answers = Table(
    "answers",
    metadata,
    Column("number", NUMBER, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("owner", Text, nullable=False),
    Column("previous", Text),
    Column("thread", Text, nullable=False),
    Column("asked", JsonText, nullable=False),
    Column("body", JsonText, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Column("kind", Text, nullable=False, server_default="response"),
    Column("model", Text, nullable=False, server_default=""),
    Column("metadata", JsonText, nullable=False, server_default="{}"),
    Index("answers_owner", "owner", "kind", "number"),
    Index("answers_thread", "owner", "thread"),
    Index("answers_expiry", "expires_at"),
    sqlite_autoincrement=True,
)

files = Table(
    "files",
    metadata,
    Column("number", NUMBER, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("owner", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("filename", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment),
    Column("sha256", Text),
    Index("files_newest", "owner", "created_at", "id"),
    Index("files_expiry", "expires_at"),
    sqlite_autoincrement=True,
)

batches = Table(
    "batches",
    metadata,
    Column("number", NUMBER, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("owner", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("input_file_id", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Column("claim", Text),
    Column("lease_until", Moment, nullable=False),
    Column("facts", JsonText, nullable=False),
    Index("batches_newest", "owner", "created_at", "id"),
    Index("batches_status", "status", "created_at"),
    sqlite_autoincrement=True,
)

usage = Table(
    "usage",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("seconds", Integer, primary_key=True, autoincrement=False),
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    Column("model", Text, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("refused", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Index("usage_time", "seconds", "start"),
)
