"""Ollama's schemas are closed where nothing else speaks of an object's properties, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from service.api.ollama.dialect import closed

A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED: dict[str, Any] = {**A, "additionalProperties": False}
CASES: list[tuple[Any, Any]] = [
    (A, CLOSED),
    ({"properties": {"x": A}}, {"properties": {"x": CLOSED}, "additionalProperties": False}),
    ({"items": A}, {"items": CLOSED}),
    ({"items": [A, True]}, {"items": [CLOSED, True]}),
    ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
    ({"$ref": "#/$defs/A", "$defs": {"A": A}}, {"$ref": "#/$defs/A", "$defs": {"A": CLOSED}}),
    ({"allOf": [A]}, {"allOf": [CLOSED]}),
    ({"additionalProperties": A}, {"additionalProperties": CLOSED}),
]


@pytest.mark.parametrize(("schema", "expected"), CASES)
def test_objects_that_name_their_properties_are_closed(schema: Any, expected: Any) -> None:
    assert closed(schema) == expected


KEPT: list[Any] = [
    {"type": "object"},
    {**A, "additionalProperties": True},
    {**A, "patternProperties": {"^x": {}}},
    {**A, "anyOf": [{"required": ["a"]}]},
    {**A, "$ref": "#/$defs/B"},
    {"allOf": [A, {"properties": {"b": {}}}]},
    {"items": {"anyOf": [{"allOf": [{"$ref": "#/$defs/A"}, A]}]}, "$defs": {"A": A}},
    {"const": A, "enum": [A], "default": A},
    {"properties": "no schema"},
    True,
    5,
]


@pytest.mark.parametrize("schema", KEPT)
def test_others_stay_as_they_are(schema: Any) -> None:
    assert closed(schema) == schema


def test_a_property_may_have_any_name() -> None:
    """A keyword that is a property's name is no keyword."""
    named = {"properties": {"properties": {"type": "object"}, "enum": {"type": "string"}, "allOf": {}}}
    assert closed(named) == {**named, "additionalProperties": False}
