"""The requests of a scenario: their chats, and when an open loop's are due, in seconds of the run. The module knows no
route's body and no connection.

The same seed makes the same requests. Texts are about the demo's lunch-box shop, in Korean and English. The number
of requests is fixed by rate and time. Given their number, the arrivals of a Poisson process are uniformly
distributed, so `poisson` draws that many uniform times: a run never has too few requests by chance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final

from service.evaluation.scenarios.scenario import OpenLoop, RequestKind

SENTENCES: Final = (
    "안녕하세요! 오늘 추천 메뉴가 뭐예요?",
    "불고기 도시락 두 개 주세요. 얼마예요?",
    "제 이름은 하린이에요. 땅콩 알레르기가 있어요.",
    "비건 도시락도 있나요? 매운 것은 못 먹어요.",
    "회사로 배달해 주실 수 있어요? 열두 시까지요.",
    "제육 도시락 하나는 빼고 김밥 세 줄로 바꿔 주세요.",
    "Hi, what can you do?",
    "My name is Mina, and I would like three kimchi rice boxes for noon.",
    "When do you open on Saturday, and can I pay by card?",
    "Please change one of the boxes to the egg roll lunch. What is the total now?",
    "I am allergic to shrimp. Which lunch boxes are safe for me?",
    "Could you tell me again what I have ordered so far?",
)
Chat = list[dict[str, str]]


def text(draw: Random, words: int) -> str:
    found: list[str] = []
    while len(found) < words:
        found += draw.choice(SENTENCES).split()
    return " ".join(found[:words])


def choose(kinds: list[RequestKind], draw: Random) -> RequestKind:
    return draw.choices(kinds, [kind.weight for kind in kinds])[0]


@dataclass(frozen=True, slots=True)
class Drawn:
    """One request: the chat so far with the user's message last, and how long the answer is to be. `others` are the
    prompts besides that message, of a kind with several at once."""

    kind: RequestKind
    chat: Chat
    max_new_tokens: int
    others: tuple[str, ...] = ()


@dataclass(slots=True)
class Dialogue:
    """One user's chat: requests of one kind, each with the chat so far, and a new chat after the last turn."""

    kinds: list[RequestKind]
    draw: Random
    kind: RequestKind | None = None
    chat: Chat = field(default_factory=list)
    turn: int = 0

    def next_request(self) -> Drawn:
        if self.kind is None or self.turn >= self.kind.turns:
            self.kind, self.chat, self.turn = choose(self.kinds, self.draw), [], 0
        self.turn += 1
        self.chat.append({"role": "user", "content": self._text(self.kind)})
        tokens = self.draw.randint(*self.kind.max_new_tokens)
        others = tuple(self._text(self.kind) for _ in range(self.kind.prompts - 1))
        return Drawn(self.kind, list(self.chat), tokens, others)

    def hear(self, answer: str, whole: bool) -> None:
        """A chat whose answer failed ends; the next request begins another."""
        if whole:
            self.chat.append({"role": "assistant", "content": answer})
        else:
            self.kind = None

    def _text(self, kind: RequestKind) -> str:
        return text(self.draw, self.draw.randint(*kind.prompt_words))


def one_request(kinds: list[RequestKind], draw: Random) -> Drawn:
    return Dialogue(kinds, draw).next_request()


def due_times(load: OpenLoop) -> list[float]:
    """Returns the times in order; as many in the warm-up and in the counted time as the rate says."""
    draw = Random(load.seed)
    warm_up = _within(load, 0.0, load.warmup_seconds, draw)
    return warm_up + _within(load, load.warmup_seconds, load.seconds, draw)


def _within(load: OpenLoop, begin: float, seconds: float, draw: Random) -> list[float]:
    count = round(load.rate * seconds)
    if load.arrivals == "constant":
        return [begin + at / load.rate for at in range(count)]
    return sorted(begin + draw.random() * seconds for _ in range(count))
