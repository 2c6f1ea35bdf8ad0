"""Tokens that a checkpoint's tokenizer has and its model has not: the checkpoint is real and imported, and `[PAD]` was
added to its tokenizer_config.json alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.imports.importing import import_source
from models.repository.repository import Repository
from tests.checkpoints import VOCABULARY, save_llama
from tests.fake_service import serving

ADDED = ["[A]", "[B]", "[C]", "[PAD]"]
"""The tokenizer's own ids end at 256: the last of these is the first id that the embedding has no row for."""
PLAIN = {"special": True, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
SHORT = {"parameters": {"max_new_tokens": 5}}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("added")
    checkpoint = save_llama(directory / "llama")
    added = {str(257 + index): {"content": text, **PLAIN} for index, text in enumerate(ADDED)}
    config = {"added_tokens_decoder": added, "pad_token": "[PAD]", "chat_template": TEMPLATE}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(config))
    import_source(Repository(directory / "data"), str(checkpoint), "demo")
    return directory / "data"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"inputs": "a [PAD] b", **SHORT}),
        ("/generate_stream", {"inputs": "[PAD]", **SHORT}),
        ("/generate", {"input_ids": [65, VOCABULARY], **SHORT}),
        ("/generate", {"inputs": "a", "parameters": {"logit_bias": {str(VOCABULARY): 1}}}),
        ("/v1/completions", {"prompt": "a [PAD]", "model": "demo"}),
        ("/v1/completions", {"prompt": [65, VOCABULARY], "model": "demo"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "logit_bias": {str(VOCABULARY): 1}}),
    ],
)
async def test_an_added_token_without_a_row_is_refused(directory: Path, path: str, body: dict[str, Any]) -> None:
    async with serving(directory) as world:
        assert world.tokenizer.vocab_size == VOCABULARY + 1
        response = await world.client.post(path, json=body)
        assert response.status_code in (400, 422), response.text
        assert f"from 0 to {VOCABULARY - 1}" in response.text
        assert not world.engine.requests


async def test_a_chat_cannot_write_an_added_token(directory: Path) -> None:
    """In a message it is a word as any other."""
    async with serving(directory) as world:
        messages = [{"role": "user", "content": "a [PAD] b"}]
        response = await world.client.post("/v1/chat/completions", json={"messages": messages})
        assert response.status_code == 200
        assert max(world.engine.requests[0].token_ids) < VOCABULARY
