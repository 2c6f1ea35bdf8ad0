"""The operations are the kinds of calls that take a session database's time, for its metrics. It knows names of methods
only."""

from __future__ import annotations

from typing import Final, Literal

Operation = Literal["history", "append", "read", "write", "maintain"]
_METHODS: Final[dict[Operation, tuple[str, ...]]] = {
    "history": ("history",),
    "append": ("append_turn", "replace_last_reply"),
    "read": (
        "get",
        "all",
        "sessions",
        "messages",
        "messages_from",
        "export",
        "summary",
        "pair",
        "find",
        "of",
        "thread",
        "used",
    ),
    "write": (
        *("create", "patch", "delete", "add_messages", "edit_message", "delete_message", "fork", "import_lines"),
        *("vote", "begin", "renew", "finish", "abandon", "add", "keep"),
        *("cancel", "change_metadata", "require_writing"),
    ),
    "maintain": (
        *("sweep", "erase", "erase_owner", "remove_expired", "cut"),
        *("claim", "advance", "end", "release", "present", "open_ids", "in_store", "count", "spent"),
        "bytes_of_files",
    ),
}
OPERATIONS: Final[dict[str, Operation]] = {name: kind for kind, names in _METHODS.items() for name in names}
"""By the name of the method: `history` is read before a turn and `append` stores it, both while its client waits."""
