"""Chat history: sessions, their messages and turns, kept in SQLite or PostgreSQL."""

from service.sessions.idempotency import Claim, Done, Finished, Fresh, Idempotency, InProgress
from service.sessions.knowledge import Knowledge, KnowledgeBase, Passage
from service.sessions.limits import Limits
from service.sessions.migrating import NewerDatabase
from service.sessions.store import SessionStore
from service.sessions.values import (
    Answered,
    NewMessage,
    NewReply,
    NewTurn,
    Page,
    Session,
    SessionFields,
    StoredMessage,
    Turn,
    new_message_id,
)

__all__ = [
    "Answered",
    "Claim",
    "Done",
    "Finished",
    "Fresh",
    "Idempotency",
    "InProgress",
    "Knowledge",
    "KnowledgeBase",
    "Limits",
    "NewMessage",
    "NewReply",
    "NewTurn",
    "NewerDatabase",
    "Page",
    "Passage",
    "Session",
    "SessionFields",
    "SessionStore",
    "StoredMessage",
    "Turn",
    "new_message_id",
]
