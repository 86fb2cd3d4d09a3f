"""gRPC servicer of the audit log."""

from typing import Final

from corral.control.v1 import audit_service_pb2 as pb
from corral.control.v1 import audit_service_pb2_grpc as rpc

from control_svc.audit.log import AuditEvent, AuditFilter, AuditLog
from control_svc.base.proto import Context, page_request
from svc_kit.rpc.message_mapper import MessageMapper

_EVENT: Final = MessageMapper(AuditEvent, pb.AuditEvent)
_FILTER: Final = MessageMapper(
    AuditFilter,
    pb.ListAuditEventsRequest,
    renamed={"start": "start_time", "end": "end_time"},
    only_message=["page_size", "page_token"],
)


class AuditServicer(rpc.AuditServiceServicer):
    """gRPC servicer of the audit log."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    async def ListAuditEvents(
        self, request: pb.ListAuditEventsRequest, context: Context
    ) -> pb.ListAuditEventsResponse:
        """List acts of operators."""
        chosen = _FILTER.from_message(request)
        page = await self._log.page(page_request(request, 0), chosen)
        events = [_EVENT.to_message(event) for event in page.items]
        return pb.ListAuditEventsResponse(events=events, next_page_token=page.next_token)

    async def ReportAuditEvents(
        self, request: pb.ReportAuditEventsRequest, context: Context
    ) -> pb.ReportAuditEventsResponse:
        """Add acts on another service."""
        events = [
            _EVENT.from_message(event, f"events[{number}]")
            for number, event in enumerate(request.events)
        ]
        await self._log.add(events)
        return pb.ReportAuditEventsResponse()
