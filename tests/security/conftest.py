"""Logs as a server writes them: the test library's own would show every variable of a traceback, for seconds."""

from __future__ import annotations

from service.observability.logs import configure_logging
from service.settings import Settings

configure_logging(Settings(log_format="json"))
