"""This module shows what a guard found in an answer, for bodies and for the log: rules and counts, never the text."""

from __future__ import annotations

from typing import Any

from service.generation.answer import Answer


def found(answer: Answer) -> dict[str, Any]:
    """Returns the field `guard`, only where the guard found something."""
    findings = [{"rule": each.rule, "action": each.action, "count": each.count} for each in answer.findings]
    return {"guard": findings} if findings else {}
