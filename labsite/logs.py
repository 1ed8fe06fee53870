"""Logs: one line an event on stderr; JSON in production, with the run's and the session's id where there is one."""

import logging.config
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


def logging_config(*, json: bool) -> None:
    """Sends structlog's and the standard library's records through one handler."""
    renderer = structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=False)
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "line": {
                    "()": structlog.stdlib.ProcessorFormatter,
                    "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
                    "foreign_pre_chain": SHARED,
                }
            },
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
            "root": {"handlers": ["stderr"], "level": "INFO"},
            # urllib3 warns of each retry of a connection; what came of the call is recorded by us.
            "loggers": {"urllib3": {"level": "ERROR"}},
        }
    )
    structlog.configure(
        processors=[*SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
