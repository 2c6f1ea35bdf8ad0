"""The server that cases of fields are tried on, and what their bodies name: `<session>`, `<message>`, `<answer>`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from models.repository.repository import Repository
from service.engine.protocol.messages import Request
from tests.fake_service import World, publish
from tests.tools import REASONING

TEMPLATE: Final = """{%- for document in documents or [] %}
{{- '<document ' + (document.id or '') + (document.title or '') + '>' + document.text }}{%- endfor %}
{%- if tools %}{%- for tool in tools %}{{- tool.function | tojson + '\\n' }}{%- endfor %}
{{- 'Call as <tool_call>\\n{...}\\n</tool_call><|im_end|>\\n' }}{%- endif %}
{%- if shout %}{{- 'SHOUT' }}{% endif %}""" + REASONING.replace(
    "message.role +", "message.role + (message.name or '') + (message.tool_call_id or '') +"
).replace("'\n<call>", "(call.id or '') + '\n<call>").replace("call>", "tool_call>")
"""Places everything that a template can place."""
TALK: Final = [
    {"role": "user", "content": "my lunch budget is 87,900"},
    {"role": "assistant", "content": "noted"},
    {"role": "user", "content": "salmon please, twice"},
    {"role": "assistant", "content": "two of salmon"},
    {"role": "user", "content": "what was my lunch budget"},
]


@dataclass
class Stage:
    world: World
    talk: str
    """A session with turns, of which each case gets a copy."""
    last: str
    made: dict[str, str] = field(default_factory=dict)

    @property
    def requests(self) -> list[Request]:
        """All that engines were asked, oldest first."""
        given = [request for engine in self.world.engines for request in engine.requests]
        return sorted(given, key=lambda request: request.arrival)

    async def filled(self, value: Any) -> Any:
        """Puts the names of new things into a body or a path."""
        if isinstance(value, dict):
            return {key: await self.filled(each) for key, each in value.items()}
        if isinstance(value, list):
            return [await self.filled(each) for each in value]
        if not isinstance(value, str) or "<" not in value:
            return value
        for mark, make in MAKERS.items():
            if mark in value:
                value = value.replace(mark, await make(self))
        return value

    async def post(self, path: str, body: dict[str, Any], method: str = "POST") -> dict[str, Any]:
        answer = await self.world.client.request(method, path, json=body)
        assert answer.is_success, answer.text
        return dict(answer.json())


async def staged(world: World) -> Stage:
    stage = Stage(world, "", "")
    stage.talk = (await stage.post("/v1/sessions", {}))["id"]
    for message in TALK[::2]:
        await stage.post("/generate", {"session_id": stage.talk, "messages": [message]})
    messages = (await world.client.get(f"/v1/sessions/{stage.talk}/messages")).json()["data"]
    stage.last = messages[-1]["id"]
    await stage.post("/v1/knowledge", {"text": "lunch budget: cellar"})
    await stage.post(
        "/v1/repository/models/other/aliases/stable", {"version": "1", "override": True, "reason": "a stage"}, "PUT"
    )
    return stage


async def _session(stage: Stage) -> str:
    made = await stage.post(f"/v1/sessions/{stage.talk}/fork", {"at": stage.last})
    stage.made["session"] = made["id"]
    return str(made["id"])


async def _messages(stage: Stage) -> list[dict[str, Any]]:
    answer = await stage.world.client.get(f"/v1/sessions/{stage.made['session']}/messages")
    return list(answer.json()["data"])


async def _message(stage: Stage) -> str:
    return str((await _messages(stage))[0]["id"])


async def _answer(stage: Stage) -> str:
    body = {"session_id": stage.talk, "messages": TALK[:1], "parameters": {"max_new_tokens": 2}}
    return str((await stage.post("/generate", body))["id"])


async def _completion(stage: Stage) -> str:
    return str((await stage.post("/v1/chat/completions", {"messages": TALK[:1], "store": True}))["id"])


async def _candidate(stage: Stage) -> str:
    """Ends a rollout that an earlier request began."""
    await stage.world.client.delete("/v1/repository/models/other/aliases/stable/rollout")
    return "stable"


async def _model(stage: Stage) -> str:
    """Unloads what an earlier request loaded."""
    await stage.world.client.delete("/v1/deployments/demo:1")
    return "demo:1"


async def _changed(stage: Stage) -> str:
    """An alias with a change to undo."""
    for version in ("1", "2"):
        await stage.post("/v1/repository/models/other/aliases/changed", {"version": version}, "PUT")
    return "changed"


async def _absent(stage: Stage) -> str:
    """An alias that points to nothing."""
    await stage.world.client.delete("/v1/repository/models/other/aliases/beta")
    return "beta"


async def _trial(stage: Stage) -> str:
    """An alias whose rollout's candidate breaks the gate."""
    alias = "/v1/repository/models/other/aliases/beta"
    await stage.post(alias, {"version": "1", "override": True, "reason": "a stage"}, "PUT")
    await stage.post(f"{alias}/rollout", {"candidate": "2", "weight": 10, "override": True}, "PUT")
    return "beta"


async def _loaded(stage: Stage) -> str:
    await stage.post("/generate", {"inputs": "hi", "model": "demo:1"})
    return "demo:1"


async def _conversation(stage: Stage) -> str:
    made = await stage.post("/v1/conversations", {"items": [{"role": "user", "content": "salmon"}]})
    stage.made["newest"] = made["id"]
    return str(made["id"])


async def _item(stage: Stage) -> str:
    """An item of the newest conversation."""
    answer = await stage.world.client.get(f"/v1/conversations/{stage.made['newest']}/items")
    return str(answer.json()["data"][0]["id"])


async def _response(stage: Stage) -> str:
    return str((await stage.post("/v1/responses", {"input": "salmon", "max_output_tokens": 3}))["id"])


async def _file(stage: Stage) -> str:
    body = {"model": "demo", "messages": TALK[:1], "max_tokens": 2}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    upload = {"file": ("in.jsonl", json.dumps(line).encode())}
    answer = await stage.world.client.post("/v1/files", data={"purpose": "batch"}, files=upload)
    return str(answer.json()["id"])


async def _key(stage: Stage) -> str:
    return str((await stage.post("/v1/keys", {"name": "shop", "scopes": ["generate"]}))["id"])


MAKERS: Final = {
    "<key>": _key,
    "<response>": _response,
    "<conversation>": _conversation,
    "<item>": _item,
    "<file>": _file,
    "<absent>": _absent,
    "<loaded>": _loaded,
    "<changed>": _changed,
    "<trial>": _trial,
    "<session>": _session,
    "<message>": _message,
    "<answer>": _answer,
    "<completion>": _completion,
    "<alias>": _candidate,
    "<unloaded>": _model,
}
PLACES: Final = {
    **{
        name: f"<{name.removesuffix('_id')}>"
        for name in ("session_id", "message_id", "response_id", "completion_id", "conversation_id", "item_id")
    },
    "name": "other",
    "alias": "<changed>",
    "version": "<version>",
    "id": "demo",
    "model": "demo",
    "file_id": "<file>",
}
"""What stands in paths."""


async def addressed(stage: Stage, path: str) -> str:
    """Returns the path with names of things that are there."""
    for name, mark in PLACES.items():
        if f"{{{name}}}" in path:
            path = path.replace(f"{{{name}}}", await _placed(stage, mark))
    return path


async def _placed(stage: Stage, mark: str) -> str:
    if (made := stage.made.get(mark.strip("<>"))) and mark in ("<completion>", "<conversation>", "<response>"):
        return made
    if mark == "<version>":
        return str(publish(Repository(stage.world.settings.data_dir), "other").version)
    return str(await stage.filled(mark))
