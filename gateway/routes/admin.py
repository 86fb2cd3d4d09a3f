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
from functools import cached_property
from typing import Any, Final, TypeVar

from corral.control.v1 import (
    audit_service_pb2,
    key_service_pb2,
    limit_service_pb2,
    project_service_pb2,
    usage_service_pb2,
)
from corral.inference.v1 import engine_service_pb2, inference_service_pb2
from fastapi import APIRouter
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
from svc_kit.auth.scopes import METHOD_SCOPES, Scope
from svc_kit.errors import ScopeMissing
from svc_kit.logs import current_request_id, log_errors
from svc_kit.rpc.message_mapper import encode_timestamp

_log = logging.getLogger(__name__)
router = APIRouter(prefix="/admin")
ClientT = TypeVar("ClientT", bound=RpcClient)
_REQUEST_ID: Final = "request_id"


@dataclass(frozen=True)
class _Call:
    """A route: `path` under /admin, its gRPC method and the type of its request."""

    verb: str
    path: str
    summary: str
    method: Callable[[Any], Callable[..., Awaitable[Message]]]
    request: type[Message]

    @cached_property
    def rpc(self) -> str:
        """The name of the gRPC method, as in METHOD_SCOPES."""
        wanted = self.request.DESCRIPTOR
        methods = (
            method
            for service in wanted.file.services_by_name.values()
            for method in service.methods
        )
        return next(
            f"/{method.containing_service.full_name}/{method.name}"
            for method in methods
            if method.input_type is wanted
        )

    @property
    def scope(self) -> Scope:
        """The scope of the gRPC method."""
        return METHOD_SCOPES[self.rpc]

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
        return json_response(message_object(await client.call(self.method(client), proto)))

    @property
    def documentation(self) -> dict[str, Any]:
        """The arguments of the route that document it."""
        body = proto_body(self.request) if self.verb == "POST" else None
        documented = operation(self.summary, "application/json", body)
        documented["responses"][200]["content"] = proto_reply(self.request)
        if body is None:
            documented["openapi_extra"] = {"parameters": proto_parameters(self.request, self.path)}
        return documented


_CONTROL: Final = (
    _Call("GET", "/projects", "List projects",
          lambda c: c.projects.ListProjects, project_service_pb2.ListProjectsRequest),
    _Call("POST", "/projects", "Create a project",
          lambda c: c.projects.CreateProject, project_service_pb2.CreateProjectRequest),
    _Call("GET", "/keys", "List keys",
          lambda c: c.keys.ListKeys, key_service_pb2.ListKeysRequest),
    _Call("POST", "/keys", "Create a key",
          lambda c: c.keys.CreateKey, key_service_pb2.CreateKeyRequest),
    _Call("POST", "/keys/rotate", "Give a key a new secret",
          lambda c: c.keys.RotateKey, key_service_pb2.RotateKeyRequest),
    _Call("DELETE", "/keys/{key_id}", "Revoke a key",
          lambda c: c.keys.RevokeKey, key_service_pb2.RevokeKeyRequest),
    _Call("GET", "/limits", "List limits",
          lambda c: c.limits.ListLimits, limit_service_pb2.ListLimitsRequest),
    _Call("POST", "/limits", "Create a limit",
          lambda c: c.limits.CreateLimit, limit_service_pb2.CreateLimitRequest),
    _Call("DELETE", "/limits/{limit_id}", "Delete a limit",
          lambda c: c.limits.DeleteLimit, limit_service_pb2.DeleteLimitRequest),
    _Call("GET", "/limits/{limit_id}/buckets", "List what a limit has left",
          lambda c: c.limits.ListLimitBuckets, limit_service_pb2.ListLimitBucketsRequest),
    _Call("GET", "/usage", "List usage",
          lambda c: c.usage.ListUsage, usage_service_pb2.ListUsageRequest),
    _Call("GET", "/audit", "List acts of operators",
          lambda c: c.audit.ListAuditEvents, audit_service_pb2.ListAuditEventsRequest),
)  # fmt: skip
_INFERENCE: Final = (
    _Call("GET", "/models", "List models with their state",
          lambda c: c.methods.ListModels, inference_service_pb2.ListModelsRequest),
    _Call("POST", "/models/load", "Load a model",
          lambda c: c.engine.LoadModel, engine_service_pb2.LoadModelRequest),
    _Call("POST", "/models/unload", "Unload a model",
          lambda c: c.engine.UnloadModel, engine_service_pb2.UnloadModelRequest),
    _Call("GET", "/models/explain", "Explain what the server does with a model",
          lambda c: c.engine.ExplainModel, engine_service_pb2.ExplainModelRequest),
    _Call("GET", "/server", "Describe the server",
          lambda c: c.engine.GetServerInfo, engine_service_pb2.GetServerInfoRequest),
    _Call("GET", "/load", "Get the load of the engines",
          lambda c: c.engine.GetLoad, engine_service_pb2.GetLoadRequest),
    _Call("GET", "/requests", "List running requests",
          lambda c: c.engine.ListRequests, engine_service_pb2.ListRequestsRequest),
    _Call("POST", "/requests/abort", "Abort requests",
          lambda c: c.engine.Abort, engine_service_pb2.AbortRequest),
)  # fmt: skip


async def _client_of(service: ClientT, call: _Call, request: Request) -> ClientT:
    """The client of a service for an operator. A call without its scope is refused, which is an
    event of the audit log if its scope is admin."""
    context = AppContext.of(request)
    caller = await context.identify(request, Scope.KNOWN)
    if not caller.principal.has(call.scope):
        refused = ScopeMissing(scope=call.scope, method=f"{request.method} {request.url.path}")
        # Only services write the log.
        if call.scope is Scope.ADMIN and context.settings.service_token_file is not None:
            await _record_refusal(context, call, request, caller.principal, refused.reason)
        raise refused
    return service.for_caller(caller)


async def _record_refusal(
    context: AppContext, call: _Call, request: Request, principal: Principal, reason: str
) -> None:
    event = audit_service_pb2.AuditEvent(
        id=str(uuid.uuid4()),
        time=encode_timestamp(datetime.now(UTC)),
        actor=principal.key_id,
        project=principal.project,
        method=call.rpc.rpartition(".")[2],
        address=request.client.host if request.client else "",
        request_id=current_request_id(),
        refusal=reason,
    )

    async def report() -> None:
        control = context.control.for_service()
        reported = audit_service_pb2.ReportAuditEventsRequest(events=[event])
        await control.call(control.audit.ReportAuditEvents, reported)

    with log_errors(_log, "a refused call is not in the audit log"):
        await context.refusals.record(principal.key_id, call.rpc, report)


def _control_endpoint(call: _Call) -> Callable[..., Awaitable[Response]]:
    async def respond(context: Context, request: Request) -> Response:
        return await call.respond(await _client_of(context.control, call, request), request)

    return respond


def _inference_endpoint(call: _Call) -> Callable[..., Awaitable[Response]]:
    async def respond(context: Context, request: Request) -> Response:
        return await call.respond(await _client_of(context.inference, call, request), request)

    return respond


for _each in _CONTROL:
    router.add_api_route(
        _each.path, _control_endpoint(_each), methods=[_each.verb], **_each.documentation
    )
for _each in _INFERENCE:
    router.add_api_route(
        _each.path, _inference_endpoint(_each), methods=[_each.verb], **_each.documentation
    )
