"""Routes under /admin for the page: each one is a gRPC call of an operator, translated to JSON, and
needs the same scope.

Bodies and queries are the fields of the call's request, responses those of its reply
(`gateway/http/proto_json.py`).
"""

import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from corral.control.v1 import (
    audit_service_pb2,
    key_service_pb2,
    limit_service_pb2,
    project_service_pb2,
    usage_service_pb2,
)
from corral.inference.v1 import engine_service_pb2, inference_service_pb2
from fastapi import APIRouter
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response

from dialects.shared.json_body import parse_object
from gateway.context import AppContext, Context, idempotency_key
from gateway.http.docs import operation
from gateway.http.errors import json_response
from gateway.http.proto_json import (
    message_object,
    parse_message,
    parse_query,
    proto_body,
    proto_parameters,
    proto_reply,
)
from gateway.rpc import RpcClient
from svc_kit.auth.principal import Principal
from svc_kit.auth.scopes import Scope, method_options, method_path
from svc_kit.errors import ScopeMissing
from svc_kit.logs import current_request_id, log_errors
from svc_kit.rpc.client import method_of
from svc_kit.rpc.message_mapper import encode_timestamp

_log = logging.getLogger(__name__)
router = APIRouter(prefix="/admin")
_REQUEST_ID: Final = "request_id"


@dataclass(frozen=True)
class _Call:
    """A route: `path` under /admin, and the type of the request of its gRPC method."""

    verb: str
    path: str
    summary: str
    request: type[Message]

    @property
    def method(self) -> MethodDescriptor:
        """The gRPC method."""
        return method_of(self.request)

    @property
    def scope(self) -> Scope:
        """The scope of the gRPC method."""
        return method_options(self.method).scope

    async def respond(self, client: RpcClient, request: Request) -> Response:
        """Make the call with the body, or with the query and the path."""
        if self.verb == "POST":
            fields = await AppContext.of(request).bodies.read(request, parse_object)
            proto = parse_message(self.request, fields)
        else:
            proto = parse_query(self.request, {**request.query_params, **request.path_params})
        if _REQUEST_ID in self.request.DESCRIPTOR.fields_by_name and not getattr(
            proto, _REQUEST_ID
        ):
            setattr(proto, _REQUEST_ID, await idempotency_key(request))
        return json_response(message_object(await client.call(proto, Message)))

    @property
    def documentation(self) -> dict[str, Any]:
        """The arguments of the route that document it."""
        body = proto_body(self.request) if self.verb == "POST" else None
        documented = operation(self.summary, "application/json", body)
        documented["responses"][200]["content"] = proto_reply(self.method)
        if body is None:
            documented["openapi_extra"] = {"parameters": proto_parameters(self.request, self.path)}
        return documented


_CALLS: Final = (
    _Call("GET", "/projects", "List projects", project_service_pb2.ListProjectsRequest),
    _Call("POST", "/projects", "Create a project", project_service_pb2.CreateProjectRequest),
    _Call("GET", "/keys", "List keys", key_service_pb2.ListKeysRequest),
    _Call("POST", "/keys", "Create a key", key_service_pb2.CreateKeyRequest),
    _Call("POST", "/keys/rotate", "Give a key a new secret", key_service_pb2.RotateKeyRequest),
    _Call("DELETE", "/keys/{key_id}", "Revoke a key", key_service_pb2.RevokeKeyRequest),
    _Call("GET", "/limits", "List limits", limit_service_pb2.ListLimitsRequest),
    _Call("POST", "/limits", "Create a limit", limit_service_pb2.CreateLimitRequest),
    _Call("DELETE", "/limits/{limit_id}", "Delete a limit", limit_service_pb2.DeleteLimitRequest),
    _Call(
        "GET",
        "/limits/{limit_id}/buckets",
        "List what a limit has left",
        limit_service_pb2.ListLimitBucketsRequest,
    ),
    _Call("GET", "/usage", "List usage", usage_service_pb2.ListUsageRequest),
    _Call("GET", "/audit", "List acts of operators", audit_service_pb2.ListAuditEventsRequest),
    _Call(
        "GET", "/models", "List models with their state", inference_service_pb2.ListModelsRequest
    ),
    _Call("POST", "/models/load", "Load a model", engine_service_pb2.LoadModelRequest),
    _Call("POST", "/models/unload", "Unload a model", engine_service_pb2.UnloadModelRequest),
    _Call(
        "GET",
        "/models/explain",
        "Explain what the server does with a model",
        engine_service_pb2.ExplainModelRequest,
    ),
    _Call("GET", "/server", "Describe the server", engine_service_pb2.GetServerInfoRequest),
    _Call("GET", "/load", "Get the load of the engines", engine_service_pb2.GetLoadRequest),
    _Call("GET", "/requests", "List running requests", engine_service_pb2.ListRequestsRequest),
    _Call("GET", "/sessions", "List sessions", engine_service_pb2.ListSessionsRequest),
    _Call("POST", "/requests/abort", "Abort requests", engine_service_pb2.AbortRequest),
)


async def _client_of(context: AppContext, call: _Call, request: Request) -> RpcClient:
    """The client of a call's service for an operator. A call without its scope is refused, which
    is an event of the audit log if its scope is admin."""
    caller = await context.identify(request, Scope.KNOWN)
    if not caller.principal.has(call.scope):
        refused = ScopeMissing(scope=call.scope, method=f"{request.method} {request.url.path}")
        # Only services write the log.
        if call.scope is Scope.ADMIN and context.settings.service_token_file is not None:
            await _record_refusal(context, call, request, caller.principal, refused.reason)
        raise refused
    is_control = call.request.DESCRIPTOR.file.package == audit_service_pb2.DESCRIPTOR.package
    return (context.control if is_control else context.inference).for_caller(caller)


async def _record_refusal(
    context: AppContext, call: _Call, request: Request, principal: Principal, reason: str
) -> None:
    event = audit_service_pb2.AuditEvent(
        id=str(uuid.uuid4()),
        time=encode_timestamp(datetime.now(UTC)),
        actor=principal.key_id,
        project=principal.project,
        method=method_path(call.method).rpartition(".")[2],
        address=request.client.host if request.client else "",
        request_id=current_request_id(),
        refusal=reason,
    )

    async def report() -> None:
        control = context.control.for_service()
        reported = audit_service_pb2.ReportAuditEventsRequest(events=[event])
        await control.call(reported, audit_service_pb2.ReportAuditEventsResponse)

    with log_errors(_log, "a refused call is not in the audit log"):
        await context.refusals.record(principal.key_id, method_path(call.method), report)


def _endpoint(call: _Call) -> Callable[..., Awaitable[Response]]:
    async def respond(context: Context, request: Request) -> Response:
        return await call.respond(await _client_of(context, call, request), request)

    return respond


for _each in _CALLS:
    router.add_api_route(_each.path, _endpoint(_each), methods=[_each.verb], **_each.documentation)
