"""Well-known models by their published config.json: each is imported and answers as the library's own model does, or
is refused by the right sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from models.checkpoint.config_policy import accept
from models.errors import InvalidSource
from models.imports.importing import import_source
from models.repository.repository import Repository
from service.engine.protocol.messages import SamplingParams
from tests.checkpoints import save_llama, save_tokenizer
from tests.golden.known_models import REFUSED, SERVED, VOCABULARY, Config
from tests.golden.tiny import Loaded, answer, request

NEW = 6


def published(directory: Path, config: Config) -> Any:
    """Writes a checkpoint with random weights and this config.json. Returns the library's model."""
    directory.mkdir()
    accepted = accept(config)
    (directory / "config.json").write_text(json.dumps(accepted.config))
    read = transformers.AutoConfig.from_pretrained(str(directory))
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(read, dtype=torch.float32)  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(directory)
    if accepted.text_of:
        prefixed = {f"language_model.{name}": tensor.clone() for name, tensor in model.state_dict().items()}
        save_file(prefixed | {"vision_tower.a": torch.zeros(1)}, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config))
    save_tokenizer(directory)
    model.train(False)
    return model


@pytest.mark.parametrize("name", SERVED)
def test_it_answers_as_the_librarys_model(tmp_path: Path, name: str) -> None:
    model, repository = published(tmp_path / "source", SERVED[name]), Repository(tmp_path / "data")
    manifest = import_source(repository, str(tmp_path / "source"), "demo", precision="fp32")
    loaded = Loaded.of(repository.path(manifest), "fp32", max_model_len=manifest.context_window)
    prompts = [
        [(7 * i * j + 3 * j + i) % VOCABULARY for j in range(length)] for i, length in enumerate((3, 40, 100), 1)
    ]
    requests = [request(str(i), prompt, SamplingParams(max_tokens=NEW)) for i, prompt in enumerate(prompts)]
    found = answer(loaded.core(), {0: requests})
    for number, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        told = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False, eos_token_id=None
        )
        assert found[str(number)].token_ids == tuple(told[0, len(prompt) :].tolist())


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_the_right_sentence(tmp_path: Path, name: str) -> None:
    config, said = REFUSED[name]
    source = save_llama(tmp_path / "source")
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidSource, match=said):
        import_source(Repository(tmp_path / "data"), str(source), "demo")
