"""Sends the events of the audit log to syslog too, once they are committed."""

import logging
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from logging.handlers import QueueHandler, QueueListener, SysLogHandler
from typing import Final

import orjson
import sqlalchemy as sa
from sqlalchemy.orm import Session

from control_svc.audit.log import UNSENT, AuditEvent
from svc_kit.lifecycle import StartupError
from svc_kit.network import parse_address

_log = logging.getLogger(__name__)
_PROGRAM: Final = "corral-audit: "


class _Handler(SysLogHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Log that an event was not sent; it is in the database all the same."""
        _log.warning("an event of the audit log was not sent to syslog", exc_info=True)


@contextmanager
def send_to_syslog(target: str | None) -> Iterator[None]:
    """Send each event as one line of JSON, from a thread, while the context is open.

    `target` is the path of a Unix socket, or host:port for UDP; None: nothing is sent. Raises
    StartupError for an unknown host.
    """
    if target is None:
        yield
        return
    handler = _open(target)
    waiting: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    sender, listener = QueueHandler(waiting), QueueListener(waiting, handler)

    def send(event: AuditEvent) -> None:
        line = orjson.dumps(asdict(event)).decode()
        sender.handle(logging.LogRecord(_PROGRAM, logging.INFO, "", 0, line, (), None))

    def send_committed(session: Session) -> None:
        for event in session.info.pop(UNSENT, ()):
            send(event)

    sa.event.listen(Session, "after_commit", send_committed)
    listener.start()
    try:
        yield
    finally:
        sa.event.remove(Session, "after_commit", send_committed)
        listener.stop()
        handler.close()


def _open(target: str) -> _Handler:
    try:
        if target.startswith("/"):
            handler = _Handler(target, SysLogHandler.LOG_AUTHPRIV)
        else:
            address = parse_address(target)
            handler = _Handler((address.host, address.port), SysLogHandler.LOG_AUTHPRIV)
    except OSError as error:
        raise StartupError(f"audit_syslog: {target} cannot be opened: {error}") from error
    handler.ident = _PROGRAM
    return handler
