"""This script writes `docs/types/dosirak.d.ts`, TypeScript's types of the HTTP interface, from the OpenAPI document:
`make types`. With `--check` it only says whether the file is up to date."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI

from service.api.openapi.document import document
from service.api.router import PARTS
from service.app import TITLE

FILE: Final = Path(__file__).parent / "dosirak.d.ts"
WORDS: Final = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
JSON: Final = "application/json"
Schema = dict[str, Any]


def written() -> str:
    """Returns the types of the interface of this software."""
    app = FastAPI(title=TITLE)
    for part in PARTS:
        app.include_router(part.router)
    found = document(app)
    schemas = (_declared(name, schema) for name, schema in sorted(found["components"]["schemas"].items()))
    operations = (
        _operation(path, method, operation)
        for path, methods in sorted(found["paths"].items())
        for method, operation in sorted(methods.items())
    )
    head = "// Types of Dosirak's HTTP interface, made by `make types` from the OpenAPI document. Do not edit.\n"
    return "\n".join([head, *schemas, "export interface Operations {", *operations, "}", ""])


def _declared(name: str, schema: Schema) -> str:
    text = f"/** {schema['description'].replace('*/', '* /')} */\n" if schema.get("description") else ""
    return f"{text}export type {_named(name)} = {_type(schema)};\n"


def _named(name: str) -> str:
    return "".join(char if char.isalnum() or char == "_" else "_" for char in name)


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    """Returns an operation's body and answer: `Operations["POST /generate"]["body"]`."""
    body = operation.get("requestBody", {}).get("content", {})
    answers = [told for status, told in operation["responses"].items() if status.startswith("2")]
    types = [_type(told["content"][JSON]["schema"]) for told in answers if JSON in told.get("content", {})]
    sent = _type(body[JSON].get("schema", {})) if JSON in body else "never" if not body else "unknown"
    got = " | ".join(dict.fromkeys(types)) or "unknown"
    return f"  {json.dumps(f'{method.upper()} {path}')}: {{ body: {sent}; answer: {got} }};"


def _type(schema: Schema | bool) -> str:
    if isinstance(schema, bool) or not schema:
        return "unknown"
    if "$ref" in schema:
        return _named(str(schema["$ref"]).rsplit("/", 1)[-1])
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "enum" in schema:
        return " | ".join(json.dumps(each, ensure_ascii=False) for each in schema["enum"])
    for word, sign in (("anyOf", " | "), ("oneOf", " | "), ("allOf", " & ")):
        if word in schema:
            return "(" + sign.join(dict.fromkeys(map(_type, schema[word]))) + ")"
    return _plain(schema)


def _plain(schema: Schema) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_type({**schema, "type": each}) for each in kind)
    if kind == "array":
        if "prefixItems" in schema:
            return "[" + ", ".join(map(_type, schema["prefixItems"])) + "]"
        return f"({_type(schema.get('items', {}))})[]"
    if kind == "object" or "properties" in schema:
        return _object(schema)
    return WORDS.get(str(kind), "unknown")


def _object(schema: Schema) -> str:
    required, more = schema.get("required", ()), schema.get("additionalProperties", False)
    members = [
        f"{json.dumps(name)}{'' if name in required else '?'}: {_type(each)}"
        for name, each in schema.get("properties", {}).items()
    ]
    if not members:
        return f"Record<string, {_type(more)}>"
    if more:
        members.append("[name: string]: unknown")
    return "{ " + "; ".join(members) + " }"


if __name__ == "__main__":
    text = written()
    if "--check" not in sys.argv:
        FILE.write_text(text, encoding="utf-8")
    elif not FILE.is_file() or FILE.read_text(encoding="utf-8") != text:
        sys.exit("docs/types/dosirak.d.ts is out of date: run `make types`")
