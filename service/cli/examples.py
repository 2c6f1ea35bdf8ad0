"""The examples at the end of each verb's `--help`, and what all verbs share. This module knows the verbs' names and no
work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import typer

COMMON: Final = """\b
Settings are environment variables, DOSIRAK_*; docs/settings.md lists them.
  DOSIRAK_DATA_DIR   the model repository and the chat history
  DOSIRAK_HOST, DOSIRAK_PORT, DOSIRAK_ADMIN_KEY   the server, also for `dosirak chat` and `dosirak keys`

\b
Exit status: 0 done, 1 refused (the sentence says why), 2 wrong words or settings, 130 ended by Ctrl-C.

\b
Examples:
  dosirak serve
  dosirak chat
  dosirak model list
  dosirak --install-completion
"""
EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "serve": (
        "dosirak serve",
        "dosirak serve demo",
        "dosirak serve smollm2",
        "dosirak serve Qwen/Qwen2.5-0.5B-Instruct",
        "dosirak serve Qwen/Qwen2.5-0.5B-Instruct@main --pull",
        "dosirak serve TinyLlama/TinyLlama-1.1B-Chat-v1.0 --precision bf16 --name tiny",
        "dosirak serve ./my-checkpoint --evaluate",
        "dosirak serve chat --draft small:1",
        "dosirak serve --settings tuned.env",
        "DOSIRAK_PORT=3001 dosirak serve chat@staging",
    ),
    "tune": (
        "dosirak tune demo --load loadtest/scenarios/chat.toml",
        "dosirak tune chat@staging --load load.toml --seconds 900 --out staging.env",
        "dosirak serve --settings tuned.env",
    ),
    "chat": (
        "dosirak chat",
        "dosirak chat --session s_4ZJ_jjJKe6tBCAwIkBQpyw --policy retrieve",
        "dosirak chat --url http://gpu.example:3000 --model chat:3 --temperature 0",
        "echo 안녕하세요 | dosirak chat --json",
    ),
    "doctor": ("dosirak doctor", "dosirak doctor --json", "dosirak doctor --no-measure"),
    "recall": ("dosirak recall", "dosirak recall demo:2 --questions 20", "dosirak recall demo --policies"),
    "compare": ("dosirak compare demo:1 demo:2", "dosirak compare chat:1 chat:2 --texts 20 --int8-kv"),
    "model import": (
        "dosirak model import TinyLlama/TinyLlama-1.1B-Chat-v1.0 tinyllama",
        "dosirak model import ./checkpoint chat:7 --precision int8 --evaluate quick",
        "dosirak model import ./adapter chat --adapter-of chat:1",
        "dosirak model import chat.tar chat",
    ),
    "model quantize": ("dosirak model quantize chat:1", "dosirak model quantize chat:1 --precision int4"),
    "model evaluate": (
        "dosirak model evaluate chat:2",
        "dosirak model evaluate chat:2 --effort full --text dialogues.txt",
    ),
    "model list": ("dosirak model list", "dosirak model list --json"),
    "model catalogue": ("dosirak model catalogue", "dosirak serve smollm2"),
    "model show": ("dosirak model show chat:2", "dosirak model show chat@production --json"),
    "model compare": ("dosirak model compare chat:1 chat:2",),
    "model verify": ("dosirak model verify chat:2",),
    "model export": ("dosirak model export chat:2 chat-2.tar",),
    "model delete": ("dosirak model delete chat:1 --reason 'replaced by chat:2'",),
    "model gc": ("dosirak model gc", "dosirak model gc --keep 2"),
    "model promote": (
        "dosirak model promote chat:2 --reason 'better recall'",
        "dosirak model promote chat:2 --alias staging",
        "dosirak model promote chat:2 --override --reason 'slower, and accepted'",
    ),
    "model rollback": ("dosirak model rollback chat --reason 'complaints'",),
    "model history": ("dosirak model history chat", "dosirak model history chat --at 2026-11-01"),
    "model rollout": (
        "dosirak model rollout chat --candidate 3 --weight 5",
        "dosirak model rollout chat --promote",
        "dosirak model rollout chat --abort --reason 'worse answers'",
    ),
    "store init": ("dosirak store init file:///mnt/models", "dosirak store init s3://models/dosirak"),
    "store push": ("DOSIRAK_STORE_URL=file:///mnt/models dosirak store push",),
    "store bind": ("DOSIRAK_STORE_URL=s3://models/dosirak dosirak store bind",),
    "store verify": ("DOSIRAK_STORE_URL=s3://models/dosirak dosirak store verify",),
    "store status": ("DOSIRAK_STORE_URL=s3://models/dosirak dosirak store status --json",),
    "audit verify": (
        "dosirak audit verify",
        "dosirak audit verify --log server.log",
        "dosirak audit verify --anchor 41:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    ),
    "audit export": ("dosirak audit export",),
    "audit cut": ("dosirak audit cut --older-than-days 400",),
    "node": (
        "dosirak node --rank 1 --head 10.1.0.5",
        "DOSIRAK_TRUSTED_NETWORK=10.1.0.0/16 dosirak node --rank 2 --head head.example.org",
    ),
    "keys create": (
        "dosirak keys create shop",
        "dosirak keys create shop --scope generate --scope sessions --model chat --tokens-per-day 1000000",
        "dosirak keys create ci --expires-at 2030-01-31T00:00:00Z --url https://models.example --json",
    ),
    "keys list": ("dosirak keys list", "dosirak keys list --json"),
    "keys show": ("dosirak keys show key_9f2c61f0d4c74a0f",),
    "keys rotate": ("dosirak keys rotate key_9f2c61f0d4c74a0f --grace-seconds 3600",),
    "keys delete": ("dosirak keys delete key_9f2c61f0d4c74a0f",),
    "guard hash": ("dosirak guard hash contracts.txt letters.txt --output sensitive.grams",),
    "guard check": ("dosirak guard check answer.txt --file guard.toml", "dosirak guard check - --file guard.toml"),
}


def put_examples(app: typer.Typer) -> None:
    """Puts the examples under the help of each verb that has no end of its own."""
    for name, command in _verbs(app):
        if command.epilog is None and name in EXAMPLES:
            command.epilog = "\n".join(["\b", "Examples:", *(f"  {line}" for line in EXAMPLES[name])])


def _verbs(app: typer.Typer, prefix: str = "") -> Iterator[tuple[str, typer.models.CommandInfo]]:
    for command in app.registered_commands:
        name = command.name or (command.callback.__name__ if command.callback else "")
        yield f"{prefix}{name}", command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _verbs(group.typer_instance, f"{prefix}{group.name} ")
