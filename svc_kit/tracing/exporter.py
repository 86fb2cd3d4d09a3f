"""Records spans with OpenTelemetry's SDK and sends them to a collector over OTLP (gRPC).

Imported only by `open_tracer`, where an endpoint is set. Spans are sent by a thread; if the
collector is slow or away, at most 2,048 wait and further ones are dropped.
"""

import threading
import time
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from svc_kit.settings.groups import TracingSettings
from svc_kit.tracing.span import Attributes, Span, SpanKind, Tracer

_EXPORT_TIMEOUT_S: Final = 5.0
_ABORT_TIMEOUT_S: Final = 1.0
_NANOSECONDS: Final = 1e9


class OtlpTracer(Tracer):
    """Records the spans of one process."""

    def __init__(self, settings: TracingSettings, *, service: str, version: str) -> None:
        """`service` is the part of Corral that the spans are of."""
        resource = Resource.create(
            {
                "service.name": f"corral-{service}",
                "service.namespace": "corral",
                "service.version": version,
            }
        )
        sampler = ParentBased(TraceIdRatioBased(settings.sample_ratio))
        self._provider = TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
        self._exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=_EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("corral", version)
        self._content = settings.content

    def start(self, name: str, kind: SpanKind, traceparent: str = "") -> Span:
        """See `Tracer`."""
        parent = _parent_context(traceparent) if traceparent else Context()
        span = self._tracer.start_span(name, parent, trace.SpanKind[kind])
        return _span(self._tracer, span, content=self._content)

    def close(self, timeout_s: float) -> None:
        """Send the spans that have ended; after `timeout_s` drop what is left."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(timeout_s)
        if closing.is_alive():
            self._exporter.shutdown()
            closing.join(_ABORT_TIMEOUT_S)


class _RecordedSpan(Span):
    is_recording = True

    def __init__(self, tracer: trace.Tracer, span: trace.Span, *, content: bool) -> None:
        super().__init__(_traceparent(span.get_span_context()))
        self._tracer = tracer
        self._span = span
        self.records_content = content

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def child(
        self, name: str, kind: SpanKind = SpanKind.INTERNAL, *, start_s: float | None = None
    ) -> Span:
        parent = trace.set_span_in_context(self._span, Context())
        started = self._tracer.start_span(
            name, parent, trace.SpanKind[kind], start_time=_wall_clock_ns(start_s)
        )
        return _span(self._tracer, started, content=self.records_content)

    def linked_root(self, name: str, kind: SpanKind = SpanKind.INTERNAL) -> Span:
        links = [trace.Link(self._span.get_span_context())]
        started = self._tracer.start_span(name, Context(), trace.SpanKind[kind], links=links)
        return _span(self._tracer, started, content=self.records_content)

    def end(
        self, *, name: str | None = None, error: str | None = None, end_s: float | None = None
    ) -> None:
        if name is not None:
            self._span.update_name(name)
        if error is not None:
            self._span.set_attribute("error.type", error)
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end(_wall_clock_ns(end_s))


def _span(tracer: trace.Tracer, span: trace.Span, *, content: bool) -> Span:
    """A span of a trace that is not sampled only passes its context on."""
    if span.is_recording():
        return _RecordedSpan(tracer, span, content=content)
    return Span(_traceparent(span.get_span_context()))


def _traceparent(context: trace.SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _parent_context(traceparent: str) -> Context:
    _, trace_id, span_id, flags = traceparent.split("-")
    parent = trace.SpanContext(
        int(trace_id, 16), int(span_id, 16), True, trace.TraceFlags(int(flags, 16))
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(parent), Context())


def _wall_clock_ns(monotonic_s: float | None) -> int | None:
    if monotonic_s is None:
        return None
    return time.time_ns() - round((time.monotonic() - monotonic_s) * _NANOSECONDS)
