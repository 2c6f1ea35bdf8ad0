"""A reasoning use says what a request asks of a version's reasoning, and which variables of the template do it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from service.errors import UnsupportedField
from service.text.reasoning.forms import ReasoningForm

EFFORT: Final = "reasoning_effort"
SWITCHES: Final = ("enable_thinking", "thinking")
"""The names that templates have for the variable that switches reasoning on or off."""
USUAL: Final = "medium"
"""The effort that asks for what a version does anyway."""


@dataclass(frozen=True, slots=True)
class ReasoningUse:
    """`field` is the request's field, for errors. `is_wanted` None leaves it to the template, and so does an `effort`
    that is empty. An effort that is the dialect's default (`is_default`) asks nothing of a version that knows none."""

    field: str
    is_wanted: bool | None = None
    effort: str = ""
    is_default: bool = False

    def variables(self, form: ReasoningForm | None, known: Collection[str]) -> dict[str, str | bool]:
        """Returns the variables to set. `known` are those of the template. Raises UnsupportedField for what the version
        cannot do."""
        if self.effort and EFFORT in known:
            return {EFFORT: self.effort, **self._switched(form, known)}
        if self.effort and not self.is_default and (form is None or self.effort != USUAL):
            levels = "knows no efforts, only on and off" if self._switch(known) else "knows no efforts"
            raise self._refusal(
                f"this version's template {levels}: remove it" if form else "this version does not reason: remove it"
            )
        return self._switched(form, known)

    def _switched(self, form: ReasoningForm | None, known: Collection[str]) -> dict[str, str | bool]:
        switch = self._switch(known)
        if self.is_wanted is None:
            return {}
        if switch is not None:
            return {switch: self.is_wanted}
        if self.is_wanted and form is None:
            raise self._refusal("this version does not reason: remove it")
        if not self.is_wanted and form is not None:
            raise self._refusal("this version's template cannot switch its reasoning off: remove it")
        return {}

    @staticmethod
    def _switch(known: Collection[str]) -> str | None:
        return next((name for name in SWITCHES if name in known), None)

    @classmethod
    def off(cls, form: ReasoningForm | None, known: Collection[str]) -> ReasoningUse | None:
        """Returns the use that switches reasoning off; None where the template cannot, or has none."""
        return None if form is None or cls._switch(known) is None else cls("", is_wanted=False)

    def _refusal(self, why: str) -> UnsupportedField:
        return UnsupportedField(f"`{self.field}` cannot act: {why}", param=self.field)
