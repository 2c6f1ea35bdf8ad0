"""A tool format is how a version's template writes calls, and so how the model was taught to write them. One row a
form: what in a template tells it, how its calls are read, how they are written. The first row that a template tells is
its form; a template with tools that tells none, or one of `_UNREADABLE`, is refused by name.

`name_of`       a name, a mark, and the arguments as a JSON object
`body`          what stands between two marks, read as a whole by `service.text.tools.bodies`
`has_channels`  Harmony's messages, read by `service.text.tools.harmony`
any other       JSON objects with a name and arguments, alone or in a list
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, NoReturn

from service.errors import UnsupportedField
from service.text.messages import Message, ToolCall
from service.text.tools.bodies import Found, gemma_calls, glm_call, parameter_calls, python_calls

Body = Callable[[str, Mapping[str, Any]], "list[Found]"]
PYTHON_TAG: Final = "<|python_tag|>"
NAME: Final = "$"
FINAL: Final = "<|channel|>final<|message|>"
"""What stands before Harmony's content."""
_OBJECT: Final = '{"name": "$", "arguments": '


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`told_by`: texts of a template, each of which tells the form; ` & ` joins texts that tell it together. `opening`
    begins a call, or a list of calls with `is_list`; "" where a call is the whole answer. `closing` ends it. `around`
    are marks around all calls of an answer; with `writes_around` they are always written. `blank` is what the template
    writes inside of the marks, `separator` what stands between two calls. `head` and `tail` are written around the
    arguments, with NAME for the function; a form without a `head` is read only. `name_of` finds the name before named
    arguments. `inner` are the marks inside of a call. `ids`: the form of the ids that the template takes."""

    name: str
    told_by: tuple[str, ...] = ()
    opening: str = ""
    closing: str = ""
    around: tuple[str, str] = ("", "")
    blank: str = ""
    separator: str = "\n"
    is_list: bool = False
    head: str = _OBJECT
    tail: str = "}"
    name_of: re.Pattern[str] | None = None
    inner: tuple[str, ...] = ()
    body: Body | None = None
    has_channels: bool = False
    writes_around: bool = False
    ids: str = ""

    @property
    def first_mark(self) -> str:
        return self.around[0] if self.writes_around else self.opening

    @property
    def marks(self) -> tuple[str, ...]:
        """Every text that may be a control token."""
        return tuple(filter(None, (*self.around, self.opening, self.closing, *self.inner)))

    def is_told(self, template: str) -> bool:
        return any(all(part in template for part in each.split(" & ")) for each in self.told_by)

    def written(self, name: str) -> str:
        """Returns the text of a call up to its arguments, without the opening."""
        return self.head.replace(NAME, name)

    def as_text(self, message: Message) -> Message:
        """Returns the message with its calls as the model writes them, for a template that leaves calls out."""
        if not message.tool_calls:
            return message
        calls = [f"{self.written(call.name)}{call.arguments or '{}'}{self.tail}" for call in message.tool_calls]
        if self.is_list:
            text = f"{self.opening}[{self.separator.join(calls)}]{self.closing}"
        else:
            enclosed = (f"{self.opening}{self.blank}{each}{self.blank}{self.closing}" for each in calls)
            text = self.separator.join(enclosed)
        first, last = self.around if self.writes_around else ("", "")
        between = "\n" if message.content and not self.first_mark else ""
        return Message(message.role, f"{message.content}{between}{first}{text}{last}", message.name)

    def new_id(self) -> str:
        """Returns the id of a new call."""
        return secrets.token_hex(5)[:9] if self.ids == NINE else f"call_{secrets.token_hex(12)}"


NINE: Final = "nine letters and digits"
NUMBERED: Final = "functions.name:number"
_MISTRAL_NAME: Final = re.compile(r"\s*([\w.:-]+)\s*(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?\s*")
_KIMI_NAME: Final = re.compile(r"\s*(?:functions\.)?([\w.-]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*")
_DEEPSEEK_NAME: Final = re.compile(r"\s*(?:function<｜tool▁sep｜>)?([\w.:-]+)(?:<｜tool▁sep｜>|\s*```json)\s*")

HARMONY: Final = ToolFormat(
    "harmony",
    ("<|channel|>",),
    opening="<|channel|>",
    closing="<|call|>",
    head="commentary to=functions.$ <|constrain|>json<|message|>",
    tail="",
    inner=("<|start|>", "<|message|>", "<|constrain|>", "<|end|>", "<|return|>"),
    has_channels=True,
)
MINIMAX: Final = ToolFormat(
    "minimax",
    ("<minimax:tool_call>",),
    opening="<invoke name=",
    closing="</invoke>",
    around=("<minimax:tool_call>", "</minimax:tool_call>"),
    head="",
    body=parameter_calls,
)
SEED: Final = ToolFormat(
    "seed",
    ("<seed:tool_call>",),
    opening="<function=",
    closing="</function>",
    around=("<seed:tool_call>", "</seed:tool_call>"),
    head="",
    body=parameter_calls,
)
QWEN_CODER: Final = ToolFormat(
    "qwen-coder",
    ("<function=",),
    opening="<function=",
    closing="</function>",
    around=("<tool_call>", "</tool_call>"),
    head="",
    body=parameter_calls,
)
GLM: Final = ToolFormat("glm", ("<arg_key>",), opening="<tool_call>", closing="</tool_call>", head="", body=glm_call)
KIMI: Final = ToolFormat(
    "kimi",
    ("<|tool_call_argument_begin|>", "tool_declare"),
    opening="<|tool_call_begin|>",
    closing="<|tool_call_end|>",
    around=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    writes_around=True,
    separator="",
    head="functions.$:0<|tool_call_argument_begin|>",
    tail="",
    name_of=_KIMI_NAME,
    inner=("<|tool_call_argument_begin|>",),
    ids=NUMBERED,
)
DEEPSEEK: Final = ToolFormat(
    "deepseek",
    ("<｜tool▁calls▁begin｜> & ```json",),
    opening="<｜tool▁call▁begin｜>",
    closing="<｜tool▁call▁end｜>",
    around=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    writes_around=True,
    head="function<｜tool▁sep｜>$\n```json\n",
    tail="\n```",
    name_of=_DEEPSEEK_NAME,
    inner=("<｜tool▁sep｜>",),
)
DEEPSEEK_31: Final = replace(
    DEEPSEEK, name="deepseek-3.1", told_by=("<｜tool▁calls▁begin｜>",), separator="", head="$<｜tool▁sep｜>", tail=""
)
MISTRAL_ARGS: Final = ToolFormat(
    "mistral-args",
    ("[TOOL_CALLS] & [ARGS]",),
    opening="[TOOL_CALLS]",
    separator="",
    head="$[ARGS]",
    tail="",
    name_of=_MISTRAL_NAME,
    inner=("[ARGS]", "[CALL_ID]"),
    ids=NINE,
)
MISTRAL: Final = ToolFormat(
    "mistral", ("[TOOL_CALLS]",), opening="[TOOL_CALLS]", separator=", ", is_list=True, name_of=_MISTRAL_NAME, ids=NINE
)
FUNCTION_GEMMA: Final = ToolFormat(
    "function-gemma",
    ("<start_function_call>",),
    opening="<start_function_call>",
    closing="<end_function_call>",
    head="",
    inner=("<escape>",),
    body=gemma_calls,
)
GEMMA_4: Final = ToolFormat(
    "gemma-4",
    ("<|tool_call>",),
    opening="<|tool_call>",
    closing="<tool_call|>",
    head="",
    inner=('<|"|>',),
    body=gemma_calls,
)
LFM: Final = ToolFormat(
    "lfm",
    ("<|tool_call_start|>", "<|tool_list_start|>"),
    opening="<|tool_call_start|>",
    closing="<|tool_call_end|>",
    head="",
    body=python_calls,
)
COMMAND: Final = ToolFormat(
    "command",
    ("<|START_ACTION|>",),
    opening="<|START_ACTION|>",
    closing="<|END_ACTION|>",
    separator=", ",
    is_list=True,
    head='{"tool_name": "$", "parameters": ',
)
COMMAND_R: Final = ToolFormat(
    "command-r",
    ("Action: & tool_name",),
    opening="Action:",
    separator=", ",
    is_list=True,
    head='{"tool_name": "$", "parameters": ',
)
GRANITE: Final = ToolFormat("granite", ("<|tool_call|>",), opening="<|tool_call|>", separator=", ", is_list=True)
PHI: Final = ToolFormat(
    "phi",
    ("functools[", "<|tool|> & <|/tool|>"),
    opening="functools",
    around=("<|tool_call|>", "<|/tool_call|>"),
    separator=", ",
    is_list=True,
)
NEMOTRON: Final = ToolFormat(
    "nemotron", ("<TOOLCALL>",), opening="<TOOLCALL>", closing="</TOOLCALL>", separator=", ", is_list=True
)
JAMBA: Final = ToolFormat(
    "jamba", ("<tool_calls>",), opening="<tool_calls>", closing="</tool_calls>", separator=", ", is_list=True
)
HERMES: Final = ToolFormat("hermes", ("<tool_call>",), opening="<tool_call>", closing="</tool_call>", blank="\n")
PYTHONIC: Final = ToolFormat(
    "pythonic",
    ("[func_name1(", "func_name1(params_name1"),
    around=("<|python_start|>", "<|python_end|>"),
    head="",
    body=python_calls,
)
LLAMA: Final = ToolFormat(
    "llama",
    (PYTHON_TAG, '"parameters": dictionary'),
    around=(PYTHON_TAG, ""),
    separator="; ",
    head='{"name": "$", "parameters": ',
)
JSON: Final = ToolFormat("json", ('"name" & "arguments"', '"name" & "parameters"'))
GENERIC: Final = ToolFormat("generic")
"""Of a template that places no tools: `service.text.tools.described` writes them, and a grammar keeps the calls."""
FORMATS: Final = (
    HARMONY, MINIMAX, SEED, QWEN_CODER, GLM, KIMI, DEEPSEEK, DEEPSEEK_31, MISTRAL_ARGS, MISTRAL, FUNCTION_GEMMA,
    GEMMA_4, LFM, COMMAND, COMMAND_R, PHI, GRANITE, NEMOTRON, JAMBA, HERMES, PYTHONIC, LLAMA, JSON,
)  # fmt: skip
_UNREADABLE: Final = ("<｜DSML｜", "<|observation|>", ">>>all", "<|plugin|>")
"""DeepSeek 3.2, GLM-4, Functionary and InternLM."""
TOOL_FORMATS: Final = {form.name: form for form in (*FORMATS, GENERIC)}
_NINE: Final = re.compile(r"[A-Za-z0-9]{9}")


def known_format(template: str) -> ToolFormat | None:
    """Returns the format by the texts that a template itself writes; None for one that cannot be read."""
    found = next((form for form in FORMATS if form.is_told(template)), None)
    is_unreadable = found in (None, JSON, LLAMA) and any(mark in template for mark in _UNREADABLE)
    return None if is_unreadable else found


def tool_format_of(template: str, name: str | None, *, is_described: bool) -> ToolFormat | None:
    """Returns the format of this name; without one the generic one where tools are described, else the template's."""
    if name is not None:
        return TOOL_FORMATS.get(name)
    return GENERIC if is_described else known_format(template)


def format_of(template: str) -> ToolFormat:
    """Returns the format of a template. Raises UnsupportedField where it cannot be read."""
    return known_format(template) or refuse_format(template)


def refuse_format(template: str) -> NoReturn:
    mark = next((each for each in _UNREADABLE if each in template), None)
    what = f"with {mark!r}, which is not read yet" if mark else "in a form that is not known"
    raise UnsupportedField(
        f"`tools` cannot act: this version's template writes calls {what}; use a version that writes them as JSON, "
        f"or set the version's tool_parser to one of {', '.join(TOOL_FORMATS)}",
        param="tools",
    )


def with_ids(form: ToolFormat | None, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Returns the messages with the ids of calls as the form's template takes them."""
    if form is None or not form.ids:
        return messages
    known: dict[str | None, str] = {}
    numbered: list[Message] = []
    for message in messages:
        calls = tuple(
            ToolCall(known.setdefault(call.id, _id(form, call, len(known))), call.name, call.arguments)
            for call in message.tool_calls
        )
        result = known.get(message.tool_call_id, message.tool_call_id)
        numbered.append(replace(message, tool_calls=calls, tool_call_id=result))
    return tuple(numbered)


def _id(form: ToolFormat, call: ToolCall, number: int) -> str:
    if form.ids == NUMBERED:
        return f"functions.{call.name}:{number}"
    return call.id if _NINE.fullmatch(call.id) else sha256(call.id.encode()).hexdigest()[:9]
