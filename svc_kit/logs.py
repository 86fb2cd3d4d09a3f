"""Logging to stderr, with request id, project and trace id from context variables. Prompts and
credentials are never logged. Lines have a limited length, and each place in the code, also of
libraries, logs a limited number of lines, so that callers without a key cannot fill a disk.
"""

import contextlib
import contextvars
import json
import logging
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
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


KEYLESS_ID: Final = "keyless"
"""The name of accepted callers without a key."""


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
    handler = BoundedHandler(target)
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


MAX_TEXT: Final = 2000
"""Characters of a message, and of a field."""
_MAX_TRACEBACK: Final = 4 * MAX_TEXT
_KEY: Final = re.compile(r"(sk-corral-)[A-Za-z0-9_-]{12,}")
"""An API key, which callers can send as what is logged: a path, or the id of a request."""
LINES_PER_S: Final = 20.0
"""Lines of one place in the code in the long run, without those of calls with a key."""
BURST_LINES: Final = 200
"""Lines of one place that are logged at once."""
_KEYLESS_SHARE: Final = 10
"""How much more they are for accepted calls without a key."""
_SUMMARY_S: Final = 10.0


@dataclass
class _Place:
    """A place in the code that logs."""

    lines: float
    """What it may log now."""
    seen_at: float
    num_left_out: int = 0


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Writes the lines of each place in the code up to a rate, and says how many it left out.

    The lines of calls with a key, in the access log, are complete. Bytes in the arguments of a line
    are what a client sent, for example gRPC's complaint about a header; they are not written.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is in seconds."""
        super().__init__(stream)
        self._clock = clock
        self._places: dict[tuple[str, str, int, bool], _Place] = {}
        self._summed_up_at = clock()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it."""
        if not _is_wanted(record):
            return
        now = self._clock()
        if self._admit(record, now):
            super().emit(record)
        if now - self._summed_up_at >= _SUMMARY_S:
            self._sum_up(now)

    def close(self) -> None:
        """Write what was left out."""
        with contextlib.suppress(ValueError):  # the stream may be closed
            self._sum_up(self._clock())
        super().close()

    def _admit(self, record: logging.LogRecord, now: float) -> bool:
        key = getattr(record, "fields", {}).get("key") or ""
        is_keyless = key == KEYLESS_ID
        if key and not is_keyless:
            return True
        share = _KEYLESS_SHARE if is_keyless else 1
        identity = (record.name, record.pathname, record.lineno, is_keyless)
        place = self._places.setdefault(identity, _Place(BURST_LINES * share, now))
        gained = (now - place.seen_at) * LINES_PER_S * share
        place.lines, place.seen_at = min(BURST_LINES * share, place.lines + gained), now
        if place.lines >= 1:
            place.lines -= 1
            return True
        place.num_left_out += 1
        if place.num_left_out == 1:
            self._write(record.name, f"too many lines, some are left out: {record.msg}")
        return False

    def _sum_up(self, now: float) -> None:
        self._summed_up_at = now
        for (name, path, line, _), place in self._places.items():
            if place.num_left_out > 1:
                where = f"{Path(path).name}:{line}"
                self._write(name, f"{place.num_left_out} lines of {where} were left out")
            place.num_left_out = 0

    def _write(self, name: str, text: str) -> None:
        super().emit(logging.LogRecord(name, logging.WARNING, "", 0, text, (), None))


def _is_wanted(record: logging.LogRecord) -> bool:
    """Whether a line is to be written. Those about what clients send and about their connections,
    which gRPC logs as errors, are details: bytes are what a client sent, of which the number is
    written, and a failed batch is a client that has gone."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    defect = record.exc_info[0] if record.exc_info else None
    is_gone = defect is not None and defect.__name__ == "ExecuteBatchError"
    if not (is_gone or any(isinstance(each, bytes) for each in arguments)):
        return True
    record.args = tuple(
        f"{len(each)} bytes" if isinstance(each, bytes) else each for each in arguments
    )
    record.exc_info, record.levelno, record.levelname = None, logging.DEBUG, "DEBUG"
    return logging.getLogger().isEnabledFor(logging.DEBUG)


_STOP_S: Final = 60.0


class OutageLevel:
    """The level at which clients of another service log failed calls: WARNING, but INFO for a
    minute after a call failed with DRAINING, which the service answers while it shuts down."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._warns_from = -math.inf

    def __call__(self, error: Exception) -> int:
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


def _cut(text: str) -> str:
    text = _KEY.sub(r"\1…", text)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"


def _cut_traceback(text: str) -> str:
    """Keep the begin, and more of the end, which has the cause."""
    text = _KEY.sub(r"\1…", text)
    if len(text) <= _MAX_TRACEBACK:
        return text
    return f"{text[: _MAX_TRACEBACK // 4]}\n…\n{text[-_MAX_TRACEBACK * 3 // 4 :]}"


def _cut_fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", {})
    return {name: _cut(each) if isinstance(each, str) else each for name, each in fields.items()}


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
            "message": _cut(record.getMessage()),
            **_context(),
            **_cut_fields(record),
        }
        if record.exc_info:
            line["exception"] = _cut_traceback(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """A readable line, for terminals."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Time of day, service, level, message, then key=value."""
        pairs = {**_context(), **_cut_fields(record)}
        tail = "".join(f" {key}={value}" for key, value in pairs.items())
        clock = _time(record).astimezone().strftime("%H:%M:%S")
        # Indented, so that a line break in a message cannot forge a log entry.
        message = _cut(record.getMessage()).replace("\n", "\n    ")
        line = f"{clock} {self._service} {record.levelname.lower()}: {message}{tail}"
        if record.exc_info:
            line += "\n" + _cut_traceback(self.formatException(record.exc_info))
        return escape(line, kept="\n\t")


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, tz=UTC)
