"""Fifty JSON schemas of the kinds that clients send, with lengths bounded so that nearly every answer ends."""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]
TEXT: Final[Schema] = {"type": "string", "maxLength": 12}
COUNT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 99}
MENUS: Final = ["불고기 도시락", "비빔밥", "김치찌개", "잡채"]


def closed(required: int | None = None, /, **properties: Any) -> Schema:
    """An object with these properties, of which the first `required` must be there."""
    names = list(properties)
    return {"type": "object", "properties": properties, "required": names[:required], "additionalProperties": False}


def many(items: Any, least: int = 0, most: int = 3) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def matching(pattern: str) -> Schema:
    return {"type": "string", "pattern": pattern}


def formatted(name: str) -> Schema:
    return {"type": "string", "format": name}


TREE: Final[Schema] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": closed(1, name=TEXT, children={"anyOf": [many({"$ref": "#/$defs/leaf"}, 0, 2), {"type": "null"}]}),
        "leaf": closed(1, name=TEXT, left={"$ref": "#/$defs/end"}),
        "end": {"enum": ["앞", "뒤"]},
    },
}
LINKS: Final = 4
LIST: Final[Schema] = {
    "$ref": "#/$defs/link0",
    "$defs": {
        **{
            f"link{at}": closed(1, value=COUNT, next={"anyOf": [{"$ref": f"#/$defs/link{at + 1}"}, {"type": "null"}]})
            for at in range(LINKS)
        },
        f"link{LINKS}": closed(value=COUNT),
    },
}
"""Of so many links at most: a model may write one that needs itself without end."""
EXPRESSION: Final[Schema] = {
    "anyOf": [
        {"$ref": "#/definitions/number"},
        closed(operator={"enum": ["+", "-"]}, right={"$ref": "#/definitions/number"}),
    ],
    "definitions": {"number": {"type": "integer", "minimum": 0, "maximum": 999}},
}
SHAPES: Final[Schema] = {
    "oneOf": [
        closed(
            kind={"const": "circle"}, radius={"type": "number", "exclusiveMinimum": 0, "maximum": 10, "multipleOf": 0.5}
        ),
        closed(
            kind={"const": "square"}, side={"type": "number", "exclusiveMinimum": 0, "maximum": 10, "multipleOf": 0.5}
        ),
    ]
}

SCHEMAS: Final[dict[str, Schema | bool]] = {
    "korean enum": {"enum": MENUS},
    "korean names": closed(이름=TEXT, 수량=COUNT, 메뉴={"enum": MENUS}),
    "names with marks": closed(**{'a"b': COUNT, "c\\d": {"type": "boolean"}, "é/ü": {"type": "null"}, "😀": COUNT}),
    "order": closed(menu={"enum": MENUS}, count=COUNT, note=TEXT, gift={"type": "boolean"}),
    "optional properties": closed(1, menu={"enum": MENUS}, count=COUNT, note=TEXT, gift={"type": "boolean"}),
    "all optional": closed(0, a=COUNT, b=TEXT, c={"type": "null"}),
    "nested": closed(
        user=closed(name=TEXT, address=closed(city=TEXT, zip=matching("^[0-9]{5}$"))), paid={"type": "boolean"}
    ),
    "deeply nested": closed(a=closed(b=closed(c=closed(d=closed(e=closed(f={"enum": [1, 2]})))))),
    "list of objects": many(closed(menu={"enum": MENUS}, count=COUNT), 1, 3),
    "list of lists": many(many({"type": "integer", "minimum": -9, "maximum": 9}, 1, 3), 1, 3),
    "empty list": many(TEXT, 0, 0),
    "exact list": many({"type": "boolean"}, 4, 4),
    "tuple": {"type": "array", "prefixItems": [COUNT, TEXT, {"type": "boolean"}], "items": False, "minItems": 3},
    "tuple and more": {
        "type": "array",
        "prefixItems": [{"const": "시작"}],
        "items": COUNT,
        "minItems": 2,
        "maxItems": 4,
    },
    "tuple of draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [COUNT, TEXT],
        "additionalItems": {"type": "null"},
        "minItems": 2,
        "maxItems": 3,
    },
    "phone": closed(phone=matching("^01[0-9]-[0-9]{3,4}-[0-9]{4}$")),
    "korean pattern": matching("^[가-힣]{2,6}$"),
    "pattern with choices": matching("^(서울|부산|제주)-[A-Z]{2}[0-9]{1,3}$"),
    "pattern without anchors": {"type": "string", "pattern": "밥", "maxLength": 16},
    "pattern with escapes": matching(r"^\d{2}:\d{2}\s\w{1,4}\.\\$"),
    "date": closed(day=formatted("date")),
    "date-time": formatted("date-time"),
    "time": formatted("time"),
    "duration": {**formatted("duration"), "maxLength": 12},
    "ipv4": formatted("ipv4"),
    "uuid": closed(id=formatted("uuid"), of=formatted("uuid")),
    "hostname": formatted("hostname"),
    "integers": closed(
        a=COUNT,
        b={"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 5},
        c={"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
    ),
    "numbers": closed(
        share={"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.001},
        price={"type": "number", "minimum": 0, "maximum": 10, "multipleOf": 0.01},
    ),
    "negative numbers": {"type": "number", "minimum": -3.5, "exclusiveMaximum": -1.25, "multipleOf": 0.25},
    "number of draft 4": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "integer",
        "minimum": 3,
        "exclusiveMinimum": True,
        "maximum": 30,
    },
    "long text": {"type": "string", "minLength": 20, "maxLength": 120},
    "exact length": {"type": "string", "minLength": 7, "maxLength": 7},
    "const object": {"const": {"상태": "완료", "items": [1, 2.5, None, True]}},
    "const of numbers": {"enum": [0, -1, 2.5, 100, None, False, "0"]},
    "nullable": closed(name={"type": ["string", "null"], "maxLength": 12}, age={"anyOf": [COUNT, {"type": "null"}]}),
    "many types": {"type": ["boolean", "null", "integer"], "minimum": 0, "maximum": 50},
    "anyOf": {"anyOf": [TEXT, COUNT, {"type": "null"}]},
    "oneOf": SHAPES,
    "list of oneOf": many(SHAPES, 1, 2),
    "allOf": {"allOf": [{"type": "integer", "minimum": 10}, {"maximum": 20}, {"multipleOf": 2}]},
    "allOf of objects": {"allOf": [closed(1, a=COUNT, b=TEXT), {"required": ["b"]}]},
    "$ref": closed(first={"$ref": "#/$defs/person"}, second={"$ref": "#/$defs/person"})
    | {"$defs": {"person": closed(name=TEXT, age=COUNT)}},
    "$ref beside words": {"$ref": "#/$defs/text", "minLength": 3, "$defs": {"text": TEXT}},
    "$anchor": closed(menu={"$ref": "#menu"}) | {"$defs": {"m": {"$anchor": "menu", "enum": MENUS}}},
    "tree": TREE,
    "linked list": LIST,
    "expression": EXPRESSION,
    "named by pattern": {
        "type": "object",
        "patternProperties": {"^[a-z]{1,3}$": COUNT},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    "other properties": {
        "type": "object",
        "properties": {"id": COUNT},
        "required": ["id"],
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 2,
    },
}
