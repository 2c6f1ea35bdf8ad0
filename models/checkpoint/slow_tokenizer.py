"""The slow tokenizer's child has transformers make a `tokenizer.json` of older files (`limited`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def main(directory: str, subject: str, way_out: str, target: str) -> str:
    """Writes the file `target`. Returns the sentence about why that cannot be done, or ""."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # needed for no tokenizer, and half of the time
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            directory, use_fast=True, trust_remote_code=False, local_files_only=True
        )
        tokenizer.backend_tokenizer.save(target)
    except Exception as error:  # transformers and its tokenizer backends raise anything here
        return f"{subject} fails ({type(error).__name__}); {way_out}"
    return "" if Path(target).is_file() else f"{subject} writes nothing; {way_out}"
