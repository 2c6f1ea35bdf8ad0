"""Tiny tokenizers as a checkpoint's files, made on the spot. Usable from a REPL:

>>> from tests.tokenizers import *; tokenizer = Tokenizer.load(write(Path("/tmp/tiny")))
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from service.text.tokenizer import Tokenizer

CORPUS = [
    "안녕하세요, 도시락 하나 주세요! ",
    "hello world, don't stop .",
    "😀👩‍👩‍👧‍👦 \n\n\t",
    "cafe\u0301 ünï ▁ \ufffd",
] * 4
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = """{{ bos_token }}
{%- for document in documents or [] %}
    {{- '<|im_start|>document ' + (document.title or '') + '\n' + document.text + '<|im_end|>\n' }}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('no such role here') }}{% endif %}
    {{- '<|im_start|>' + message.role + '\n' + message.content | trim + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


def byte_level() -> RustTokenizer:
    """Byte-level BPE with a few Hangul merges; some added tokens are not special."""
    return RustTokenizer.from_str(_trained_byte_level())


@cache
def _trained_byte_level() -> str:
    rust = RustTokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=350, special_tokens=SPECIAL, initial_alphabet=alphabet)
    rust.train_from_iterator(CORPUS, trainer)
    rust.add_tokens(["<tool call>", "<think>", "도구", " "])
    return rust.to_str()


def llama() -> RustTokenizer:
    """SentencePiece-shaped: `▁` for spaces, one put in front, bytes for what the vocabulary lacks."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefghijklmnopqrstuvwxyz가나다라", "▁a", "▁h"]
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    rust = RustTokenizer(
        models.BPE(vocabulary, [("▁", "a"), ("▁", "h")], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    rust.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    rust.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    rust.add_special_tokens(SPECIAL)
    bos = rust.token_to_id("<s>")
    rust.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    return rust


def write(
    directory: Path,
    rust: RustTokenizer | None = None,
    *,
    chat_template: object = CHAT_TEMPLATE,
    **files: dict[str, object],
) -> Path:
    """Writes a version's tokenizer files and gives the directory back. `files`: more JSON files by stem, merged into
    what is there."""
    directory.mkdir(parents=True, exist_ok=True)
    (rust or byte_level()).save(str(directory / "tokenizer.json"))
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "model_max_length": 512,
    }
    if chat_template is not None:
        config["chat_template"] = chat_template
    for stem, body in {"tokenizer_config": config, **files}.items():
        merged = {**config, **body} if stem == "tokenizer_config" else body
        (directory / f"{stem}.json").write_text(json.dumps(merged), encoding="utf-8")
    return directory


def load(directory: Path, rust: RustTokenizer | None = None, **options: object) -> Tokenizer:
    """A loaded tiny tokenizer; `options` as for `write`."""
    return Tokenizer.load(write(directory, rust, **options))  # type: ignore[arg-type]
