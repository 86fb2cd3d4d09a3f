"""The outermost middleware: errors, headers, metrics and the access log."""

import logging
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from gateway.http.errors import EXCEPTION_HANDLERS
from gateway.http.middleware import RequestMiddleware, mark_disconnected
from svc_kit.errors import AdapterExists, ModelNotFound, StaleGeneration
from svc_kit.metrics import HttpMetrics
from svc_kit.tracing.span import Span, SpanKind, Tracer

SECRET = "the prompt of somebody"


def make_client(
    app: ASGIApp, *, registry: CollectorRegistry | None = None, tracer: Tracer | None = None
) -> httpx.AsyncClient:
    """A client of an application in the middleware. Its clock advances 1 s per reading."""
    ticks = iter(range(1000))
    middleware = RequestMiddleware(
        app,
        HttpMetrics(registry or CollectorRegistry()),
        max_requests=10,
        clock=lambda: float(next(ticks)),
        request_ids=lambda: "req_1",
        tracer=tracer,
    )
    return httpx.AsyncClient(transport=httpx.ASGITransport(middleware), base_url="http://localhost")


def failing(error: Exception) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    return app


async def test_an_unexpected_error_is_not_shown_to_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client gets the request id; the log has the cause."""
    async with make_client(failing(RuntimeError(SECRET))) as client:
        answer = await client.get("/")

    assert answer.status_code == 500
    assert SECRET not in answer.text
    assert "req_1" in answer.json()["error"]["message"]
    assert SECRET in caplog.text


async def test_a_domain_error_outside_of_routes_keeps_its_status() -> None:
    """The body is the usual envelope."""
    async with make_client(failing(ModelNotFound(model="m"))) as client:
        answer = await client.get("/")

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert answer.headers["x-request-id"] == "req_1"


async def test_responses_have_a_processing_time() -> None:
    """In milliseconds, until the start of the response."""
    async with make_client(Response("x")) as client:
        answer = await client.get("/")

    assert answer.headers["openai-processing-ms"] == "1000"


@pytest.mark.parametrize(
    ("error", "advice"),
    [(AdapterExists(adapter="a"), "false"), (StaleGeneration(resource="r"), None)],
)
async def test_permanent_conflicts_are_not_retried(error: Exception, advice: str | None) -> None:
    """Clients retry every 409 by default."""
    async with make_client(failing(error)) as client:
        answer = await client.get("/")

    assert answer.status_code == 409
    assert answer.headers.get("x-should-retry") == advice


async def test_spans_have_the_attributes_of_the_conventions() -> None:
    """The path without its query, which may have secrets, and the scheme."""
    spans: list[dict[str, Any]] = []

    class Recorded(Span):
        is_recording = True

        def set(self, attributes: Mapping[str, Any]) -> None:
            spans.append(dict(attributes))

    class Recorder(Tracer):
        def start(self, name: str, kind: SpanKind, traceparent: str = "") -> Span:
            return Recorded(traceparent)

    async with make_client(Response("x"), tracer=Recorder()) as client:
        await client.get(f"/v1/models/m?key={SECRET}")

    (span,) = spans
    named = {"http.request.method": "GET", "url.path": "/v1/models/m", "url.scheme": "http"}
    assert {key: span[key] for key in named} == named
    assert SECRET not in str(span)


async def test_a_disconnect_is_counted_with_status_499() -> None:
    """Although the response started with 200."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        mark_disconnected(scope)
        await Response("x")(scope, receive, send)

    registry = CollectorRegistry()
    async with make_client(app, registry=registry) as client:
        await client.get("/")

    labels = {"method": "GET", "route": "unmatched", "status": "499"}
    assert registry.get_sample_value("corral_http_server_duration_seconds_count", labels) == 1


@pytest.mark.parametrize("error", [ClientDisconnect(), WebSocketDisconnect(1006)])
async def test_a_client_that_leaves_is_no_error(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted like any other disconnect, and nothing is sent."""
    registry = CollectorRegistry()
    async with make_client(failing(error), registry=registry) as client:
        with pytest.raises(AssertionError):  # of httpx: there is no response
            await client.get("/")

    labels = {"method": "GET", "route": "unmatched", "status": "499"}
    assert registry.get_sample_value("corral_http_server_duration_seconds_count", labels) == 1
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize("path", ["/v1/defect", "/v1/messages/defect"])
async def test_a_defect_of_a_route_has_the_envelope_of_its_api(path: str) -> None:
    """And the request id, like every other error; the frameworks' own text has neither."""
    api = FastAPI(exception_handlers=EXCEPTION_HANDLERS)

    @api.get(path)
    async def fail() -> None:
        raise KeyError(SECRET)

    async with make_client(api) as client:
        answer = await client.get(path)

    assert answer.status_code == 500
    assert answer.headers["x-request-id"] == "req_1"
    assert "req_1" in answer.json()["error"]["message"]
    assert SECRET not in answer.text


async def test_bytes_and_running_requests_are_counted() -> None:
    registry = CollectorRegistry()
    async with make_client(Response("four"), registry=registry) as client:
        await client.get("/")

    sent = registry.get_sample_value("corral_http_server_sent_bytes_total", {"route": "unmatched"})
    assert sent == 4
    assert registry.get_sample_value("corral_http_server_in_flight") == 0


async def test_the_access_log_has_no_content(caplog: pytest.LogCaptureFixture) -> None:
    """Neither query nor body."""
    caplog.set_level(logging.INFO, "gateway.access")
    async with make_client(Response(SECRET)) as client:
        await client.post(f"/v1/x?q={SECRET}", content=SECRET)

    (record,) = [record for record in caplog.records if record.name == "gateway.access"]
    fields: dict[str, Any] = record.fields  # type: ignore[attr-defined]  # from `extra`
    assert fields == {
        "method": "POST",
        "path": "/v1/x",
        "status": "200",
        "duration_s": 3.0,
        "sent_bytes": len(SECRET),
        "first_byte_s": 2.0,
    }
