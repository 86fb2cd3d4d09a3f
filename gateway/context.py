"""Shared parts and helpers of all routes. Created by `gateway.app.build`."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.websockets import WebSocket

from gateway.active_calls import ActiveCalls
from gateway.auth import Authentication, Caller
from gateway.calls import Calls
from gateway.config import GatewaySettings
from gateway.rpc import ControlClient, InferenceClient
from gateway.sse import (
    CallResponse,
    Collector,
    EventStream,
    Frames,
    ResponseWriter,
    SingleObject,
    UnaryObject,
)
from openai_wire.chat.objects import random_suffix
from openai_wire.envelope import Envelope
from openai_wire.errors import ParamNames
from svc_kit.auth.scopes import Scope
from svc_kit.errors import Draining


@dataclass(frozen=True)
class AppContext:
    """The shared parts of all routes."""

    settings: GatewaySettings
    authentication: Authentication
    inference: InferenceClient
    control: ControlClient
    active_calls: ActiveCalls
    fingerprint: str
    id_suffix: Callable[[], str] = random_suffix
    clock: Callable[[], float] = time.time

    async def check_ready(self) -> None:
        """Raise Draining or UpstreamUnavailable while requests cannot be served."""
        if self.active_calls.closed:
            raise Draining
        await self.inference.check_serving()

    async def identify_socket(self, websocket: WebSocket) -> Caller:
        """Authenticate a WebSocket. Repeated for each response, since a key can be revoked."""
        method = "GET /v1/responses"
        return await self.authentication.identify(websocket, method, Scope.INFERENCE)

    def new_envelope(self, prefix: str, model: str) -> Envelope:
        """The identity of a new response."""
        return Envelope(
            id=prefix + self.id_suffix(),
            created=int(self.clock()),
            model=model,
            system_fingerprint=self.fingerprint,
        )

    def stream_response(
        self, start: Callable[[], Calls[Any]], frames: Frames, params: ParamNames
    ) -> Response:
        """Respond with server-sent events."""
        stream = EventStream(frames, params, self.settings.ping_interval_s)
        return self.call_response(start, stream, params)

    def object_response(
        self, start: Callable[[], Calls[Any]], collector: Collector, params: ParamNames
    ) -> Response:
        """Respond with one object."""
        return self.call_response(start, SingleObject(collector), params)

    def reply_response(
        self,
        start: Callable[[], Calls[Any]],
        write: Callable[[Any], Mapping[str, Any]],
        params: ParamNames,
    ) -> Response:
        """Respond with the reply of a unary call, converted by `write`."""
        return self.call_response(start, UnaryObject(write), params)

    def call_response(
        self, start: Callable[[], Calls[Any]], writer: ResponseWriter, params: ParamNames
    ) -> Response:
        """Respond with the events of calls in another format."""
        return CallResponse(start, writer, self.active_calls, params)
