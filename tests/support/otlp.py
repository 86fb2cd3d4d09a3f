"""A collector for tests: the official OTLP service, which keeps the spans that it gets."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True)
class ReceivedSpan:
    service: str
    proto: Span

    @property
    def name(self) -> str:
        return self.proto.name

    @property
    def kind(self) -> str:
        return Span.SpanKind.Name(self.proto.kind).removeprefix("SPAN_KIND_")

    @property
    def trace_id(self) -> str:
        """In hexadecimal digits."""
        return self.proto.trace_id.hex()

    @property
    def attributes(self) -> dict[str, Any]:
        return {each.key: _value(each.value) for each in self.proto.attributes}

    @property
    def duration_s(self) -> float:
        return (self.proto.end_time_unix_nano - self.proto.start_time_unix_nano) / 1e9

    def contains(self, other: "ReceivedSpan") -> bool:
        """Whether the other began and ended in this one, within a millisecond."""
        ours, theirs = self.proto, other.proto
        return (
            ours.start_time_unix_nano - 1_000_000 <= theirs.start_time_unix_nano
            and theirs.end_time_unix_nano <= ours.end_time_unix_nano + 1_000_000
        )


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value") or ""
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps all spans. `url` is its address."""

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    _arrival: threading.Condition = field(default_factory=threading.Condition)

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: Any
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for of_resource in request.resource_spans:
            resource = {each.key: _value(each.value) for each in of_resource.resource.attributes}
            for scope in of_resource.scope_spans:
                name = resource["service.name"]
                with self._arrival:
                    self.spans.extend(ReceivedSpan(name, span) for span in scope.spans)
                    self._arrival.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        found = [span for span in self.spans if span.trace_id == trace_id]
        return sorted(found, key=lambda span: span.proto.start_time_unix_nano)

    def wait_for(self, trace_id: str, name: str) -> ReceivedSpan:
        """The span of this name in a trace, once it is there."""

        def find() -> ReceivedSpan | None:
            return next((span for span in self.trace(trace_id) if span.name == name), None)

        with self._arrival:
            found = self._arrival.wait_for(find, timeout=50)
        assert found is not None
        return found

    def children(self, parent: ReceivedSpan) -> list[ReceivedSpan]:
        """The spans below a span in the order of their starts."""
        trace, span_id = self.trace(parent.trace_id), parent.proto.span_id
        return [span for span in trace if span.proto.parent_span_id == span_id]

    def tree(self, parent: ReceivedSpan) -> dict[str, Any]:
        """The names of the spans below a span, nested."""
        return {child.name: self.tree(child) for child in self.children(parent)}


@contextmanager
def run_collector() -> Iterator[Collector]:
    """Run a collector on a free loopback port."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    add = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(collector, server)  # type: ignore[no-untyped-call]  # generated
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
