"""An import's trial of the chat template, which `service.text` does in a limited child."""

from __future__ import annotations

from pathlib import Path

from models.checkpoint import limited


def try_chats(directory: Path) -> None:
    """Raises InvalidSource for a version in `directory` whose tokenizer or chat template a server could not use within
    bounds."""
    limited.run(
        "service.text.trial",
        str(directory),
        subject="The chat template",
        way_out="mend it, or leave it out",
    )
