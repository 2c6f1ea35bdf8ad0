"""An example is one request that the served model answers well, as it is typed into a terminal. This module knows no
connection."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

KEY: Final = '-H "Authorization: Bearer $DOSIRAK_ADMIN_KEY"'
"""The key itself is shown nowhere: the shell puts it in."""


@dataclass(frozen=True, slots=True)
class Example:
    path: str
    body: Mapping[str, object]

    def curl(self, base_url: str, keyed: bool) -> str:
        """Returns the command for a server at `base_url`, on one line; with the key where the server has one."""
        url = shlex.quote(base_url.rstrip("/") + self.path)
        data = shlex.quote(json.dumps(self.body, ensure_ascii=False))
        return " ".join(["curl", url, *([KEY] if keyed else []), "-H 'Content-Type: application/json' -d", data])


def _chat(text: str) -> Example:
    """Greedy, for OpenAI's default is to sample at temperature 1, where a small model says something else at times."""
    messages = [{"role": "user", "content": text}]
    return Example("/v1/chat/completions", {"messages": messages, "max_tokens": 64, "temperature": 0})


DEMO: Final = _chat("안녕하세요")
CHAT: Final = _chat("Write one sentence about rice.")
TEXT: Final = Example("/generate", {"inputs": "Rice is", "parameters": {"max_new_tokens": 32}})


def example_for(is_demo: bool, chats: bool) -> Example:
    """Returns the demo's greeting, a question for a model that chats, or the beginning of a text for one that only
    continues texts."""
    if not chats:
        return TEXT
    return DEMO if is_demo else CHAT
