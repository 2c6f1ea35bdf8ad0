"""The one look of `make test` at a model that others trained; `make nightly` looks at the rest of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from service.engine.protocol.messages import Request, SamplingParams
from service.evaluation.offline import Loaded, run_all
from service.text.messages import Message
from service.text.tokenizer import Tokenizer
from tests.real.test_crowd import told
from tests.real.test_quality import ANSWER, QUESTION

OTHERS = ("Name three colours.", "Where does the sun rise?", "Write a sentence about bread.")


def test_a_plain_question_is_answered_alone_and_in_a_crowd(loaded: Callable[[str], Loaded]) -> None:
    version = loaded("file")
    tokenizer = Tokenizer.load(Path(version.config.model_dir))
    params = SamplingParams(max_tokens=24, stop_token_ids=tuple(tokenizer.stop_token_ids), logprobs=1)
    asked = [
        Request(question, tuple(tokenizer.render_chat([Message("user", question)])), params)
        for question in (QUESTION, *OTHERS)
    ]
    alone = run_all(version.core(speculation=False), asked[:1])[QUESTION]
    crowd = run_all(version.core(), asked)[QUESTION]
    assert tokenizer.decode([token for output in alone for token in output.token_ids]).strip() == ANSWER
    assert told(crowd) == told(alone)
