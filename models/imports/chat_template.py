"""A chat template that does not compile is refused at import. It is compiled here and never rendered: `service.text`
renders it, in a sandbox."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2.ext import loopcontrols

from models.checkpoint.config_policy import read_json
from models.errors import InvalidSource

_TRAINING: Final = re.compile(r"\{%-?\+?\s*(?:end)?generation\s*[-+]?%\}")
"""transformers' marks around the text of an answer, which Jinja does not know."""
_NOT_SERVED: Final = ("urlize", "xmlattr", "pprint")
"""Filters that the sandbox does not have."""
_MOST_CHARACTERS: Final = 1 << 20
_FILES: Final = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")


@jinja2.pass_context
def _as_is(context: object, value: object) -> object:
    """Needs the chat, so that no constant such as `'a' * 10 ** 9` is computed while a template is compiled."""
    return value


def require_compiles(directory: Path) -> None:
    """Raises InvalidSource, with the place of the mistake, for a template in `directory` that is none."""
    environment = jinja2.Environment(extensions=[loopcontrols], optimized=False, finalize=_as_is)
    for name in _NOT_SERVED:
        del environment.filters[name]
    for name, template in _templates(directory):
        if len(template) > _MOST_CHARACTERS:
            raise InvalidSource(f"The chat template of {name} has more than 1 MiB; make it shorter, or leave it out")
        try:
            environment.compile(_TRAINING.sub("", template))
        except jinja2.TemplateSyntaxError as error:
            where, why = f" in line {error.lineno}", str(error.message)[:120]
        except (jinja2.TemplateError, SyntaxError, RecursionError, ValueError) as error:
            where, why = "", f"{type(error).__name__}: {error}"[:120]
        else:
            continue
        raise InvalidSource(f"The chat template of {name} does not compile{where}: {why}; mend it, or leave it out")


def _templates(directory: Path) -> list[tuple[str, str]]:
    """Returns the templates by their files. Of several in one file, `default` is the one that is served."""
    templates: list[tuple[str, str]] = []
    for name in _FILES:
        path = directory / name
        if not path.is_file():
            continue
        template: Any = _text(path) if path.suffix == ".jinja" else read_json(path).get("chat_template")
        if isinstance(template, list):
            template = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        if isinstance(template, dict):
            template = template.get("default")
        if isinstance(template, str):
            templates.append((name, template))
    return templates


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(_MOST_CHARACTERS + 1)
    except UnicodeDecodeError:
        raise InvalidSource(f"{path.name} is not UTF-8 text") from None
