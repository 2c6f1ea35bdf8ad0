"""A chat template of a version is rendered here, in a sandbox with bounds. It knows Jinja; no tokens, no requests.

The environment equals that of transformers' `apply_chat_template` (utils/chat_template_utils.py, 5.23). So a template
writes the same text as in training. Templates come with model versions, never with requests. The bounds keep a broken
or hostile template from stopping the process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import Final, cast

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.utils import Namespace

from service.errors import InvalidRequest
from service.text.arguments import Marked, written
from service.text.sandbox import BoundedEnvironment, Budget, TookLong, TooMuch

Value = object
RESERVED: Final = frozenset(
    (
        "messages", "tools", "documents", "add_generation_prompt", "strftime_now", "raise_exception", "namespace",
        "dict", "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
    )
)  # fmt: skip
"""Variables that a request cannot set."""


class _GenerationTag(Extension):
    """The tag `{% generation %}` marks assistant text for training. Here its body is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012  Jinja's own interface

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Namespace(Namespace):
    """A namespace that refuses names with an underscore, which lead to Python's internals."""

    def __init__(*args: Value, **kwargs: Value) -> None:  # a template may write namespace(self=…)
        self, *rest = args
        attributes: dict[str, Value] = dict(*cast("list[dict[str, Value]]", rest), **kwargs)
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(cast(Namespace, self), attributes)

    def __setitem__(self, name: str, value: Value) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"  # without its values: each may be a namespace in turn


def _refuse_private(name: Value) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a template may not store {name!r} in a namespace")


class _Dict:
    """`dict` for templates, without Python's own class behind it."""

    def __call__(self, *args: Mapping[Value, Value], **kwargs: Value) -> dict[Value, Value]:
        return dict(*args) | dict(kwargs.items())

    def fromkeys(self, keys: Sequence[Value], value: Value = None) -> dict[Value, Value]:
        return {key: value for key in keys}  # noqa: C420  `dict.fromkeys` narrows the type


def _raise_exception(message: Value) -> None:
    raise jinja2.TemplateError(str(message))


def _tojson(
    value: Value,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    dump = partial(json.dumps, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return value.dumped(dump) if isinstance(value, Marked) else dump(value)


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.bound_filters({"tojson": _tojson})
    environment.globals.update(raise_exception=_raise_exception, dict=_Dict(), namespace=_Namespace)
    environment.globals.pop("lipsum", None)
    return environment


def _literals(tree: nodes.Template) -> str:
    constants = (node.value for node in tree.find_all(nodes.Const))
    data = (node.data for node in tree.find_all(nodes.TemplateData))
    return "\0".join([*data, *(value for value in constants if isinstance(value, str))])


class ChatTemplate:
    """One compiled template. `render` is a pure function, and safe from any thread."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        """Raises InvalidRequest if the source is not a Jinja template."""
        self.source = source
        self._variables: dict[str, Value] = dict(variables)
        try:
            environment = _environment()
            self._template = environment.from_string(source)
            tree = environment.parse(source)
            self.literals = _literals(tree)
            """Every text that the template itself can write, joined by NUL."""
            self.variables = frozenset(meta.find_undeclared_variables(tree)) - RESERVED
            """The variables that a request can set."""
        except (jinja2.TemplateError, RecursionError, SyntaxError, TooMuch) as error:
            raise InvalidRequest("The version's chat template does not compile; fix it and import it again.") from error

    @cached_property
    def places_tools(self) -> bool:
        """Whether the template writes a chat with a tool differently. Raises InvalidRequest where it refuses one."""
        chat, now = [{"role": "user", "content": "a"}], datetime.now()
        tool = {"type": "function", "function": {"name": "a", "parameters": {"type": "object", "properties": {}}}}
        return self.render(chat, (), True, now, [tool]) != self.render(chat, (), True, now)

    @cached_property
    def describes_tools(self) -> bool:
        """Whether tools have to be described in messages, because the template leaves them out."""
        try:
            return not self.places_tools
        except InvalidRequest:
            return False

    @cached_property
    def has_system(self) -> bool:
        """Whether the template takes a system message, and writes it."""
        chat = ({"role": "system", "content": "text_of_a_system"}, {"role": "user", "content": "a"})
        try:
            return "text_of_a_system" in self.render(chat, (), True)
        except InvalidRequest:
            return False

    @cached_property
    def places_calls(self) -> bool:
        """Whether the template writes the calls of a message, or refuses them; False where it leaves them out."""
        call = {"id": "a00000000", "type": "function", "function": {"name": "name_of_a_call", "arguments": {}}}
        chat = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]})
        try:
            return "name_of_a_call" in self.render(chat, (), True)
        except InvalidRequest:
            return True

    def render(
        self,
        messages: Sequence[Mapping[str, Value]],
        documents: Sequence[Mapping[str, Value]],
        generation_prompt: bool,
        now: datetime | None = None,
        tools: Sequence[Mapping[str, Value]] = (),
        variables: Mapping[str, Value] | None = None,
    ) -> str:
        """Renders a chat. `now` is the time of the template's `strftime_now`; without it, the current time. `variables`
        are the request's own. The output has at most 8 times the input's characters + 64 KiB. CPU time is bounded too
        (`Budget`).

        Raises InvalidRequest with the template's own sentence if it refuses the messages."""
        values = (value for item in (*messages, *documents, *tools) for value in item.values())
        size = sum(len(value if isinstance(value, str) else written(value)) for value in values)
        context = {
            "messages": [dict(message) for message in messages],
            "tools": [dict(tool) for tool in tools] or None,
            "documents": [dict(document) for document in documents] or None,
            "add_generation_prompt": generation_prompt,
            "strftime_now": (now or datetime.now()).strftime,
        }
        with Budget.for_input(size) as budget:
            try:
                return budget.join(self._template.generate({**self._variables, **(variables or {}), **context}))
            except TookLong:
                raise
            except TooMuch as error:
                raise InvalidRequest(f"The version's chat template {error}; shorten the messages.") from error
            except jinja2.TemplateError as error:
                raise InvalidRequest(
                    f"The version's chat template refuses this chat: {error}", param="messages"
                ) from error
            except Exception as error:  # a template is code: any error in it is the template's failure
                raise InvalidRequest(
                    f"The version's chat template fails on this chat ({type(error).__name__}).", param="messages"
                ) from error
