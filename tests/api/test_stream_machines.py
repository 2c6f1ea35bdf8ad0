"""Every stream of every dialect passes its machine, however its answer goes and ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from service.engine.protocol.messages import FinishReason
from service.errors import Unavailable
from tests.api.fields.stage import TEMPLATE
from tests.api.stream_machines import DIALECTS, Told
from tests.fake_service import AfterHeaders, World, says, serving
from tests.migrated import begin_with_copies

THOUGHT, SAID = "hello world, 안녕하세요. stop", "Don't stop. 😀 도시락!"
CALL: Final = '<tool_call>\n{"name": "weather", "arguments": {"city": "서울"}}\n</tool_call>'
WEATHER: Final = {"name": "weather", "description": "", "parameters": {"type": "object", "properties": {}}}
TOOLS: Final[dict[str, list[dict[str, Any]]]] = {
    "/v1/chat/completions": [{"type": "function", "function": WEATHER}],
    "/v1/responses": [{"type": "function", **WEATHER}],
    "/v1/messages": [{"name": "weather", "input_schema": {"type": "object"}}],
}
ARGUMENTS: Final = ["weather", '{"city": "서울"}']
RAW: Final = frozenset({"/v1/completions", "/generate_stream", "/v2/models/demo/generate_stream"})
SCRIPTS: Final[dict[str, tuple[str, Told]]] = {
    "text": (SAID, Told(SAID)),
    "nothing": ("", Told()),
    "reasoning": (f"<think>\n{THOUGHT}\n</think>\n\n{SAID}", Told(SAID, THOUGHT)),
    "ends inside its reasoning": (f"<think>\n{THOUGHT}", Told("", THOUGHT)),
    "calls": (f"{SAID}\n{CALL}\n{CALL}", Told(SAID, calls=[ARGUMENTS, ARGUMENTS])),
    "a call behind reasoning": (f"<think>\n{THOUGHT}\n</think>\n\n{CALL}", Told("", THOUGHT, [ARGUMENTS])),
}
GONE: Final = Unavailable("planted", retry_after=1)
EARLY: Final = {"fail_after": 0}
ENDS: Final[dict[str, tuple[dict[str, Any], bool]]] = {
    "failure before the first token": ({**EARLY, "failure": GONE}, True),
    "failure": ({"fail_after": 4, "failure": GONE}, True),
    "defect": ({"fail_after": 4, "failure": ValueError("planted")}, True),
    "deadline before the first token": ({**EARLY, "end": FinishReason.DEADLINE}, True),
    "deadline": ({"fail_after": 4, "end": FinishReason.DEADLINE}, False),
    "numbers": ({"fail_after": 4, "end": FinishReason.ERROR}, False),
}
"""What the engine does, and whether the stream ends with an error."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def speaking(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    begin_with_copies()
    async with serving(tmp_path_factory.mktemp("speaking"), chat_template=TEMPLATE) as served:
        yield served


async def streamed(world: World, path: str, most: int | None = None, tools: bool = False) -> Told:
    machine, body, bound = DIALECTS[path]
    body = {**body, "stream": True} if not path.endswith("_stream") else dict(body)
    name, _, inner = bound.partition(".")
    if most is not None or name not in body:
        body[name] = {inner: most or 200} if inner else most or 200
    if tools:
        body["tools"] = TOOLS[path]
    answer = await world.client.post(path, json={"model": "demo", **body} if "/v2/" not in path else body)
    assert answer.status_code == 200, answer.text
    return machine(answer.text)


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.asyncio(loop_scope="module")
async def test_what_an_answer_says(speaking: World, path: str) -> None:
    """Each dialect says the same, and ends in its words; a raw prompt's answer has no parts."""
    for name, (script, wanted) in SCRIPTS.items():
        says(speaking, script)
        if wanted.calls and path not in TOOLS:
            continue
        told = await streamed(speaking, path, tools=bool(wanted.calls))
        assert told.end not in ("", "error"), name
        text = script if path in RAW else wanted.text
        parts = ("", []) if path in RAW else (wanted.reasoning, wanted.calls)
        assert (told.text.strip(), told.reasoning.strip(), told.calls) == (text, *parts), name


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.asyncio(loop_scope="module")
async def test_an_answer_that_a_limit_cuts_anywhere(speaking: World, path: str) -> None:
    for name in ("reasoning", "calls"):
        script, wanted = SCRIPTS[name]
        says(speaking, script)
        tools = bool(wanted.calls) and path in TOOLS
        count = len(speaking.tokenizer.encode(script, add_special_tokens=False))
        for most in range(1, count + 1, 3):
            assert (await streamed(speaking, path, most, tools)).end != "error", most


@pytest.mark.parametrize("end", ENDS)
async def test_streams_that_end_badly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """The headers have gone: the stream itself says what happened, in the middle of any part."""
    engine, fails = ENDS[end]
    engine = {**engine, "hold": AfterHeaders(monkeypatch)}
    async with serving(tmp_path, chat_template=TEMPLATE, engine=engine) as world:
        for name in ("text", "ends inside its reasoning", "a call behind reasoning"):
            script, wanted = SCRIPTS[name]
            says(world, script)
            for path in DIALECTS:
                told = await streamed(world, path, tools=bool(wanted.calls) and path in TOOLS)
                assert (told.end == "error") is fails, f"{path} {name}: {told}"
