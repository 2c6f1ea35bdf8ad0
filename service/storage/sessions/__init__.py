"""The package keeps chat history: sessions, their messages and turns, in SQLite or PostgreSQL.

Modules that need SQLAlchemy are imported at their first use: a server without sessions runs without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from service.storage.database.unusable import UnusableDatabase
from service.storage.sessions.claims import LEASE_SECONDS, Claim, Done, Finished, Fresh, InProgress
from service.storage.sessions.file_values import (
    OPEN,
    BatchClaim,
    BatchFacts,
    StoredBatch,
    StoredFile,
    new_batch_id,
    new_file_id,
)
from service.storage.sessions.limits import Limits, check_filename, check_results, check_room
from service.storage.sessions.values import (
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
    Passage,
    PromptPart,
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
    from service.storage.database.migrating import NewerDatabase
    from service.storage.sessions.answers import StoredAnswers
    from service.storage.sessions.batches import StoredBatches
    from service.storage.sessions.feedback import Feedback
    from service.storage.sessions.idempotency import Idempotency
    from service.storage.sessions.knowledge import KnowledgeBase
    from service.storage.sessions.store import SessionStore

_ON_DEMAND = {
    "StoredBatches": "service.storage.sessions.batches",
    "Feedback": "service.storage.sessions.feedback",
    "Idempotency": "service.storage.sessions.idempotency",
    "KnowledgeBase": "service.storage.sessions.knowledge",
    "NewerDatabase": "service.storage.database.migrating",
    "SessionStore": "service.storage.sessions.store",
    "StoredAnswers": "service.storage.sessions.answers",
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
    "Passage",
    "PromptPart",
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
