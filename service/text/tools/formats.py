"""A tool format is how a version's template writes calls, and so how the model was taught to write them. One row a
form: what in a template tells it, how its calls are read, how they are written. The first row that a template tells is
its form (`service.text.tools.choosing`); a template that tells none, or one of `UNREADABLE`, is refused by name.

`name_of`       a name, a mark, and the arguments as a JSON object
`writing`       arguments that are no JSON object, as `service.text.tools.writing` has them
`has_channels`  Harmony's messages, read by `service.text.tools.harmony`
any other       JSON objects with a name and arguments, alone or in a list
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from service.text.tools.form import ToolFormat
from service.text.tools.ids import NINE, NUMBERED, numbered
from service.text.tools.writing import NAME, Style, Writing

PYTHON_TAG: Final = "<|python_tag|>"
FINAL: Final = "<|channel|>final<|message|>"
"""What stands before Harmony's content."""


_MISTRAL_NAME: Final = re.compile(r"\s*([\w.:-]+)\s*(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?\s*")
_KIMI_NAME: Final = re.compile(r"\s*(?:functions\.)?([\w.:-]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*")
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
_PARAMETERS: Final = Writing(Style.TAGS, "<parameter=$>\n", "\n</parameter>\n")
_PYTHON: Final = Writing(Style.PYTHON, "$=", separator=", ")
MINIMAX: Final = ToolFormat(
    "minimax",
    ("<minimax:tool_call>",),
    opening="<invoke name=",
    closing="</invoke>",
    around=("<minimax:tool_call>", "</minimax:tool_call>"),
    writes_around=True,
    blank="\n",
    head='"$">\n',
    tail="",
    writing=Writing(Style.TAGS, '<parameter name="$">', "</parameter>\n"),
)
SEED: Final = ToolFormat(
    "seed",
    ("<seed:tool_call>",),
    opening="<function=",
    closing="</function>",
    around=("<seed:tool_call>", "</seed:tool_call>"),
    writes_around=True,
    blank="\n",
    separator="\n</seed:tool_call>\n<seed:tool_call>\n",
    head="$>\n",
    tail="",
    writing=replace(_PARAMETERS, key="<parameter=$>", end="</parameter>\n"),
)
QWEN_CODER: Final = replace(
    SEED,
    name="qwen-coder",
    told_by=("<function= & <parameter=",),
    around=("<tool_call>", "</tool_call>"),
    separator="\n</tool_call>\n<tool_call>\n",
    writing=_PARAMETERS,
)
FUNCTION_TAGS: Final = ToolFormat(
    "function-tags",
    ("<function=",),
    opening="<function=",
    closing="</function>",
    head="$>",
    tail="",
    name_of=re.compile(r"\s*([\w.:-]+)\s*>\s*"),
)
GLM: Final = ToolFormat(
    "glm",
    ("<arg_key>",),
    opening="<tool_call>",
    closing="</tool_call>",
    head="$\n",
    tail="",
    inner=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    writing=Writing(Style.TAGS, "<arg_key>$</arg_key>\n<arg_value>", "</arg_value>\n"),
)
KIMI: Final = ToolFormat(
    "kimi",
    ("<|tool_call_argument_begin|>", "tool_declare"),
    opening="<|tool_call_begin|>",
    closing="<|tool_call_end|>",
    around=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    writes_around=True,
    separator="",
    head=f"{numbered(NAME, 0)}<|tool_call_argument_begin|>",
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
    separator="",
    head="call:${",
    inner=("<escape>",),
    writing=Writing(Style.GEMMA, "$:", separator=",", quote="<escape>"),
)
GEMMA_4: Final = replace(
    FUNCTION_GEMMA,
    name="gemma-4",
    told_by=("<|tool_call>",),
    opening="<|tool_call>",
    closing="<tool_call|>",
    inner=('<|"|>',),
    writing=Writing(Style.GEMMA, "$:", separator=",", quote='<|"|>'),
)
LFM: Final = ToolFormat(
    "lfm",
    ("<|tool_call_start|>", "<|tool_list_start|>"),
    opening="<|tool_call_start|>",
    closing="<|tool_call_end|>",
    separator=", ",
    is_list=True,
    head="$(",
    tail=")",
    writing=_PYTHON,
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
GIGACHAT: Final = ToolFormat("gigachat", ("<|function_call|>",), opening="<|function_call|>", separator="")
JAMBA: Final = ToolFormat(
    "jamba", ("<tool_calls>",), opening="<tool_calls>", closing="</tool_calls>", separator=", ", is_list=True
)
HERMES: Final = ToolFormat("hermes", ("<tool_call>",), opening="<tool_call>", closing="</tool_call>", blank="\n")
PYTHONIC: Final = ToolFormat(
    "pythonic",
    ("[func_name1(", "func_name1(params_name1"),
    around=("<|python_start|>", "<|python_end|>"),
    separator=", ",
    is_list=True,
    head="$(",
    tail=")",
    writing=_PYTHON,
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
    HARMONY, MINIMAX, SEED, QWEN_CODER, FUNCTION_TAGS, GLM, KIMI, DEEPSEEK, DEEPSEEK_31, MISTRAL_ARGS, MISTRAL,
    FUNCTION_GEMMA, GEMMA_4, LFM, COMMAND, COMMAND_R, PHI, GRANITE, NEMOTRON, JAMBA, GIGACHAT, HERMES, PYTHONIC, LLAMA,
    JSON,
)  # fmt: skip
UNREADABLE: Final = ("｜DSML｜", "<|observation|>", ">>>all", "<|plugin|>")
"""DeepSeek 3.2, GLM-4, Functionary and InternLM."""
TOOL_FORMATS: Final = {form.name: form for form in (*FORMATS, GENERIC)}


def known_format(template: str) -> ToolFormat | None:
    """Returns the format by the texts that a template itself writes; None for one that cannot be read."""
    found = next((form for form in FORMATS if form.is_told(template)), None)
    is_unreadable = found in (None, JSON, LLAMA) and any(mark in template for mark in UNREADABLE)
    return None if is_unreadable else found
