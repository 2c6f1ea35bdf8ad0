"""A judged connection answers some requests before any app begins: probes at once, and while the server is full those
that are refused, once their body is there. Requests that come without waiting for answers are judged in their turn.

Where the client does not read the answers before, the app answers: it waits for the client, and so does the connection
before it reads more requests.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from starlette.types import Scope
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.api.edge.connection import Connection
from service.api.edge.connections import Connections


class Judge(Protocol):
    """Says of requests what `EarlyAnswers` says of them."""

    most_bytes: int

    def at_once(self, scope: Scope) -> bytes | None: ...

    def may_refuse(self, scope: Scope) -> bool: ...

    def refusal(self, scope: Scope, body: bytes) -> bytes | None: ...


class Judging(Protocol):
    """Has a judge from some moment on: connections come before the app."""

    judge: Judge | None


CLOSE: Final = (b"connection", b"close")


class JudgedConnection(Connection):
    def __init__(self, connections: Connections, judging: Judging, **options: Any) -> None:
        super().__init__(connections, **options)
        self._judging = judging
        self._held: tuple[RequestResponseCycle, ASGI3Application, Judge] | None = None

    def _hold_nothing(self) -> None:
        super()._hold_nothing()
        self._held = None

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self._held is not None and len(self.cycle.body) > self._held[2].most_bytes:
            self._go_on()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self._held is not None:
            self._decide(*self._held)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        judge, self._running = None if self.flow.write_paused else self._judging.judge, cycle
        scope: Any = cycle.scope
        if judge is not None and (answer := judge.at_once(scope)) is not None:
            self._answer(cycle, answer)
        elif judge is not None and judge.may_refuse(scope):
            self._held = cycle, app, judge
            if not cycle.more_body:
                self._decide(cycle, app, judge)
        else:
            super()._start_asgi_task(cycle, app)

    def _decide(self, cycle: RequestResponseCycle, app: ASGI3Application, judge: Judge) -> None:
        scope: Any = cycle.scope
        refusal = None if self.flow.write_paused else judge.refusal(scope, bytes(cycle.body))
        if refusal is None:
            self._go_on()
        else:
            self._held = None
            self._answer(cycle, refusal)

    def _answer(self, cycle: RequestResponseCycle, answer: bytes) -> None:
        cycle.response_started = cycle.response_complete = True
        begin, _, rest = answer.partition(b"\r\n")
        headers = [*self.server_state.default_headers, *([] if cycle.keep_alive else [CLOSE])]
        self.transport.write(b"".join([begin, *(b"\r\n%s: %s" % each for each in headers), b"\r\n", rest]))
        if not cycle.keep_alive:
            self.transport.close()
        if self.pipeline:
            self.loop.call_soon(cycle.on_response)  # a thousand that came at once must not call each other
        else:
            cycle.on_response()

    def _go_on(self) -> None:
        if self._held is not None:
            (cycle, app, _), self._held = self._held, None
            super()._start_asgi_task(cycle, app)
