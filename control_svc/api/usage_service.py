"""Servicer of `UsageService`: convert, call, convert."""

import grpc
from corral.control.v1 import usage_service_pb2 as pb
from corral.control.v1 import usage_service_pb2_grpc as rpc

from control_svc.api import convert_operators as convert
from control_svc.domain.listing import PageRequest
from control_svc.usecases.usage import Usage

Context = grpc.aio.ServicerContext[object, object]


class UsageServicer(rpc.UsageServiceServicer):
    """Usage over gRPC."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage

    async def ReportUsage(
        self, request: pb.ReportUsageRequest, context: Context
    ) -> pb.ReportUsageResponse:
        """Add what a service counted."""
        await self._usage.add(convert.usage_report(request))
        return pb.ReportUsageResponse()

    async def ListUsage(
        self, request: pb.ListUsageRequest, context: Context
    ) -> pb.ListUsageResponse:
        """List sums."""
        asked = PageRequest(request.page_size, request.page_token, newest_first=False)
        page = await self._usage.page(convert.usage_query(request), asked)
        sums = [convert.usage_to_pb(found) for found in page.items]
        return pb.ListUsageResponse(sums=sums, next_page_token=page.next_token)
