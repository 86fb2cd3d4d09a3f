"""What routes share, composed in `gateway.app.build`."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.active_calls import ActiveCalls
from gateway.auth import Authentication
from gateway.calls import Calls
from gateway.config import GatewaySettings
from gateway.http.json_body import read_json, read_json_array
from gateway.inference import InferenceClient
from gateway.rpc import ControlClient
from gateway.sse import Answer, CallResponse, Chunks, Collector, EventStream, WholeObject
from openai_wire.chat.objects import random_suffix
from openai_wire.envelope import Envelope
from openai_wire.errors import ParamNames
from svc_kit.errors import Draining


@dataclass(frozen=True)
class AppContext:
    """The shared parts of all routes."""

    settings: GatewaySettings
    authentication: Authentication
    operators: Authentication
    """Who may do what is an operator's."""
    inference: InferenceClient
    control: ControlClient
    live: ActiveCalls
    fingerprint: str
    suffixes: Callable[[], str] = random_suffix
    clock: Callable[[], float] = time.time

    async def check_ready(self) -> None:
        """Raises Draining or UpstreamUnavailable while requests cannot be answered."""
        if self.live.closed:
            raise Draining
        await self.inference.check_serving()

    async def read_body(self, request: Request) -> dict[str, Any]:
        """The JSON object of a request. Raises as `read_json`."""
        limit, timeout_s = self.settings.body_limit_bytes, self.settings.receive_timeout_s
        return await read_json(request, limit, timeout_s)

    async def read_array(self, request: Request) -> list[Any]:
        """The JSON array of a request. Raises as `read_json`."""
        limit, timeout_s = self.settings.body_limit_bytes, self.settings.receive_timeout_s
        return await read_json_array(request, limit, timeout_s)

    def new_envelope(self, prefix: str, model: str) -> Envelope:
        """The identity of a new answer."""
        return Envelope(
            id=prefix + self.suffixes(),
            created=int(self.clock()),
            model=model,
            system_fingerprint=self.fingerprint,
        )

    def streamed(
        self, start: Callable[[], Calls[Any]], chunks: Chunks, params: ParamNames
    ) -> Response:
        """An answer as server-sent events."""
        answer = EventStream(chunks, params, self.settings.ping_interval_s)
        return self.answered(start, answer, params)

    def whole(
        self, start: Callable[[], Calls[Any]], collector: Collector, params: ParamNames
    ) -> Response:
        """An answer as one object."""
        return self.answered(start, WholeObject(collector), params)

    def answered(
        self, start: Callable[[], Calls[Any]], answer: Answer, params: ParamNames
    ) -> Response:
        """An answer of any other form."""
        return CallResponse(start, answer, self.live, params)
