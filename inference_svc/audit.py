"""Reports what operators did with this service to the audit log of the control service.

An event is a file in a folder, synced to the disk before the call is answered. It is sent until the
control service has it, and then deleted; by its id it is added once.
"""

import asyncio
import logging
import os
import re
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from corral.control.v1 import audit_service_pb2 as pb
from google.protobuf.message import DecodeError

from inference_svc.delivery import Reporter
from svc_kit.auth.authenticator import SERVICE_KEY_ID
from svc_kit.auth.principal import current_principal, peer_host
from svc_kit.local_files import UUID, atomic_file, delete_drafts, own_files
from svc_kit.logs import OutageLevel, current_request_id, hide_queries
from svc_kit.rpc.admin_call import AdminCall
from svc_kit.rpc.message_mapper import encode_timestamp

_log = logging.getLogger(__name__)
MAX_WAITING: Final = 10_000
"""Acts that wait for the control service; further ones are in the log alone."""
_BATCH: Final = 100
_SUFFIX: Final = ".act"
_FILE: Final = re.compile(rf"[0-9]{{20}}-{UUID}\{_SUFFIX}")
"""What has another name is not ours: it is neither sent nor deleted."""
_OWN_METHOD: Final = "EngineService/DropSnapshots"
"""Control calls it on its own behalf, when objects are deleted."""
_TARGETS: Final = ("model", "name", "source", "snapshot_id", "request_id")
"""Fields of requests that name the object of the call."""


class AuditReporter(Reporter[pb.ReportAuditEventsRequest]):
    """Keeps audit events in a folder and sends them."""

    content = "acts"

    def __init__(
        self,
        folder: Path,
        send: Callable[[pb.ReportAuditEventsRequest], Awaitable[object]],
        outage_level: OutageLevel | None = None,
        *,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        """Events that earlier processes left in `folder` are sent too. Raises OSError."""
        super().__init__(send, outage_level)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        delete_drafts(folder, _FILE.pattern)
        self._folder = folder
        self._max_waiting = max_waiting

    async def record(self, call: AdminCall) -> None:
        """Keep a call that has succeeded or was refused. One that cannot be kept is logged."""
        principal = current_principal()
        if call.short_method == _OWN_METHOD and principal.key_id == SERVICE_KEY_ID:
            return
        event = pb.AuditEvent(
            id=str(uuid.uuid4()),
            time=encode_timestamp(datetime.now(UTC)),
            actor=principal.key_id,
            project=principal.project,
            method=call.short_method,
            target=_target(call.request),
            request=call.request_json,
            address=peer_host(call.peer) or "",
            request_id=current_request_id(),
            refusal=call.refusal,
        )
        try:
            await asyncio.to_thread(self._write, event)
        except OSError as error:
            fields = {"act": call.short_method, "target": event.target, "key": event.actor}
            _log.error("an act is not in the audit log: %s", error, extra={"fields": fields})

    async def _requests(self) -> AsyncGenerator[pb.ReportAuditEventsRequest, None]:
        while waiting := (await asyncio.to_thread(self._waiting))[:_BATCH]:
            if events := await asyncio.to_thread(_read, waiting):
                yield pb.ReportAuditEventsRequest(events=events)
            for path in waiting:
                path.unlink(missing_ok=True)

    def _waiting(self) -> list[Path]:
        return own_files(self._folder, _FILE)

    def _write(self, event: pb.AuditEvent) -> None:
        if len(self._waiting()) >= self._max_waiting:
            raise OSError(f"{self._max_waiting} acts wait for the control service")
        path = self._folder / f"{event.time.ToNanoseconds():020}-{event.id}{_SUFFIX}"
        with atomic_file(path) as file:
            file.write(event.SerializeToString())
            file.flush()
            os.fsync(file.fileno())


def _read(paths: Iterable[Path]) -> list[pb.AuditEvent]:
    events = []
    for path in paths:
        try:
            events.append(pb.AuditEvent.FromString(path.read_bytes()))
        except DecodeError as error:
            _log.error("the act in %s cannot be read: %s", path, error)
        except FileNotFoundError:
            continue  # another process has sent it
    return events


def _target(request: Any) -> str:
    named = (getattr(request, field, "") for field in _TARGETS)
    return hide_queries(next((text for text in named if text), ""))
