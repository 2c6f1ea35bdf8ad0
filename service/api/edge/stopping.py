"""This module tells whether the HTTP server of this process has been told to end. It knows no request.

uvicorn, which also runs under `bentoml serve`, first waits for all responses and then ends the app's lifespan. A
response that never ends by itself must therefore ask here; otherwise the server waits for it until the drain time has
passed.
"""

from __future__ import annotations

import signal


def is_stopping() -> bool:
    """Returns whether the server that handles SIGTERM has begun to end; False where another program handles it."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))
