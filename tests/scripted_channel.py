"""A socket to the engine of a script: what the loop receives at each step boundary, and what it sends."""

from __future__ import annotations

from service.engine.protocol.messages import FromEngine, Step, ToEngine


class ScriptedChannel:
    """Hands out one entry of `inbox` at each step boundary, then the end of the socket."""

    def __init__(self, inbox: list[list[ToEngine]]) -> None:
        self.sent: list[FromEngine] = []
        self.waited: list[float | None] = []
        self._inbox = inbox

    def receive(self, seconds: float | None) -> list[ToEngine]:
        self.waited.append(seconds)
        if not self._inbox:
            raise EOFError
        return self._inbox.pop(0)

    def send(self, message: FromEngine) -> None:
        self.sent.append(message)

    def wake(self) -> None: ...

    @property
    def steps(self) -> list[Step]:
        return [message for message in self.sent if isinstance(message, Step)]
