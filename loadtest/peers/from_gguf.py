"""This command writes a GGUF file's weights as a Hugging Face directory in fp32, by transformers and not by our import:
`from_gguf FILE TOKENIZER_DIR TARGET`. The tokenizer's files are copied."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file


def main(file: Path, tokenizer: Path, target: Path) -> None:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    target.mkdir()
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied}
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    config.pop("quantization_config", None)
    (target / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    for path in tokenizer.glob("*token*"):
        shutil.copyfile(path, target / path.name)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
