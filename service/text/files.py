"""This module reads the tokenizer files of a version into plain facts. It runs neither templates nor tokenizers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from service.errors import InvalidRequest

Json = object
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "n_ctx")
_NO_LENGTH = 10**12
"""transformers writes 10^30 for "unknown"."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The facts of a version's tokenizer. `tokenizer` is the text of tokenizer.json. `added` holds (content, special)
    of tokenizer_config.json in id order: older checkpoints name tokens there that tokenizer.json lacks.
    `model_max_length` is in tokens, 0 if unknown. `class_name` is the library's name of the tokenizer's class."""

    tokenizer: str
    named_tokens: Mapping[str, str]
    added: tuple[tuple[str, bool], ...]
    chat_template: str | None
    eos_token_ids: tuple[int, ...]
    model_max_length: int
    class_name: str | None = None
    tool_template: str | None = None
    """The template of chats with tools, where there is one of its own (`tool_use`)."""


def read_files(directory: Path) -> TokenizerFiles:
    """Reads the files. Raises InvalidRequest if tokenizer.json is missing or a file has the wrong form."""
    tokenizer = _text(directory / "tokenizer.json")
    if tokenizer is None:
        raise InvalidRequest("The version has no tokenizer.json; import it with its fast tokenizer.", param="model")
    config = {**_json(directory / "special_tokens_map.json"), **_json(directory / "tokenizer_config.json")}
    model = _json(directory / "config.json")
    generation = _json(directory / "generation_config.json")
    named = _named_tokens(config)
    plain, with_tools = _chat_templates(directory, config)
    return TokenizerFiles(
        tokenizer=tokenizer,
        named_tokens=named,
        added=(*_added_tokens(config), *((token, True) for token in _extra_tokens(config))),
        chat_template=plain,
        tool_template=with_tools,
        eos_token_ids=(*_ids(generation.get("eos_token_id")), *_ids(model.get("eos_token_id"))),
        model_max_length=_length([config.get("model_max_length"), *(model.get(key) for key in _LENGTH_KEYS)]),
        class_name=_content(config.get("tokenizer_class")),
    )


def read_chat_templates(directory: Path) -> tuple[str | None, str | None]:
    """Reads the chat templates alone: the usual one, and one of chats with tools; None where there is none. Raises
    InvalidRequest if a file has the wrong form."""
    return _chat_templates(directory, _json(directory / "tokenizer_config.json"))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path.name} is not UTF-8 text.", param="model") from error


def _json(path: Path) -> dict[str, Json]:
    text = _text(path)
    if text is None:
        return {}
    try:
        value: Json = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{path.name} is not valid JSON.", param="model") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path.name} must hold a JSON object.", param="model")
    return value


def _content(token: Json) -> str | None:
    """Returns the text of a token, which a file writes as text or as {"content": text, …}."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _named_tokens(config: Mapping[str, Json]) -> dict[str, str]:
    found = {name: _content(config.get(name)) for name in NAMED_TOKENS}
    extra = config.get("extra_special_tokens")
    if isinstance(extra, dict):
        found |= {str(name): _content(token) for name, token in extra.items()}
    return {name: token for name, token in found.items() if token is not None}


def _extra_tokens(config: Mapping[str, Json]) -> Iterable[str]:
    for key in ("additional_special_tokens", "extra_special_tokens"):
        tokens = config.get(key)
        if isinstance(tokens, list):
            yield from (text for token in tokens if (text := _content(token)) is not None)


def _added_tokens(config: Mapping[str, Json]) -> Iterable[tuple[str, bool]]:
    added = config.get("added_tokens_decoder")
    if not isinstance(added, dict):
        return
    for _, token in sorted(added.items(), key=lambda item: int(item[0]) if str(item[0]).isdecimal() else -1):
        text = _content(token)
        if text is not None and isinstance(token, dict):
            yield text, token.get("special") is True


def _chat_templates(directory: Path, config: Mapping[str, Json]) -> tuple[str | None, str | None]:
    """Returns the template of chat_template.jinja, else chat_template.json, else tokenizer_config.json; of several
    those named `default` and `tool_use`."""
    source = _text(directory / "chat_template.jinja")
    if source is not None:
        return source, None
    template = _json(directory / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(template, list):
        template = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
    named = template if isinstance(template, dict) else {"default": template}
    plain, with_tools = (each if isinstance(each, str) else None for each in map(named.get, ("default", "tool_use")))
    return plain, with_tools


def _ids(value: Json) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(item for item in values if isinstance(item, int) and not isinstance(item, bool))


def _length(candidates: Iterable[Json]) -> int:
    lengths = [int(value) for value in candidates if isinstance(value, int | float) and 0 < value < _NO_LENGTH]
    return min(lengths, default=0)
