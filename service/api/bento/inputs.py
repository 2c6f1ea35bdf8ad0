"""The inputs of BentoML's two methods are what its clients may send; each becomes a body of `POST /generate`.

The fields that clients use most stand beside the prompt; `parameters` takes all other fields of `POST /generate`, and
says which values are allowed.
"""

from __future__ import annotations

from typing import Final, Self

from pydantic import BaseModel, ConfigDict, model_validator

BODY: Final[tuple[str, ...]] = ("inputs", "messages", "session_id", "model")
"""Fields of the body itself; the others are in its `parameters`."""


class Options(BaseModel):
    """The fields of both methods. A field that is unknown, of another type, or given twice, is refused. BentoML logs
    the refusal, so the refusal must not contain what the client sent."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    model: str | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    parameters: dict[str, object] | None = None

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        twice = sorted(self.model_fields_set & set(self.parameters or {}))
        if twice:
            raise ValueError(f"`{twice[0]}` is given twice: leave it out of `parameters`")
        return self


class Prompt(BaseModel):
    prompt: str


class Messages(BaseModel):
    messages: list[dict[str, object]]
    session_id: str | None = None


class GenerateInput(Options, Prompt):
    """A text to continue."""


class ChatInput(Options, Messages):
    """A chat to answer; with `session_id`, the session's new messages."""


def generate_body(asked: dict[str, object]) -> dict[str, object]:
    """Returns the fields of an input as `POST /generate` takes them; leaves out absent fields."""
    given = {("inputs" if name == "prompt" else name): value for name, value in asked.items() if value is not None}
    others = given.pop("parameters", None)
    body: dict[str, object] = {name: given.pop(name) for name in BODY if name in given}
    parameters = {**(others if isinstance(others, dict) else {}), **given}
    return {**body, "parameters": parameters} if parameters else body
