"""This module writes the answer to `choices` of the native dialect: each choice with its probability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.api.shared.serialiser import WholeSerialiser
from service.api.tgi import answers as tgi
from service.generation.answer import Answer
from service.generation.choices import ScoredChoice, scored


class ChoicesSerialiser(WholeSerialiser):
    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        [answer] = answers
        choices = scored(answer)
        likeliest = max(choices, key=lambda each: each.logprob)
        facts = {name: value for name, value in tgi.facts(answer).items() if name != "finish_reason"}
        return {"choice": likeliest.text, "choices": [_shown(answer, each) for each in choices], **facts}


def _shown(answer: Answer, choice: ScoredChoice) -> dict[str, Any]:
    text = answer.tokenizer.token_text
    return {
        "text": choice.text,
        "logprob": choice.logprob,
        "probability": choice.probability,
        "tokens": [
            {"id": id, "text": text(id), "logprob": logprob}
            for id, logprob in zip(choice.token_ids, choice.logprobs, strict=True)
        ],
    }
