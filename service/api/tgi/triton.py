"""This dialect is Triton's generate extension: `text_input` replaces `inputs`, and the answers differ. The native
parser reads the body."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from service.api.http.encoding import event
from service.api.tgi.dialect import NativeSerialiser
from service.generation.answer import Answer, Delta


class TritonSerialiser(NativeSerialiser):
    """Writes Triton's answers. Each event has the text that its token added."""

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        [answer] = answers
        return {**served_by(answer), "text_output": answer.best[0].text}

    def events(self, delta: Delta) -> Iterable[bytes]:
        yield event({**served_by(delta.answer), "text_output": delta.text})


def served_by(answer: Answer) -> dict[str, Any]:
    """Returns the version that answered, in the words of Triton and KServe."""
    return {"model_name": answer.manifest.name, "model_version": answer.manifest.version}
