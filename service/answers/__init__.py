"""The package turns a generation request into its answer, token by token. It knows text, engines and versions; no HTTP.

GenerationRequest ─▶ Answers.stream ─▶ Delta, Delta, … (the last has `last` set); closing the stream aborts the engine's
        acquire ─▶ build_prompt ─▶ admission ─▶ n sequences of one prompt ─▶ detokenizer ─▶ one Delta a token
"""

from service.answers.answer import Answer, Delta
from service.answers.answers import Answers
from service.answers.choices import ScoredChoice, scored
from service.answers.conversations import Conversations
from service.answers.embedding import Embedding
from service.answers.opening import Opening
from service.answers.output_sequence import OutputSequence
from service.answers.request import Choices, GenerationRequest, Sampling, SessionTurn
from service.answers.token_delta import Call, CallDelta, Token
from service.engine.messages import FinishReason, Pooling, TokenLogprobs

__all__ = [
    "Answer",
    "Answers",
    "Call",
    "CallDelta",
    "Choices",
    "Conversations",
    "Delta",
    "Embedding",
    "FinishReason",
    "GenerationRequest",
    "Opening",
    "OutputSequence",
    "Pooling",
    "Sampling",
    "ScoredChoice",
    "SessionTurn",
    "Token",
    "TokenLogprobs",
    "scored",
]
