"""The file names are those of a checkpoint's parts, as `save_pretrained` gives them. They say nothing of contents."""

from __future__ import annotations

from typing import Final

from models.checkpoint import tokenizer_files

COPIED: Final = frozenset({"config.json", "generation_config.json", "chat_template.jinja", "chat_template.json"}) | set(
    tokenizer_files.FILES
)
"""What a version keeps besides its weights."""
CARDS: Final = frozenset({"README.md", "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE"})
PICKLED: Final = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".h5", ".msgpack", ".joblib", ".dill"})
"""Endings of weights whose reading can run code, and of other libraries' weights."""
