"""Families of models by how they write calls: small templates of the same form as theirs, and what a model of each says
when it calls `weather` and `order`. No published template is copied."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from service.text.tools.form import ToolFormat
from service.text.tools.formats import TOOL_FORMATS
from service.text.tools.writing import NAME, Style

BASE: Final = """{%- if tools %}{{ '<|im_start|>system\\n' }}{% for t in tools %}{{ t | tojson + '\\n' }}{% endfor %}
{{- HINT + '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}CALLS{{ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
EACH: Final = "{%- for c in m.tool_calls or [] %}{% set f = c.function %}"
END: Final = "{% endfor %}"
PLACED: Final = "{%- set called = m.tool_calls or [] %}WRITTEN"
"""Calls as the family's form writes them."""
ORDERED: Final = '{"menu": "비빔밥", "count": 2}'


@dataclass(frozen=True)
class Family:
    """`hint` is what the template writes of the form; `calls` how it writes calls of earlier answers, "" where it
    leaves them out. `says` are two answers of the model with two calls each, the first behind a word of content where
    `content` is set; `alone` where the template takes one call a message."""

    name: str
    form: str
    hint: str
    calls: str
    says: str
    content: str = "Soon."
    alone: bool = False

    @property
    def template(self) -> str:
        calls = self.calls.replace("WRITTEN", _written(TOOL_FORMATS[self.form])) if self.form else self.calls
        return BASE.replace("CALLS", calls).replace("HINT", repr(self.hint)[1:-1].join("''"))


def _written(form: ToolFormat) -> str:
    """Returns the part of a template that writes `called` in this form."""
    (first, last), (before, behind) = form.enclosing
    head, _, rest = form.head.partition(NAME)
    each = f"{_text(before + head)}{{{{- f.name }}}}{_text(rest)}{_arguments(form)}{_text(form.tail + behind)}"
    between = f"{{%- if not loop.last %}}{_text(form.separator)}{{%- endif %}}"
    loop = f"{{%- for c in called %}}{{%- set f = c.function %}}{each}{between}{{%- endfor %}}"
    return f"{{%- if called %}}{_text(first)}{loop}{_text(last)}{{%- endif %}}"


def _arguments(form: ToolFormat) -> str:
    if form.writing is None:
        return "{{- f.arguments | tojson }}"
    opening, _, behind = form.writing.key.partition(NAME)
    quote = json.dumps(form.writing.quote)
    plain = (
        "v | tojson" if form.writing.style is Style.PYTHON else f"{quote} + v + {quote} if v is string else v | tojson"
    )
    item = f"{_text(opening)}{{{{- k }}}}{_text(behind)}{{{{- {plain} }}}}{_text(form.writing.end)}"
    between = f"{{%- if not loop.last %}}{_text(form.writing.separator)}{{%- endif %}}"
    return f"{{%- for k, v in f.arguments | items %}}{item}{between}{{%- endfor %}}"


def _text(text: str) -> str:
    return f"{{{{- {json.dumps(text, ensure_ascii=False)} }}}}" if text else ""


def _objects(arguments: str = "arguments", name: str = "name", more: str = "") -> tuple[str, str]:
    """Returns the two calls as objects."""
    return (
        f'{{{more}"{name}": "weather", "{arguments}": {{"city": "서울}}\\"", "days": 3}}}}',
        f'{{{more}"{name}": "order", "{arguments}": {ORDERED}}}',
    )


def _parameters(function: str, parameter: str, ends: tuple[str, str], around: tuple[str, str]) -> str:
    """Returns the two calls with tagged parameters."""
    end, last = ends
    values = {"weather": {"city": '서울}"', "days": "3"}, "order": {"menu": "비빔밥", "count": "2"}}
    calls = (
        function.replace("$", name)
        + "".join(f"{parameter.replace('$', key)}\n{value}\n{end}\n" for key, value in given.items())
        + last
        for name, given in values.items()
    )
    return "Soon.\n" + "\n".join(f"{around[0]}{call}{around[1]}" for call in calls)


ONE, TWO = _objects()
LLAMA_ONE, LLAMA_TWO = _objects("parameters")
COMMAND_ONE, COMMAND_TWO = _objects("parameters", "tool_name", '"tool_call_id": "0", ')
WITH_ID: Final = ONE[:-1] + ', "id": "aaaaaaaa1"}'
ARGUMENTS: Final = ONE.partition('"arguments": ')[2][:-1]
NINE: Final = "{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
PYTHON: Final = """[weather(city='서울}"', days=3), order(menu="비빔밥", count=2)]"""
GEMMA: Final = 'call:weather{city:QQ서울}"QQ,days:3}', "call:order{menu:QQ비빔밥QQ,count:2}"

JOINED: Final = EACH + "{{ f.name + f.arguments }}" + END
"""For templates that take arguments as text."""
PHI: Final = f"<|tool_call|>{ONE}<|/tool_call|><|tool_call|>{TWO}<|/tool_call|>"
NUMBERED: Final = """{% if not c.id.startswith('functions.' + f.name + ':') %}
{{- raise_exception('ids are functions.name:number') }}{% endif %}"""
ALONE: Final = "{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one call only') }}{% endif %}"
KIMI: Final = (
    "Soon.<|tool_calls_section_begin|>"
    f"<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|>"
    f"<|tool_call_begin|>functions.order:1<|tool_call_argument_begin|>{ORDERED}<|tool_call_end|>"
    "<|tool_calls_section_end|>"
)
HARMONY: Final = (
    "<|channel|>commentary<|message|>Soon.<|end|><|start|>assistant<|channel|>"
    f"commentary to=functions.weather <|constrain|>json<|message|>{ARGUMENTS}<|call|>"
    f"<|start|>assistant to=functions.order<|channel|>commentary json<|message|>{ORDERED}<|call|>"
)
CODER: Final = "<function=$>\n", "<parameter=$>", ("</parameter>", "</function>")


def _gemma(opening: str, closing: str, quote: str) -> str:
    return "Soon." + "".join(f"{opening}{each}{closing}" for each in GEMMA).replace("QQ", quote)


def _deepseek(head: str, tail: str, between: str) -> str:
    calls = between.join(
        f"<｜tool▁call▁begin｜>{head.replace('$', name)}{given}{tail}<｜tool▁call▁end｜>"
        for name, given in (("weather", ARGUMENTS), ("order", ORDERED))
    )
    return f"Soon.<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>"


FAMILIES: Final = (
    Family(
        "Hermes, Qwen",
        "hermes",
        "<tool_call></tool_call>",
        PLACED,
        f"Soon.\n<tool_call>\n{ONE}\n</tool_call>\n<tool_call>\n{TWO}\n</tool_call>",
    ),
    Family(
        "Hermes with an id and a brace too many",
        "hermes",
        "<tool_call>",
        PLACED,
        f"Soon.\n<tool_call>\n{WITH_ID}}}\n</tool_call>\n<tool_call>\n{TWO}}}\n</tool_call>",
    ),
    Family(
        "EXAONE 4", "hermes", "<tool_call>", PLACED, f"<tool_call>{ONE}</tool_call>\n<tool_call>{TWO}</tool_call>", ""
    ),
    Family(
        "Qwen3-Coder, Nemotron 3",
        "qwen-coder",
        "<tool_call>\n<function=f>\n<parameter=p>",
        PLACED,
        _parameters(*CODER, ("<tool_call>\n", "\n</tool_call>")),
    ),
    Family(
        "Llama 3.1 with tags",
        "function-tags",
        "<function=f>{}</function>",
        PLACED,
        f"Soon.<function=weather>{ARGUMENTS}</function><function=order>{ORDERED}</function>",
    ),
    Family(
        "Seed-OSS",
        "seed",
        "<seed:tool_call>",
        PLACED,
        _parameters(*CODER, ("<seed:tool_call>\n", "\n</seed:tool_call>")),
    ),
    Family(
        "MiniMax M2",
        "minimax",
        "<minimax:tool_call>",
        PLACED,
        _parameters(
            '<invoke name="$">\n',
            '<parameter name="$">',
            ("</parameter>", "</invoke>"),
            ("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
        ),
    ),
    Family(
        "GLM 4.5",
        "glm",
        "<tool_call><arg_key></arg_key>",
        PLACED,
        _parameters("<tool_call>$\n", "<arg_key>$</arg_key>\n<arg_value>", ("</arg_value>", "</tool_call>"), ("", "")),
    ),
    Family(
        "Kimi K2",
        "kimi",
        "<|tool_call_argument_begin|>",
        EACH + NUMBERED + END + PLACED,
        KIMI,
    ),
    Family(
        "DeepSeek V3, R1",
        "deepseek",
        "<｜tool▁calls▁begin｜>```json",
        PLACED,
        _deepseek("function<｜tool▁sep｜>$\n```json\n", "\n```", "\n"),
    ),
    Family("DeepSeek V3.1", "deepseek-3.1", "<｜tool▁calls▁begin｜>", JOINED, _deepseek("$<｜tool▁sep｜>", "", "")),
    Family("Kimi K2, first template", "kimi", "tool_declare", "", KIMI),
    Family(
        "Mistral, old",
        "mistral",
        "[TOOL_CALLS]",
        EACH + NINE + END + PLACED,
        f"[TOOL_CALLS] [{WITH_ID}, {TWO}]",
        "",
    ),
    Family(
        "Mistral, new",
        "mistral-args",
        "[TOOL_CALLS][ARGS]",
        EACH + NINE + END + PLACED,
        f"Soon.[TOOL_CALLS]weather[ARGS]{ARGUMENTS}[TOOL_CALLS]order[CALL_ID]aaaaaaaa1[ARGS]{ORDERED}",
    ),
    Family("Llama 3.1", "llama", "<|python_tag|>", ALONE + PLACED, f"{LLAMA_ONE}; {LLAMA_TWO}", "", alone=True),
    Family("Llama 3.2", "llama", '"parameters": dictionary', PLACED, f"<|python_tag|>{LLAMA_ONE}; {LLAMA_TWO}", ""),
    Family("Llama 4", "pythonic", "[func_name1(params_name1=params_value1)]", PLACED, PYTHON, ""),
    Family("LFM2", "lfm", "<|tool_call_start|>", PLACED, f"Soon.<|tool_call_start|>{PYTHON}<|tool_call_end|>"),
    Family(
        "LFM2 in JSON", "lfm", "<|tool_list_start|>", PLACED, f"<|tool_call_start|>[{ONE}, {TWO}]<|tool_call_end|>", ""
    ),
    Family("Granite 3", "granite", "<|tool_call|>", "", f"<|tool_call|>[{ONE}, {TWO}]", ""),
    Family(
        "Granite 4",
        "hermes",
        "<tool_call>",
        PLACED,
        f"<tool_call>\n{ONE}\n</tool_call>\n<tool_call>\n{TWO}\n</tool_call>",
        "",
    ),
    Family(
        "FunctionGemma",
        "function-gemma",
        "<start_function_call>",
        PLACED,
        "Soon."
        + "".join(f"<start_function_call>{each}<end_function_call>" for each in GEMMA).replace("QQ", "<escape>"),
    ),
    Family(
        "Gemma 4",
        "gemma-4",
        "<|tool_call>",
        PLACED,
        _gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
    ),
    Family("Phi-4-mini", "phi", "<|tool|><|/tool|>", "", f"functools[{ONE}, {TWO}]", ""),
    Family("Phi-4-mini, one by one", "phi", "<|tool|><|/tool|><|tool_call|>", PLACED, PHI, ""),
    Family("Phi-4-mini with marks", "phi", "<|tool|><|/tool|>", "", f"<|tool_call|>[{ONE}, {TWO}]<|/tool_call|>", ""),
    Family(
        "Nemotron Nano 2", "nemotron", "<TOOLCALL></TOOLCALL>", PLACED, f"Soon.\n<TOOLCALL>[{ONE}, {TWO}]</TOOLCALL>"
    ),
    Family("Jamba, Hunyuan", "jamba", "<tool_calls>", PLACED, f"Soon.<tool_calls>[\n{ONE},\n{TWO}\n]</tool_calls>"),
    Family(
        "Command R",
        "command-r",
        "Action: tool_name",
        "",
        f"Action: ```json\n[\n    {COMMAND_ONE},\n    {COMMAND_TWO}\n]```",
        "",
    ),
    Family(
        "Command A",
        "command",
        "<|START_ACTION|>",
        PLACED,
        f"<|START_ACTION|>[\n    {COMMAND_ONE},\n    {COMMAND_TWO}\n]<|END_ACTION|>",
        "",
    ),
    Family(
        "gpt-oss",
        "harmony",
        "<|channel|>",
        PLACED.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]"),
        HARMONY,
        alone=True,
    ),
    Family(
        "GigaChat 3.1", "gigachat", "<|function_call|>", PLACED, f"Soon.<|function_call|>{ONE}<|function_call|>{TWO}"
    ),
    Family("plain JSON", "json", '{"name": name, "arguments": arguments}', PLACED, f"[{ONE}, {TWO}]", ""),
)
REFUSED: Final = {
    "DeepSeek 3.2": "<｜DSML｜function_calls>",
    "GLM 4": "<|observation|>",
    "Functionary": ">>>all",
    "InternLM": "<|action_start|><|plugin|>",
    "unknown": "call them",
}
