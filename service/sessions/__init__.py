"""The package keeps chat history: sessions, their messages and turns, in SQLite or PostgreSQL.

Modules that need SQLAlchemy are imported at their first use: a server without sessions runs without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from service.sessions.claims import LEASE_SECONDS, Claim, Done, Finished, Fresh, InProgress
from service.sessions.file_values import (
    OPEN,
    BatchClaim,
    BatchFacts,
    StoredBatch,
    StoredFile,
    new_batch_id,
    new_file_id,
)
from service.sessions.limits import Limits, check_filename, check_results, check_room
from service.sessions.unusable import UnusableDatabase
from service.sessions.values import (
    Answered,
    AnswerKind,
    History,
    Json,
    Knowledge,
    NewMessage,
    NewReply,
    NewTurn,
    NewVote,
    Page,
    Pair,
    Part,
    Passage,
    Said,
    Session,
    SessionFields,
    StoredAnswer,
    StoredMessage,
    Tally,
    Turn,
    Vote,
    WantedAnswers,
    new_message_id,
)

if TYPE_CHECKING:
    from service.sessions.answers import StoredAnswers
    from service.sessions.batches import StoredBatches
    from service.sessions.feedback import Feedback
    from service.sessions.idempotency import Idempotency
    from service.sessions.knowledge import KnowledgeBase
    from service.sessions.migrating import NewerDatabase
    from service.sessions.store import SessionStore

_ON_DEMAND = {
    "StoredBatches": "service.sessions.batches",
    "Feedback": "service.sessions.feedback",
    "Idempotency": "service.sessions.idempotency",
    "KnowledgeBase": "service.sessions.knowledge",
    "NewerDatabase": "service.sessions.migrating",
    "SessionStore": "service.sessions.store",
    "StoredAnswers": "service.sessions.answers",
}

__all__ = [
    "LEASE_SECONDS",
    "OPEN",
    "AnswerKind",
    "Answered",
    "BatchClaim",
    "BatchFacts",
    "Claim",
    "Done",
    "Feedback",
    "Finished",
    "Fresh",
    "History",
    "Idempotency",
    "InProgress",
    "Json",
    "Knowledge",
    "KnowledgeBase",
    "Limits",
    "NewMessage",
    "NewReply",
    "NewTurn",
    "NewVote",
    "NewerDatabase",
    "Page",
    "Pair",
    "Part",
    "Passage",
    "Said",
    "Session",
    "SessionFields",
    "SessionStore",
    "StoredAnswer",
    "StoredAnswers",
    "StoredBatch",
    "StoredBatches",
    "StoredFile",
    "StoredMessage",
    "Tally",
    "Turn",
    "UnusableDatabase",
    "Vote",
    "WantedAnswers",
    "check_filename",
    "check_results",
    "check_room",
    "new_batch_id",
    "new_file_id",
    "new_message_id",
]


def __getattr__(name: str) -> object:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(_ON_DEMAND[name]), name)
