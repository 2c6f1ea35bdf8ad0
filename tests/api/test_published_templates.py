"""Chat templates as the makers of models publish them: what each writes for two turns of two calls is read as these
calls, plain and streamed, and is taken back; or tools are refused by name. The templates come out of a source archive
of a package, read where the test runs."""

from __future__ import annotations

import json
import re
import tarfile
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from models.repository.repository import Repository
from service.text.messages import ChatOptions, Message, Tool, ToolCall
from service.text.tokenizer import Tokenizer
from service.text.tools.ids import new_id, with_ids
from tests import fake_service
from tests.api.test_cut_calls import ASK, TOOLS, results
from tests.api.test_tools import streamed
from tests.archives import source_archive
from tests.fake_service import World, publish, says, serving
from tests.families import BASE
from tests.unit.test_tool_families import CALLED

pytestmark = pytest.mark.nightly
PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
REFUSED: Final = "refused"
"""Its calls are in a form that is not read."""
DESCRIBED: Final[list[dict[str, Any]]] = deepcopy(TOOLS)
for _function in (each["function"] for each in DESCRIBED):
    for _described in (_function, *_function["parameters"]["properties"].values()):
        _described["description"] = "what it is"
"""Some templates write the description of each tool and argument, whether there is one or not."""
FAILS: Final = "fails"
"""The template refuses a chat with tools, or one with calls, with a sentence of its own."""
OUTCOMES: Final = {
    "Apertus-8B-Instruct": REFUSED,
    "Apriel-1.6-15b-Thinker-fixed": "jamba",
    "Bielik-11B-v3.0-Instruct": "hermes",
    "ByteDance-Seed-OSS": "seed",
    "Cohere2MoE": "command",
    "CohereForAI-c4ai-command-r-plus-tool_use": "command-r",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command",
    "GLM-4.6": "glm",
    "GLM-4.7-Flash": "glm",
    "GigaChat3-10B-A1.8B": REFUSED,
    "GigaChat3.1-10B-A1.8B": "gigachat",
    "HuggingFaceTB-SmolLM3-3B": "generic",
    "Kimi-K2-Instruct": FAILS,
    "Kimi-K2-Thinking": FAILS,
    "Kimi-K3": REFUSED,
    "LFM2-8B-A1B": "lfm",
    "LFM2.5-8B-A1B": "lfm",
    "LFM2.5-Instruct": REFUSED,
    "MiMo-VL": "hermes",
    "MiniMax-M1": "jamba",
    "MiniMax-M2": "minimax",
    "MiniMax-M3": REFUSED,
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral-args",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen-coder",
    "NVIDIA-Nemotron-Nano-v2": "nemotron",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen-coder",
    "Qwen3.5-4B": "qwen-coder",
    "Reka-Edge": "hermes",
    "Spark2.5": "glm",
    "StepFun3.5-Flash": "qwen-coder",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "generic",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "generic",
    "deepseek-ai-DeepSeek-V3.1": "generic",
    "deepseek-ai-DeepSeek-V3.2": REFUSED,
    "deepseek-ai-DeepSeek-V4": REFUSED,
    "deepseek-ai-DeepSeek-V4-Flash-0731": REFUSED,
    "fireworks-ai-llama-3-firefunction-v2": FAILS,
    "google-gemma-2-2b-it": "generic",
    "google-gemma-4-31B-it": "gemma-4",
    "google-gemma-4-31B-it-interleaved": "gemma-4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "glm",
    "llama-cpp-deepseek-r1": FAILS,
    "llama-cpp-rwkv-world": "generic",
    "meetkai-functionary-medium-v3.1": "function-tags",
    "meetkai-functionary-medium-v3.2": REFUSED,
    "meta-llama-Llama-3.1-8B-Instruct": "llama",
    "meta-llama-Llama-3.2-3B-Instruct": "llama",
    "meta-llama-Llama-3.3-70B-Instruct": "llama",
    "microsoft-Phi-3.5-mini-instruct": "generic",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral-args",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "moonshotai-Kimi-K2": "kimi",
    "muse-glimmer": REFUSED,
    "openai-gpt-oss-120b": "harmony",
    "openbmb-MiniCPM5-1B": REFUSED,
    "poolside-Laguna-S-2.1": "glm",
    "poolside-Laguna-XS-2.1": "glm",
    "poolside-Laguna-XS.2": "glm",
    "tencent-Hy3": REFUSED,
    "unsloth-Apriel-1.5": "jamba",
    "unsloth-mistral-Devstral-Small-2507": "mistral-args",
    "upstage-Solar-Open-100B": REFUSED,
}


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    archive = source_archive(PACKAGE, VERSION, tmp_path_factory.mktemp("templates"))
    with tarfile.open(archive) as members:
        files = [each for each in members if "/models/templates/" in each.name and each.name.endswith(".jinja")]
        read = ((each.name, members.extractfile(each)) for each in files)
        return {Path(name).stem: file.read().decode() for name, file in read if file is not None}


def test_every_published_template_has_an_outcome(templates: dict[str, str]) -> None:
    assert sorted(templates) == sorted(OUTCOMES)


@pytest.mark.parametrize("name", OUTCOMES)
async def test_two_turns_of_two_calls(
    templates: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    outcome = OUTCOMES[name]
    monkeypatch.setattr(fake_service, "INFO", replace(fake_service.INFO, blocks_total=1 << 12))
    template: object = templates[name]
    if name.endswith("tool_use"):  # published beside one for chats without tools
        pair = {"default": BASE.replace("CALLS", "").replace("HINT", "''"), "tool_use": template}
        template = [{"name": each, "template": source} for each, source in pair.items()]
    publish(Repository(tmp_path), chat_template=template, window=1 << 16)
    async with serving(tmp_path) as world:
        if outcome in (REFUSED, FAILS):
            await refused(world, outcome)
            return
        form = world.tokenizer.tool_format
        assert form.name == outcome
        several = world.tokenizer.with_options(ChatOptions(_tools())).probes.takes_two_calls
        calls = CALLED[: 2 if several else 1]
        (thought, spoken), messages = written(world.tokenizer, calls), [*ASK]
        for turn in range(2):
            says(world, spoken)
            message = await answer(world, messages)
            assert called(message) == calls, spoken
            streams = (await streamed(world, tools=DESCRIBED, messages=messages, max_tokens=800))[1]
            assert [(each, json.loads(given)) for each, given in streams] == calls
            messages += [message, *results(message)]
            says(world, f"{thought}Bye.")
            assert (await answer(world, messages))["content"] == "Bye."
            prompt = world.tokenizer.decode(list(world.engine.requests[-1].token_ids), skip_special_tokens=False)
            assert all(prompt.partition("hello")[2].count(each) > turn for each, _ in calls), prompt


async def answer(world: World, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"messages": messages, "tools": DESCRIBED, "max_tokens": 800}
    told = await world.client.post("/v1/chat/completions", json=body)
    assert told.status_code == 200, told.text
    return dict(told.json()["choices"][0]["message"])


async def refused(world: World, outcome: str) -> None:
    """Before the first byte: at once, or where calls are sent back."""
    body: dict[str, Any] = {"messages": ASK, "tools": DESCRIBED, "stream": True}
    says(world, "Bye.")
    answer = await world.client.post("/v1/chat/completions", json=body)
    if outcome == FAILS and answer.status_code == 200:
        function = {"name": "weather", "arguments": '{"city": "Seoul"}'}
        message = {"role": "assistant", "tool_calls": [{"id": "a00000000", "type": "function", "function": function}]}
        body["messages"] = [*ASK, message, *results(message)]
        answer = await world.client.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == ("tools" if outcome == REFUSED else "messages"), error
    assert ("cannot act" if outcome == REFUSED else "chat template") in error["message"]


def called(message: dict[str, Any]) -> list[tuple[str, Any]]:
    functions = [each["function"] for each in message.get("tool_calls") or []]
    return [(each["name"], json.loads(each["arguments"])) for each in functions]


def _tools() -> tuple[Tool, ...]:
    functions = [each["function"] for each in DESCRIBED]
    return tuple(Tool(each["name"], each["description"], json.dumps(each["parameters"])) for each in functions)


def written(tokenizer: Tokenizer, calls: list[tuple[str, Any]]) -> tuple[str, str]:
    """Returns what a model of this template says for the calls: a thought where the prompt has begun one, and what the
    template writes in the place of its prompt's end."""
    tokenizer = tokenizer.with_options(ChatOptions(_tools()))
    user, kind = Message("user", "hello"), tokenizer.tool_format.ids
    made = tuple(ToolCall(new_id(kind), name, json.dumps(given, ensure_ascii=False)) for name, given in calls)
    answer = with_ids(kind, (user, Message("assistant", "", tool_calls=made)))

    def rendered(messages: tuple[Message, ...], is_prompt: bool) -> str:
        ids = tokenizer.render_chat(messages, add_generation_prompt=is_prompt)
        return tokenizer.decode(list(ids), skip_special_tokens=False)

    prompt, whole = rendered((user,), True), rendered(answer, False)
    alike = next(at for at in range(len(whole)) if whole[: at + 1] != prompt[: at + 1])
    shared = re.sub(r"[<\[][^<>\[\]]*$", "", prompt[:alike])  # no part of a mark
    spoken, form = whole.removeprefix(shared), tokenizer.reasoning_form
    thought = f"So.\n{form.closing}" if form is not None and form.start(prompt).is_open else ""
    return thought, spoken if form is not None and form.closing in spoken else thought + spoken
