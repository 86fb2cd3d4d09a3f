"""Logging to stderr, with request id, project and trace id from context variables. Prompts and
credentials are never logged.
"""

import contextvars
import json
import logging
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from svc_kit.errors import DomainError, Draining
from svc_kit.terminal import escape
from svc_kit.tracing.span import current_span

request_id_var: Final[contextvars.ContextVar[str]] = contextvars.ContextVar(
    "request_id", default=""
)
"""The id of the running request; empty outside one."""
project_var: Final[contextvars.ContextVar[str]] = contextvars.ContextVar("project", default="")
"""The project of the running request; empty outside one."""
_call_fields: Final[contextvars.ContextVar[dict[str, Any] | None]] = contextvars.ContextVar(
    "call_fields", default=None
)

_URL: Final = re.compile(
    r"""(https?://(?:[^"?\\]+|\\.)*+)(?:\?(?:[^"\\]+|\\.)*+)?""", re.IGNORECASE | re.DOTALL
)
"""A URL before its query, and the query. It matches also without one: no text is read twice."""


def hide_queries(text: str) -> str:
    """A text or JSON without the queries of its URLs, which may be secrets. A URL may have
    spaces; it ends where the text or the string of the JSON does."""
    return _URL.sub(r"\1", text)


def current_request_id() -> str:
    """The id of the running request; empty outside one."""
    return request_id_var.get()


def start_call_fields() -> dict[str, Any]:
    """Start the fields that the running call's line in the access log will have, and return them.

    Tasks that the call starts add to the same fields.
    """
    fields: dict[str, Any] = {}
    _call_fields.set(fields)
    return fields


def add_call_fields(**fields: Any) -> None:
    """Add fields to the running call's line in the access log; does nothing outside a call."""
    current = _call_fields.get()
    if current is not None:
        current.update(fields)


def add_call_counts(**counts: int) -> None:
    """Add to fields of the running call's line in the access log that are sums."""
    current = _call_fields.get()
    if current is not None:
        for name, count in counts.items():
            current[name] = current.get(name, 0) + count


def configure_logging(
    service: str, *, level: str = "info", json: bool | None = None, stream: TextIO | None = None
) -> None:
    """Send all log lines of this process to `stream` (default: stderr), replacing other handlers.

    `json` defaults to text on a terminal and JSON elsewhere. `extra={"fields": {...}}` adds keys
    to a line. Raises ValueError for an unknown level.
    """
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    as_json = not target.isatty() if json is None else json
    handler.setFormatter(JsonFormatter(service) if as_json else TextFormatter(service))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    set_log_level(level)
    # Its warnings and errors contain responses of remote servers.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)


def set_log_level(level: str) -> None:
    """Set the lowest level of lines. Raises ValueError for an unknown one."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for name in ("asyncio", "grpc"):
        # At DEBUG they log several lines per call.
        logging.getLogger(name).setLevel(max(root.level, logging.INFO))
    # Their INFO lines repeat what the service logs.
    for name in ("alembic", "httpx2"):
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))


_STOP_S: Final = 60.0


class OutageLevel:
    """The level at which clients of another service log failed calls: WARNING, but INFO for a
    minute after a call failed with DRAINING, which the service answers while it shuts down."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._warns_from = -math.inf

    def __call__(self, error: Exception) -> int:
        """Return the level at which to log an error."""
        now = self._clock()
        if isinstance(error, Draining):
            self._warns_from = now + _STOP_S
        return logging.INFO if now < self._warns_from else logging.WARNING


@contextmanager
def log_errors(
    log: logging.Logger,
    problem: str,
    level: Callable[[Exception], int] = lambda _: logging.WARNING,
) -> Iterator[None]:
    """Log errors instead of raising them, for loops whose next round may succeed.

    DomainErrors and timeouts are expected, and logged at the `level` of the error.
    """
    try:
        yield
    except (DomainError, TimeoutError) as error:
        log.log(level(error), "%s: %s", problem, error)
    except Exception:  # a defect must not end the loop
        log.exception(problem)


def _context() -> dict[str, str]:
    values = {
        "request_id": request_id_var.get(),
        "project": project_var.get(),
        "trace_id": current_span().trace_id,
    }
    return {key: value for key, value in values.items() if value}


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, service, logger, message, request context, extra fields, exception."""
        line: dict[str, Any] = {
            "time": _time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
            **_context(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """A readable line, for terminals."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Time of day, service, level, message, then key=value."""
        pairs = {**_context(), **getattr(record, "fields", {})}
        tail = "".join(f" {key}={value}" for key, value in pairs.items())
        clock = _time(record).astimezone().strftime("%H:%M:%S")
        # Indented, so that a line break in a message cannot forge a log entry.
        message = record.getMessage().replace("\n", "\n    ")
        line = f"{clock} {self._service} {record.levelname.lower()}: {message}{tail}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return escape(line, kept="\n\t")


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, tz=UTC)
