"""Logs: one line an event; JSON on stdout in production, with the run's and the session's id where there is one."""

import logging.config
import sys
from typing import Any

import structlog


def without_clients_tracebacks(logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
    """A request that Django refuses, say one that is too large, is no defect: the lines of our code say nothing."""
    if 400 <= getattr(event.get("_record"), "status_code", 500) < 500:
        event.pop("exc_info", None)
    return event


SHARED: list[Any] = [
    without_clients_tracebacks,
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]


def logging_config(*, json: bool) -> dict[str, Any]:
    """For `logging.config.dictConfig`: structlog's and the standard library's records go through one handler."""
    renderer = structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=False)
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": structlog.stdlib.ProcessorFormatter,
                "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
                "foreign_pre_chain": SHARED,
            }
        },
        "handlers": {
            "lines": {
                "class": "logging.StreamHandler",
                "formatter": "line",
                "stream": "ext://sys.stdout" if json else "ext://sys.stderr",
            }
        },
        "root": {"handlers": ["lines"], "level": "INFO"},
        "loggers": {
            # urllib3 warns of each retry of a connection; what came of the call is recorded by us.
            "urllib3": {"level": "ERROR"},
            # gunicorn brings handlers of its own, and lines of another kind.
            "gunicorn.error": {"handlers": [], "propagate": True},
        },
    }


def configure(*, json: bool) -> None:
    logging.config.dictConfig(logging_config(json=json))
    structlog.configure(
        processors=[*SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def leave_stdout() -> None:
    """For a command whose standard output is its answer."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            handler.setStream(sys.stderr)
