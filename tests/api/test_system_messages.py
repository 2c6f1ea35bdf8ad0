"""System messages anywhere, the developer's role, and names: what the template writes is sent, the rest is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.repository.repository import Repository
from service.context.policies import POLICIES, turn_starts
from tests.api.reading import openai_error
from tests.fake_service import WINDOW, World, publish, serving
from tests.tokenizers import CHAT_TEMPLATE

CHAT = "/v1/chat/completions"
LATE = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "hi"},
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "world"},
]
FIRST_ONLY = CHAT_TEMPLATE.replace(
    "message.role not in ['system', 'user', 'assistant']", "message.role == 'system' and not loop.first"
)
LEFT_OUT = CHAT_TEMPLATE.replace(
    "{{- '<|im_start|>' + message.role", "{% if message.role == 'system' and not loop.first %}{% continue %}{% endif %}"
    "{{- '<|im_start|>' + message.role"
)  # fmt: skip
NAMED = CHAT_TEMPLATE.replace("message.role + '", "message.role + (' ' + message.name if message.name else '') + '")


async def ask(world: World, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    answer = await world.client.post(CHAT, json={"messages": messages, "max_tokens": 8, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["context"])


def sent(world: World) -> str:
    return world.tokenizer.decode(list(world.engine.requests[-1].token_ids), skip_special_tokens=False)


async def test_a_later_system_message_is_sent_where_it_stands(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        receipt = await ask(world, LATE)
        assert sent(world).index("hi<|im_end|>") < sent(world).index("system\nBe brief.") < sent(world).index("world")
        tokens = len(world.tokenizer.encode("Be brief.", add_special_tokens=False))
        assert receipt["parts"]["system"] == tokens and sum(receipt["parts"].values()) == receipt["used"]
        assert receipt["kept"] == ["m_0", "m_1", "m_2", "m_3"] and not receipt["notes"]
        native = await world.client.post("/generate", json={"messages": LATE, "parameters": {"max_new_tokens": 8}})
        assert native.status_code == 200 and len({each.token_ids for each in world.engine.requests}) == 1
        last = await ask(world, [*LATE, {"role": "system", "content": "Now answer."}])
        assert sent(world).endswith("system\nNow answer.<|im_end|>\n<|im_start|>assistant\n")
        assert last["parts"]["current"] == len(world.tokenizer.encode("Now answer.", add_special_tokens=False))


@pytest.mark.parametrize("template", [FIRST_ONLY, LEFT_OUT], ids=["refused", "left out"])
async def test_a_template_that_takes_none_refuses_it_by_name(tmp_path: Path, template: str) -> None:
    async with serving(tmp_path, chat_template=template) as world:
        told = openai_error(await world.client.post(CHAT, json={"messages": LATE}), 400, "invalid_request")
        assert told["param"] == "messages[2].role" and "send it first" in told["message"]
        await ask(world, [LATE[2], *LATE[:2], LATE[3]])


def test_a_system_message_belongs_to_the_user_message_behind_it() -> None:
    roles = ["user", "assistant", "system", "system", "user", "user", "tool", "system", "assistant", "user", "system"]
    assert turn_starts(roles) == [0, 2, 5, 9]
    assert turn_starts(["assistant", "system", "user"]) == [0, 1]
    assert turn_starts(["user"]) == [0] and turn_starts([]) == []


@pytest.mark.parametrize("policy", [each for each in POLICIES if each != "refuse"])
async def test_policies_keep_or_leave_it_out_with_its_turn(tmp_path: Path, policy: str) -> None:
    async with serving(tmp_path) as world:
        chat: list[dict[str, Any]] = []
        for at in range(12):
            chat += [{"role": "system", "content": f"rule {at}"}] * (at % 2)
            chat += [{"role": "user", "content": f"question {at} hello"}, {"role": "assistant", "content": "hi " * 9}]
        chat += [{"role": "system", "content": "last rule"}, {"role": "user", "content": "world"}]
        receipt = await ask(world, chat, context={"policy": policy})
        assert receipt["dropped"] and receipt["used"] + 8 <= WINDOW
        assert sum(receipt["parts"].values()) == receipt["used"] and "last rule" in sent(world)
        kept = {int(each[2:]) for each in receipt["kept"]}
        for at, message in enumerate(chat):
            if message["role"] == "system":
                assert (at in kept) == (at + 1 in kept), "parted from its turn"
                assert (message["content"] + "<|im_end|>" in sent(world)) == (at in kept)


async def test_names_are_written_or_told(tmp_path: Path) -> None:
    chat = [{**LATE[0], "name": "kim"}, LATE[1], {**LATE[3], "name": "lee"}]
    async with serving(tmp_path) as world:
        receipt = await ask(world, chat)
        assert "kim" not in sent(world)
        assert receipt["notes"] == ["the chat template does not write the `name` of messages: m_0, m_2"]
        assert not (await ask(world, [LATE[0]]))["notes"]
    publish(Repository(tmp_path / "named"), chat_template=NAMED)
    async with serving(tmp_path / "named") as world:
        receipt = await ask(world, chat)
        assert "user kim\nhello" in sent(world) and "user lee\nworld" in sent(world)
        assert not receipt["notes"]


ALTERNATING = """{%- for message in messages %}
    {%- set is_user = message.role == 'user' %}
    {%- if is_user != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must take turns.') }}{% endif %}
    {{- message.content }}
{%- endfor %}"""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/api/chat", "/generate", "/v1/responses"])
async def test_a_chat_that_the_template_refuses_is_refused_in_its_words(
    tmp_path: Path, path: str, stream: bool
) -> None:
    """Before the first byte. Anthropic's route makes one message of neighbours of one role."""
    turns = [{"role": "user", "content": "hi"}, {"role": "user", "content": "you"}]
    async with serving(tmp_path, chat_template=ALTERNATING) as world:
        messages = {"input" if path == "/v1/responses" else "messages": turns}
        answer = await world.client.post(path, json={"model": "demo", "stream": stream, **messages})
        assert answer.status_code in (400, 422)
        assert "Roles must take turns." in answer.text
        assert not world.engine.requests
