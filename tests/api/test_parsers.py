"""A version's parsers: how its reasoning and its calls are read, changed without a new import."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from models.repository.parsers import Parsers, parsers_of, put_parsers
from models.repository.repository import Repository
from tests.api.test_cut_calls import ASK, BY_NAME, TOOLS, chat, world_of
from tests.fake_service import World, publish, says
from tests.families import BASE
from tests.tools import WITH_TOOLS
from tests.waiting import until

VERSION = "/v1/repository/models/demo/versions/1"
UNKNOWN = BASE.replace("CALLS", "{{ m.tool_calls }}").replace("HINT", "'call them'")
SAYS = BY_NAME["Hermes, Qwen"].says


async def patched(world: World, status: int = 200, **parsers: str | None) -> dict[str, Any]:
    answer = await world.client.patch(VERSION, json=parsers)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


async def capabilities(world: World) -> list[str]:
    return list((await world.client.post("/api/show", json={"model": "demo"})).json()["capabilities"])


async def test_a_tool_parser_acts_at_once_and_is_taken_back(tmp_path: Path) -> None:
    async with world_of(tmp_path, UNKNOWN) as world:
        says(world, SAYS)
        body = {"messages": ASK, "tools": TOOLS}
        refused = await world.client.post("/v1/chat/completions", json=body)
        assert refused.status_code == 400 and "tool_parser" in refused.json()["error"]["message"]
        assert "tools" not in await capabilities(world)
        shown = await patched(world, tool_parser="hermes")
        assert shown == {"model": "demo:1", "reasoning_parser": None, "tool_parser": "hermes"}
        assert (await world.client.get(VERSION)).json()["tool_parser"] == "hermes"
        assert len((await chat(world, ASK))["message"]["tool_calls"]) == 2
        assert "tools" in await capabilities(world)
        await patched(world, tool_parser=None)
        assert (await world.client.post("/v1/chat/completions", json=body)).status_code == 400
        assert "tools" not in await capabilities(world)


async def test_a_reasoning_parser_acts_on_the_next_answer(tmp_path: Path) -> None:
    async with world_of(tmp_path, WITH_TOOLS) as world:
        says(world, "hm</think>\n\nHello.")
        assert (await chat(world, ASK))["message"]["content"] == "hm</think>\n\nHello."
        await patched(world, reasoning_parser="think-begun")
        message = (await chat(world, ASK))["message"]
        assert (message["reasoning_content"], message["content"]) == ("hm", "Hello.")
        assert "thinking" in await capabilities(world)
        says(world, "<think>hm</think>Hello.")
        await patched(world, reasoning_parser="none")
        assert (await chat(world, ASK))["message"]["content"] == "<think>hm</think>Hello."
        await patched(world, reasoning_parser="think", tool_parser="none")
        answer = await world.client.post("/v1/chat/completions", json={"messages": ASK, "max_tokens": 90})
        assert answer.json()["choices"][0]["message"]["content"] == "Hello."
        tools = await world.client.post("/v1/chat/completions", json={"messages": ASK, "tools": TOOLS})
        assert tools.status_code == 400


async def test_parsers_that_another_process_sets_are_followed(tmp_path: Path) -> None:
    async with world_of(tmp_path, WITH_TOOLS) as world:
        deployments, repository = world.deployments, world.deployments.repository
        put_parsers(repository, deployments.resolve("demo"), Parsers(reasoning_parser="think"))
        [deployment] = deployments.all()
        await until(lambda: deployment.tokenizer.reasoning_form is not None)


def test_a_version_made_of_another_has_its_parsers(tmp_path: Path) -> None:
    """A copy, as of the template: later changes of the parent are its own. A parent of other content gives nothing."""
    repository, parsers = Repository(tmp_path), Parsers("think-begun", "hermes")
    parent = publish(repository)
    put_parsers(repository, parent, parsers)
    child = publish(repository, parent=parent)
    put_parsers(repository, parent, Parsers())
    assert parsers_of(repository, publish(repository, parent=child)) == parsers
    assert parsers_of(repository, publish(repository, parent=parent)) == Parsers()
    stranger = replace(publish(repository, "other"), name=child.name, version=child.version)
    assert parsers_of(repository, publish(repository, parent=stranger)) == Parsers()


async def test_unknown_parsers_are_refused_by_name(tmp_path: Path) -> None:
    async with world_of(tmp_path, WITH_TOOLS) as world:
        for field in ("reasoning_parser", "tool_parser"):
            assert field in (await patched(world, 422, **{field: "best"}))["error"]


async def test_a_template_named_tool_use_places_tools(tmp_path: Path) -> None:
    """The list form of tokenizer_config.json: `default` for plain chats, `tool_use` for those with tools."""
    plain = BASE.replace("CALLS", "").replace("HINT", "''").replace("{%- if tools %}", "{%- if false %}")
    templates = [{"name": "default", "template": plain}, {"name": "tool_use", "template": WITH_TOOLS}]
    async with world_of(tmp_path, templates) as world:
        assert "tools" in await capabilities(world)
        says(world, SAYS)
        message = (await chat(world, ASK))["message"]
        assert len(message["tool_calls"]) == 2
        results = [{"role": "tool", "tool_call_id": each["id"], "content": "ok"} for each in message["tool_calls"]]
        await chat(world, [*ASK, message, *results])
        answer = await world.client.post("/v1/chat/completions", json={"messages": ASK, "max_tokens": 4})
        prompts = [world.tokenizer.decode(list(each.token_ids)) for each in world.engine.requests]
        assert answer.status_code == 200 and ["weather" in each for each in prompts] == [True, True, False]
