"""The tracer: what it sends to a collector, and what it does without one."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator

import pytest
from corral.inference.v1 import chat_pb2, generation_pb2
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.engine.events import Timings
from inference_svc.rpc.generation_span import GenerationSpan
from svc_kit.errors import ModelNotFound
from svc_kit.settings.groups import TracingSettings
from svc_kit.tracing.setup import open_tracer
from svc_kit.tracing.span import (
    Span,
    SpanKind,
    current_span,
    running_span,
    set_current_span,
    valid_traceparent,
)
from tests.support.otlp import Collector, run_collector

PARENT = f"00-{1:032x}-{2:016x}-01"


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    with run_collector() as running:
        yield running


async def test_a_span_has_the_service_and_the_callers_trace(collector: Collector) -> None:
    """Its children name it as their parent; times are those that were given."""
    async with open_tracer(TracingSettings(endpoint=collector.url), "gateway") as tracer:
        span = tracer.start("GET", SpanKind.SERVER, PARENT)
        now = time.monotonic()
        span.child("queue", start_s=now - 2).end(end_s=now - 0.5)
        span.end(name="GET /v1/models", error="INTERNAL")

    child, parent = collector.spans
    assert (parent.service, parent.name, parent.kind) == (
        "corral-gateway",
        "GET /v1/models",
        "SERVER",
    )
    assert (parent.trace_id, parent.proto.parent_span_id.hex()) == (f"{1:032x}", f"{2:016x}")
    assert parent.attributes["error.type"] == "INTERNAL"
    assert child.proto.parent_span_id == parent.proto.span_id
    assert child.duration_s == pytest.approx(1.5, abs=0.001)
    assert abs(child.proto.end_time_unix_nano / 1e9 - (time.time() - 0.5)) < 5


async def test_an_error_that_leaves_the_block_is_the_spans(collector: Collector) -> None:
    """Afterwards the span before it is the current one again."""
    async with open_tracer(TracingSettings(endpoint=collector.url), "control") as tracer:
        outer = tracer.start("outer", SpanKind.CONSUMER)
        set_current_span(outer)
        with pytest.raises(ModelNotFound), running_span(current_span().child("inner")):
            raise ModelNotFound(model="m")
        assert current_span() is outer

    (inner,) = collector.spans
    assert inner.attributes == {"error.type": "MODEL_NOT_FOUND"}


async def test_a_share_of_the_traces_is_recorded(collector: Collector) -> None:
    """The others pass their context on, with a flag by which no other service records them."""
    settings = TracingSettings(endpoint=collector.url, sample_ratio=0)
    async with open_tracer(settings, "gateway") as tracer:
        dropped = tracer.start("dropped", SpanKind.SERVER)
        tracer.start("kept", SpanKind.SERVER, PARENT).end()
        dropped.child("below").end()
        dropped.end()

    assert [span.name for span in collector.spans] == ["kept"]
    assert valid_traceparent(dropped.traceparent)
    assert int(dropped.traceparent[-2:], 16) & 1 == 0


async def test_without_an_endpoint_the_callers_context_is_passed_on() -> None:
    """Unchanged."""
    async with open_tracer(TracingSettings(), "gateway") as tracer:
        span = tracer.start("GET", SpanKind.SERVER, PARENT)

    assert not span.is_recording
    assert span.child("queue").traceparent == PARENT
    assert Span().trace_id == ""


def test_without_an_endpoint_no_service_loads_the_sdk() -> None:
    """Neither at import nor later."""
    code = """
import asyncio, sys
import control_svc.app, gateway.app, inference_svc.app
from svc_kit.settings.groups import TracingSettings
from svc_kit.tracing.setup import open_tracer
async def run():
    async with open_tracer(TracingSettings(), "gateway") as tracer:
        tracer.start("GET", "SERVER").end()
asyncio.run(run())
loaded = ("opentelemetry.sdk", "opentelemetry.exporter")
sys.exit(any(name.startswith(loaded) for name in sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", code], check=False)

    assert result.returncode == 0


async def test_a_collector_that_is_away_delays_nothing_but_the_exit() -> None:
    """And that by a few seconds. No thread goes on sending."""
    threads = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    started = time.monotonic()
    async with open_tracer(TracingSettings(endpoint=url), "gateway") as tracer:
        for _ in range(5000):
            tracer.start("GET", SpanKind.SERVER).end()
        produced_s = time.monotonic() - started
    ended_s = time.monotonic() - started

    assert produced_s < 4
    assert ended_s - produced_s < 8
    assert not [thread for thread in set(threading.enumerate()) - threads if "Otel" in thread.name]


async def test_content_is_recorded_where_the_settings_say_so(collector: Collector) -> None:
    """As the JSON of the GenAI conventions; pictures are named, not included."""
    picture = chat_pb2.ContentPart(image=chat_pb2.Media(data=b"PNG"))
    text = chat_pb2.ContentPart(text="Look!")
    call = chat_pb2.ToolCall(id="call_1", name="now", arguments_json='{"zone": "UTC"}')
    result = chat_pb2.ContentPart(text="noon")
    request = pb.ChatRequest(
        model="m",
        conversation=pb.Conversation(
            messages=[
                chat_pb2.ChatMessage(role=chat_pb2.ROLE_USER, parts=[text, picture]),
                chat_pb2.ChatMessage(role=chat_pb2.ROLE_ASSISTANT, tool_calls=[call]),
                chat_pb2.ChatMessage(
                    role=chat_pb2.ROLE_TOOL, tool_call_id="call_1", parts=[result]
                ),
            ]
        ),
    )
    deltas = [
        pb.ChatDelta(reasoning="Hm."),
        pb.ChatDelta(content="A "),
        pb.ChatDelta(content="cat"),
        pb.ChatDelta(tool_calls=[chat_pb2.ToolCallDelta(id="call_2", name="pet")]),
        pb.ChatDelta(tool_calls=[chat_pb2.ToolCallDelta(arguments_json="{}")]),
    ]
    settings = TracingSettings(endpoint=collector.url, content=True)
    async with open_tracer(settings, "inference") as tracer:
        set_current_span(tracer.start("rpc", SpanKind.SERVER))
        with GenerationSpan("chat", request) as span:
            assert span.output is not None
            for delta in deltas:
                span.output.add(pb.ChatResponse(delta=delta))
            span.finish(0, Timings(0, 0, 0), generation_pb2.FINISH_REASON_TOOL_CALLS)
        set_current_span(Span())

    (sent,) = collector.spans
    called = {"type": "tool_call", "id": "call_1", "name": "now", "arguments": {"zone": "UTC"}}
    assert json.loads(sent.attributes["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Look!"}, {"type": "image"}]},
        {"role": "assistant", "parts": [called]},
        {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": "call_1", "response": "noon"}],
        },
    ]
    assert json.loads(sent.attributes["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "Hm."},
                {"type": "text", "content": "A cat"},
                {"type": "tool_call", "id": "call_2", "name": "pet", "arguments": {}},
            ],
            "finish_reason": "tool_calls",
        }
    ]


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"binary",
        "",
        "00-ab-cd-01",
        PARENT.replace("1", "A"),
        PARENT + "-more",
        "ff" + PARENT[2:],
        f"00-{0:032x}-{2:016x}-01",
        f"00-{1:032x}-{0:016x}-01",
    ],
)
def test_what_is_no_trace_context_is_ignored(text: str | bytes | None) -> None:
    """As W3C's recommendation says of version 00."""
    assert valid_traceparent(text) == ""


@pytest.mark.parametrize("operation", ["chat", "text_completion"])
async def test_a_generation_that_is_refused_has_what_the_conventions_require(
    collector: Collector, operation: str
) -> None:
    """Operation, provider, model and the error, although nothing was queued."""
    request = pb.ChatRequest(model="m")
    async with open_tracer(TracingSettings(endpoint=collector.url), "inference") as tracer:
        set_current_span(tracer.start("rpc", SpanKind.SERVER))
        with pytest.raises(ModelNotFound), GenerationSpan(operation, request):
            raise ModelNotFound(model="m")
        set_current_span(Span())

    (sent,) = collector.spans
    assert sent.name == f"{operation} m"
    assert sent.attributes == {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "corral",
        "gen_ai.request.model": "m",
        "gen_ai.response.finish_reasons": [],
        "error.type": "MODEL_NOT_FOUND",
    }
