"""The door is what every request passes before the app, in one process: its connections, and the judge of who would be
refused.

BentoML makes uvicorn's configuration itself, without a choice of protocol. So the door is there before the app is.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from service.api.edge.connections import Connections, Limits
from service.api.edge.wrong_keys import WrongKeys
from service.settings import Settings

if TYPE_CHECKING:
    from service.api.edge.judged_connection import Judge
    from service.observability.metrics import Metrics


class Door:
    """Without `connections` another program holds them."""

    judge: Judge | None = None

    def __init__(self, connections: Connections | None = None) -> None:
        self.connections = connections

    @staticmethod
    def serving(settings: Settings) -> Door:
        """Returns the door of the process that serves: it has loaded uvicorn, whose default protocol and loop become
        ours. BentoML's supervisor has not."""
        config = sys.modules.get("uvicorn.config")
        if config is None:
            return Door()
        from service.api.edge.judged_connection import JudgedConnection

        connections = Connections(Limits.of(settings).that_files_allow())
        door = Door(connections)
        config.HTTP_PROTOCOLS["auto"] = partial(JudgedConnection, connections, door)
        config.LOOP_FACTORIES["auto"] = "service.api.edge.listening:loop_factory"
        return door

    def tell(self, metrics: Metrics, wrong_keys: WrongKeys, judge: Judge | None = None) -> None:
        """Has what happens here, and to keys, counted from now on, and asks `judge`."""
        self.judge = judge
        wrong_keys.on_wrong = metrics.wrong_key
        if self.connections is not None:
            self.connections.on_closed = metrics.connection_closed
        metrics.door(lambda: len(self.connections or ()), lambda: wrong_keys.refused_peers)
