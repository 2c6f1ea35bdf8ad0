"""The operations are the kinds of calls that take a session database's time, for its metrics."""

from __future__ import annotations

from typing import Literal

Operation = Literal["history", "append", "read", "write", "maintain"]
"""`history` is read before a turn and `append` stores it, both while its client waits."""
