"""Load reports for gRPC's weighted_round_robin: the service OpenRcaService of xDS.

gRPC's clients call it by themselves (gRFC A51). No wheel has its protos, so the few fields in use
are declared here.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, text_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from svc_kit.auth.principal import peer_host
from svc_kit.errors import QueueFull
from svc_kit.network import peer_network
from svc_kit.rpc.server import Service

ORCA: Final = "xds.service.orca.v3.OpenRcaService"
_IDLE: Final = 0.02
"""The least load: one of 0 counts as unknown, and a smaller one would attract all calls."""
_PERIODS_S: Final = (1.0, 60.0)
_MAX_STREAMS: Final = 1024
_MAX_STREAMS_OF_PEER: Final = 64
"""Those of one address, or IPv6 network. Reports need no key, so their price is bounded."""
_FILE: Final = f"""
name: "xds/service/orca/v3/orca.proto"
package: "{ORCA.rpartition(".")[0]}"
syntax: "proto3"
dependency: "{duration_pb2.DESCRIPTOR.name}"
message_type {{
  name: "OrcaLoadReportRequest"
  field {{ name: "report_interval" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE
           type_name: ".google.protobuf.Duration" }}
}}
message_type {{
  name: "OrcaLoadReport"
  field {{ name: "rps_fractional" number: 6 label: LABEL_OPTIONAL type: TYPE_DOUBLE }}
  field {{ name: "application_utilization" number: 9 label: LABEL_OPTIONAL type: TYPE_DOUBLE }}
}}
service {{
  name: "{ORCA.rpartition(".")[2]}"
  method {{ name: "StreamCoreMetrics" server_streaming: true
            input_type: ".xds.service.orca.v3.OrcaLoadReportRequest"
            output_type: ".xds.service.orca.v3.OrcaLoadReport" }}
}}
"""


def orca_service(utilization: Callable[[], float]) -> Service:
    """The service; `utilization` is 0 for an idle server, and about 1 for a busy one."""
    file = descriptor_pb2.FileDescriptorProto()
    text_format.Parse(_FILE, file)
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
    method = descriptor_pool.Default().FindServiceByName(ORCA).methods_by_name["StreamCoreMetrics"]
    report_type = GetMessageClass(method.output_type)

    num_streams: Counter[str] = Counter()

    async def reports(request: Any, context: Any) -> AsyncIterator[Message]:
        wanted_s = request.report_interval.ToTimedelta().total_seconds()
        period_s = min(max(wanted_s, _PERIODS_S[0]), _PERIODS_S[1])
        peer = peer_network(peer_host(context.peer()) or "")
        _check_room(num_streams[peer], _MAX_STREAMS_OF_PEER)
        _check_room(num_streams.total(), _MAX_STREAMS)
        num_streams[peer] += 1
        try:
            while True:
                # The weight is the rate by the utilization: a constant rate leaves the load alone.
                load = max(_IDLE, utilization())
                yield report_type(rps_fractional=1.0, application_utilization=load)
                await asyncio.sleep(period_s)
        finally:
            num_streams.subtract([peer])
            if not num_streams[peer]:
                del num_streams[peer]

    def add(_: Any, server: grpc.aio.Server) -> None:
        handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
            reports,
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=report_type.SerializeToString,
        )
        server.add_registered_method_handlers(ORCA, {method.name: handler})

    return Service(add, None, ORCA)


def _check_room(count: int, limit: int) -> None:
    """Raise `QueueFull` if there are as many streams as the limit."""
    if count >= limit:
        raise QueueFull(bound="streams of load reports", depth=count, limit=limit)
