"""The log is set up here: one line a record on standard error, JSON or readable. The module knows no route and no
request."""

from __future__ import annotations

import logging
import sys

import msgspec
import structlog

from service.observability.log_lines import LogLines
from service.observability.tracebacks import wordless
from service.settings import Settings, colours_wanted


def configure_logging(settings: Settings) -> None:
    """Writes one line a record to standard error: JSON, or columns on a terminal. The standard library's records join
    in.

    The log holds no user's text. Exceptions go without their messages. Libraries are silent below level info (aiosqlite
    shows every statement with its values). So is uvicorn's line for each request, which has the query.
    """
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    as_json = is_json(settings)
    renderer: structlog.typing.Processor = LogLines(colours_wanted(sys.stderr.isatty()))
    if as_json:
        renderer = structlog.processors.JSONRenderer(
            serializer=lambda record, **_: msgspec.json.encode(record).decode()
        )
    stamp = structlog.processors.TimeStamper(fmt="iso" if as_json else "%H:%M:%S", utc=as_json)
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        stamp,
        structlog.processors.ExceptionRenderer(wordless),
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler()
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared))
    logging.basicConfig(handlers=[handler], level=max(level, logging.INFO))
    logging.getLogger("uvicorn.access").disabled = True


def is_json(settings: Settings) -> bool:
    """Returns whether the log is JSON: as set, else wherever standard error is no terminal."""
    return settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
