"""This module makes `/docs` from the OpenAPI document: every operation, and a form to try it. Its style and its script
are this server's own files; it knows no routes."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any, Final

from service.api.http.pages import TEMPLATES, style_source

STYLE: Final = (TEMPLATES / "docs.css").read_text(encoding="utf-8")
SCRIPT: Final[Path] = TEMPLATES / "docs.js"
POLICY: Final = (
    f"default-src 'none'; script-src 'self'; connect-src 'self'; style-src {style_source(STYLE)}; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


def page(spec: dict[str, Any]) -> str:
    """Returns the document as one HTML page. Without its script it can be read, and nothing can be tried."""
    title = html.escape(f"{spec['info']['title']} {spec['info']['version']}")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><style>{STYLE}</style>"
        '<script type="module" src="docs/docs.js"></script>'
        f"<main><h1>{title}</h1><p>{html.escape(spec['info'].get('description', ''))} Machine-readable: "
        f'<a href="openapi.json">openapi.json</a>.</p>{"".join(map(_section, _by_tag(spec)))}</main></html>'
    )


Operation = tuple[str, str, dict[str, Any], dict[str, Any]]
"""Path, method, operation and the document."""


def _by_tag(spec: dict[str, Any]) -> list[tuple[dict[str, str], list[Operation]]]:
    every = [
        (path, method, operation, spec)
        for path, methods in spec["paths"].items()
        for method, operation in methods.items()
    ]
    return [(tag, [each for each in every if tag["name"] in each[2].get("tags", ())]) for tag in spec["tags"]]


def _section(tagged: tuple[dict[str, str], list[Operation]]) -> str:
    tag, operations = tagged
    head = f"<h2>{html.escape(tag['name'])}</h2><p>{html.escape(tag['description'])}</p>"
    return head + "".join(_entry(*each) for each in operations)


def _entry(path: str, method: str, operation: dict[str, Any], spec: dict[str, Any]) -> str:
    text = html.escape(operation.get("description", operation.get("summary", "")))
    scopes = sorted({scope for each in operation["security"] for listed in each.values() for scope in listed})
    needs = f"<p>Scope: {', '.join(scopes)}</p>" if scopes else ""
    fields = html.escape("\n".join(_fields(operation, spec)))
    shown = f'<pre tabindex="0">{fields}</pre>' if fields else ""
    return (
        f'<details data-method="{method}" data-path="{html.escape(path)}"><summary><b>{method.upper()}</b> '
        f"<code>{html.escape(path)}</code> {text}</summary>{needs}{shown}</details>"
    )


def _fields(operation: dict[str, Any], spec: dict[str, Any]) -> list[str]:
    body = operation.get("requestBody")
    if not body or "application/json" not in body["content"]:
        return []
    name = body["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[-1]
    schema = spec["components"]["schemas"][name]
    required = schema.get("required", ())
    return [
        f"{field}: {_type(shape)}{' (required)' if field in required else ''}"
        for field, shape in schema["properties"].items()
    ]


def _type(shape: dict[str, Any]) -> str:
    if "$ref" in shape:
        return str(shape["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in shape:
        return " | ".join(dict.fromkeys(_type(each) for each in shape["anyOf"]))
    if shape.get("type") == "array" and "items" in shape:
        return f"list of {_type(shape['items'])}"
    return str(shape.get("type", shape.get("const", "any")))
