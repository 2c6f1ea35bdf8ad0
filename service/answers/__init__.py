"""One question, whatever the dialect, and its answer token by token. Knows text, engines and versions; knows no HTTP.

Ask ──▶ Answers.stream ──▶ Delta, Delta, … (the last one has `last` set); closing the stream aborts in the engine
        acquire ─▶ build_prompt ─▶ admission ─▶ n sequences of one prompt ─▶ detokenizer ─▶ one Delta a token
"""

from service.answers.answer import Answer, Delta
from service.answers.answers import Answers
from service.answers.ask import Ask, InSession, Sampling
from service.answers.conversations import Conversations
from service.answers.decoding import Decoding
from service.answers.piece import Token
from service.engine.messages import FinishReason, TokenLogprobs

__all__ = [
    "Answer",
    "Answers",
    "Ask",
    "Conversations",
    "Decoding",
    "Delta",
    "FinishReason",
    "InSession",
    "Sampling",
    "Token",
    "TokenLogprobs",
]
