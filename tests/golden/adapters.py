"""PEFT adapters of tiny models with weights that matter, and versions with them as the engine sees them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

from models.checkpoint.config_policy import read_json
from models.checkpoint.safetensors_file import read_header
from models.manifest import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from models.weights import adapters, peft_adapters, skeleton
from models.weights.conversion import rewrite


def base_model(directory: Path, dtype: torch.dtype = torch.float32) -> Any:
    has_encoder = read_json(directory / "config.json").get("is_encoder_decoder")
    family = transformers.AutoModelForSeq2SeqLM if has_encoder else transformers.AutoModelForCausalLM
    return family.from_pretrained(directory, dtype=dtype, local_files_only=True)


def train(
    base: Path, directory: Path, seed: int, spread: float = 0.15, save_embedding_layers: Any = False, **config: Any
) -> Path:
    """What PEFT saves for a base's linear layers; both matrices, and what was trained whole, random with the deviation
    `spread`, so that every layer's part changes answers."""
    torch.manual_seed(seed)
    fields = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "lora_dropout": 0.1, **config}
    model = peft.get_peft_model(base_model(base), peft.LoraConfig(**fields))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.copy_(torch.randn_like(parameter) * spread)
    model.save_pretrained(str(directory), save_embedding_layers=save_embedding_layers)
    return directory


def version(base: Path, adapter: Path, directory: Path, dtype: str = "BF16") -> Path:
    """A directory as an import makes it: the base's files and the adapter's."""
    shutil.copytree(base, directory)
    tensors = read_header(adapter / ADAPTER_WEIGHTS)
    checked = peft_adapters.check(read_json(adapter / ADAPTER_CONFIG), tensors, skeleton.build(base))
    rewrite(adapter / ADAPTER_WEIGHTS, directory / ADAPTER_WEIGHTS, dtype, checked.kept)
    (directory / ADAPTER_CONFIG).write_text(adapters.as_text(checked.modules))
    return directory
