"""A GGUF file's vocabulary becomes the tokenizer's files. transformers builds it; what it leaves out is written here.

A file has the tokens, their kinds and merges, and of the way in which text is split a name only. A file without merges
has them by its tokens, and long tokens have many; so a limited child builds the tokenizer (`limited`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from models.checkpoint import limited
from models.checkpoint.tokenizer_files import MOST_BYTES
from models.errors import InvalidSource
from models.imports.gguf_splits import DEFAULT, SPLITS

_LLAMA3: Final = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken"}
)
"""Names of splits whose vocabularies put BOS before a text, unless a file says otherwise."""
_TAKE_WHOLE_PIECES: Final = _LLAMA3 | {"gpt-4o", "minicpm5", "youtu"}
"""Names of splits whose pieces are taken as they are where they are tokens, and by merges only where not."""
_STOPS: Final = {
    "gemma": ("<end_of_turn>",),
    "gemma2": ("<end_of_turn>",),
    "gemma3": ("<end_of_turn>",),
    "gpt-oss": ("<|return|>", "<|endoftext|>", "<|call|>"),
}
"""Tokens that end an answer of a family, whatever kind a file gives them."""
# fmt: off
_ENDS: Final = frozenset({
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>",
    "<end_of_turn>", "<turn|>", "<|tool_response>", "<|endoftext|>", "<|end_of_text|>", "<end_of_utterance>", "</s>",
    "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~[", "<｜end▁of▁sentence｜>",
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<reponame>",
    "<|file_sep|>",
})
# fmt: on
"""Control tokens that end an answer by their texts, in files that name one of them or none. llama.cpp knows them so
(`special_eog_ids` of its src/llama-vocab.cpp)."""
_HARMONY: Final = {"<|return|>", "<|call|>"}
"""Beside both, `<|end|>` ends a message of an answer, and not the answer."""
_NORMAL: Final = 1
_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_SPACE: Final = "\u2581"
_WAY_OUT: Final = "import the safetensors checkpoint that the file was made of"
_LIMITS: Final = limited.Limits(seconds=60, bytes=4 << 30, written=MOST_BYTES)
"""Of the child; for a vocabulary of 262,144 tokens it takes 6 s and 600 MB."""
_STOP_KEYS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")


def stops(values: Mapping[str, Any], architecture: str, tokens: Sequence[tuple[str, bool]]) -> int | list[int] | None:
    """Returns the ids of the tokens that end an answer, as config.json has them. `values` are the file's metadata,
    `tokens` the texts by id, each with whether it is a control token."""
    named = [values.get(f"tokenizer.ggml.{key}") for key in _STOP_KEYS]
    own, ends = set(_STOPS.get(architecture, ())), _ENDS
    if {text for text, _ in tokens} >= _HARMONY:
        ends -= {"<|end|>"}
    ids = [*named, *(id for id, (text, control) in enumerate(tokens) if text in own or (control and text in ends))]
    found = list(dict.fromkeys(id for id in ids if id is not None))
    return found if len(found) > 1 else next(iter(found), None)


def write_tokenizer(path: Path, target: Path) -> list[tuple[str, bool]]:
    """Writes the tokenizer of the file `path` into the directory `target`. Returns the tokens' texts by id, each with
    whether it is a control token. Raises InvalidSource for a byte-level tokenizer whose way of splitting text is not
    known, and for one that a limited child cannot make."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import get_gguf_tokenizer

    architecture, vocabulary, options = get_gguf_tokenizer(str(path))
    kinds = vocabulary.get("token_type") or [_NORMAL] * len(vocabulary["tokens"])
    tokens = [(text, kind == _CONTROL) for text, kind in zip(vocabulary["tokens"], kinds, strict=True)]
    subject = f"The tokenizer of {path.name}"
    with TemporaryDirectory() as directory:
        given = Path(directory, "vocabulary.json")
        given.write_text(json.dumps([architecture, vocabulary, options], ensure_ascii=False), encoding="utf-8")
        words = (str(given), str(target), subject)
        limited.run("models.imports.gguf_tokenizer", *words, subject=subject, way_out=_WAY_OUT, limits=_LIMITS)
    return tokens


def main(given: str, target: str, subject: str) -> str:
    """The child. Writes the tokenizer of the vocabulary in the file `given` into the directory `target`. Returns the
    sentence about why that cannot be done, or ""."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # needed for no tokenizer, and half of the time
    architecture, vocabulary, options = json.loads(Path(given).read_text(encoding="utf-8"))
    try:
        _write(architecture, vocabulary, options, Path(target))
    except InvalidSource as error:
        return str(error)
    except MemoryError:
        raise
    except Exception as error:  # transformers and tokenizers raise anything here
        return f"{subject} cannot be read ({type(error).__name__}: {str(error)[:200]}); {_WAY_OUT}"
    return ""


def _write(architecture: str, vocabulary: dict[str, Any], options: dict[str, Any], target: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS, convert_gguf_tokenizer

    is_gemma = architecture.startswith("gemma") and vocabulary.get("tokenizer_type") == "llama"
    if is_gemma:
        vocabulary = _spelled(vocabulary)
    splits = str(vocabulary.get("pre_tokenizer_type") or DEFAULT)
    is_byte_level = vocabulary.get("tokenizer_type") == "gpt2"
    if is_byte_level and splits not in GGUF_PRE_TOKENIZER_SPLITS.keys() | SPLITS.keys():
        raise InvalidSource(f"the file's tokenizer splits text by {str(splits)[:40]!r}, which is not read from GGUF")
    backend, _ = convert_gguf_tokenizer(architecture, vocabulary)
    whole = json.loads(backend.to_str())
    own = set(vocabulary["tokens"])  # the library's classes add tokens of their own, which the model has no row for
    whole["added_tokens"] = [token for token in whole["added_tokens"] if token["content"] in own]
    if is_gemma:
        whole["added_tokens"] = sorted(whole["added_tokens"], key=lambda token: int(token["id"]))
    if is_byte_level and splits in SPLITS:
        whole["pre_tokenizer"] = _pre_tokenizer(SPLITS[splits])
    if is_byte_level and splits in _TAKE_WHOLE_PIECES:
        whole["model"]["ignore_merges"] = True
    if is_byte_level and splits in _LLAMA3:
        options.setdefault("add_bos_token", True)
    backend = Tokenizer.from_str(json.dumps(whole))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **options)  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(target)


def _pre_tokenizer(expressions: Sequence[str]) -> dict[str, Any]:
    """Returns the pre-tokenizer of a tokenizer.json: each of `expressions` splits what those before it left."""
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False} for each in expressions
    ]
    steps.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False})
    return {"type": "Sequence", "pretokenizers": steps}


def _spelled(vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns Gemma's vocabulary as sentencepiece has it, with the merges in the order of the published tokenizer.

    A file has U+2581 as a space in the tokens that the user defines, and of their scores it has none: they are the
    best, as those of control tokens. Of equal scores the merge with the longer parts is the better one."""
    from transformers.tokenization_utils_base import generate_merges

    kinds = vocabulary["token_type"]
    tokens = [
        text.replace(" ", _SPACE) if kind == _USER_DEFINED else text
        for text, kind in zip(vocabulary["tokens"], kinds, strict=True)
    ]
    scores = {
        text: score if kind == _NORMAL else 0.0
        for text, score, kind in zip(tokens, vocabulary["scores"], kinds, strict=True)
    }
    merges = generate_merges({text: id for id, text in enumerate(tokens)}, scores)
    return {**vocabulary, "tokens": tokens, "merges": [" ".join(pair) for pair in merges]}
