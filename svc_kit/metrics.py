"""Prometheus metrics of all services."""

import math
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from svc_kit.tracing.span import Span

RPC_BUCKETS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 300),
)
TTFT_BUCKETS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60),
)
TOKEN_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5),
)
QUEUE_BUCKETS: Final = (*(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600),)


def exemplar(span: Span) -> dict[str, str] | None:
    """The exemplar of an observation: the trace in which it was made, if that is recorded."""
    return {"trace_id": span.trace_id} if span.is_recording else None


class ProcessMetrics:
    """Start time, version, memory, CPU and disk, exported by every service."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        service: str,
        version: str,
        data_folder: Path | None = None,
    ) -> None:
        """`data_folder`: where the service keeps its files; None if it has none."""
        self.start_time = Gauge(
            "corral_start_time_seconds",
            "When the process started, in seconds since 1970; now minus this is the uptime.",
            registry=registry,
        )
        self.start_time.set_to_current_time()
        info = Gauge("corral_build_info", "Always 1.", ["service", "version"], registry=registry)
        info.labels(service, version).set(1)
        ProcessCollector(registry=registry)  # memory, CPU and file descriptors; on Linux only
        if data_folder is not None:
            for name, text in (("free", "Free bytes"), ("size", "Bytes")):
                gauge = Gauge(
                    f"corral_disk_{name}_bytes",
                    f"{text} of the disk of the service's data folder.",
                    registry=registry,
                )
                gauge.set_function(partial(_disk_bytes, data_folder, name))


def _disk_bytes(folder: Path, name: str) -> float:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return math.nan
    return usage.free if name == "free" else usage.total


class RpcMetrics:
    """Calls of a gRPC server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.duration = Histogram(
            "corral_rpc_server_duration_seconds",
            "Time from a call's arrival to its end, by method and status code.",
            ["method", "code"],
            buckets=RPC_BUCKETS,
            registry=registry,
        )
        self.calls = Counter(
            "corral_rpc_server_calls",
            "Calls that ended, by method, status code and error reason (empty when OK).",
            ["method", "code", "reason"],
            registry=registry,
        )
        self.in_flight = Gauge(
            "corral_rpc_server_in_flight", "Calls in progress.", ["method"], registry=registry
        )


class HttpMetrics:
    """Requests of an HTTP server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.duration = Histogram(
            "corral_http_server_duration_seconds",
            "Time from a request's arrival to the end of its response, by route and status.",
            ["method", "route", "status"],
            buckets=RPC_BUCKETS,
            registry=registry,
        )
        self.in_flight = Gauge(
            "corral_http_server_in_flight", "Requests in progress.", registry=registry
        )
        self.sent_bytes = Counter(
            "corral_http_server_sent_bytes",
            "Bytes of response bodies, by route.",
            ["route"],
            registry=registry,
        )
        self.closed_connections = Counter(
            "corral_http_server_closed_connections",
            "Connections closed because of what the client sent, how slowly, or how many it has.",
            ["cause"],
            registry=registry,
        )


class CertificateMetrics:
    """The TLS certificate of a server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.expiry = Gauge(
            "corral_tls_certificate_expiry_timestamp_seconds",
            "When the server's TLS certificate expires, in seconds since 1970.",
            registry=registry,
        )
        self.reloads = Counter(
            "corral_tls_certificate_reloads",
            "Changes of the TLS files, by outcome: loaded, or refused (the previous one stays).",
            ["outcome"],
            registry=registry,
        )
        self.refused = Gauge(
            "corral_tls_certificate_refused",
            "1 while changed TLS files cannot be used and the previous certificate stays, else 0.",
            registry=registry,
        )


class EngineMetrics:
    """Counters and histograms of the engine, with the label `model`; gauges are in
    `inference_svc/gauges.py`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"corral_{name}", text, ["model", *labels], registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(
                f"corral_{name}_seconds", text, ["model"], buckets=buckets, registry=registry
            )

        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of sequences that started.")
        self.cached_tokens = counter(
            "cached_tokens",
            "Prompt tokens reused from a cache, by its source.",
            "source",
        )
        self.divergences = counter(
            "prefix_divergences",
            "Requests whose prompt differs from what was cached, by what of it has changed.",
            "place",
        )
        self.embedding_inputs = counter("embedding_inputs", "Inputs embedded or reranked.")
        self.preemptions = counter(
            "preemptions", "Sequences preempted for requests of a higher priority."
        )
        self.moves = counter("moves", "Running sequences moved to close a gap in the cache.")
        self.completion_tokens = counter("completion_tokens", "Tokens sampled.")
        self.finished = counter("requests_finished", "Finished choices.", "finish_reason")
        self.aborted = counter(
            "requests_aborted",
            "Requests that ended early, by phase and cause.",
            "phase",
            "cause",
        )
        self.queue_time = histogram(
            "queue", "Time that started sequences waited for admission.", QUEUE_BUCKETS
        )
        self.time_to_first_token = histogram(
            "time_to_first_token", "Time from arrival to the first token.", TTFT_BUCKETS
        )
        self.inter_token_time = histogram(
            "inter_token",
            "Time between output tokens of a sequence, one value per token after its first step;"
            " tokens of one step share the time since the previous step.",
            TOKEN_BUCKETS,
        )
        self.engine_restarts = Counter(
            "corral_engine_restarts", "Engine processes restarted after a crash.", registry=registry
        )


class LimitMetrics:
    """What limits of projects, keys and models have left, and requests beyond them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._left = Gauge(
            "corral_limit_left_ratio",
            "What a limit has left, as a part of its amount; of several amounts the least.",
            ["limit", "mode", "period"],
            registry=registry,
        )
        self._exceeded = Counter(
            "corral_limits_exceeded",
            "Requests beyond a limit, by its id; in mode shadow they were served.",
            ["limit", "mode"],
            registry=registry,
        )

    def show_left(self, ratios: Mapping[tuple[str, str, str], float]) -> None:
        """Show what is left, by limit, mode and period; other limits are shown no more."""
        self._left.clear()
        for labels, ratio in ratios.items():
            self._left.labels(*labels).set(ratio)

    def refused(self, limit: str, *, shadow: bool) -> None:
        """Count a request beyond a limit; in shadow mode it is served."""
        self._exceeded.labels(limit, "shadow" if shadow else "enforce").inc()


class MoveMetrics:
    """Generations that a process sends to replicas of the inference service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.moves = Counter(
            "corral_generation_moves",
            "Generations that a replica refused or lost, by the reason of its error, and outcome:"
            " restarted or resumed at another one, or lost.",
            ["reason", "outcome"],
            registry=registry,
        )


class StreamMetrics:
    """Event streams of the control service in this process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.written = Gauge(
            "corral_streams_written", "Event streams that this process writes.", registry=registry
        )
        self.followed = Gauge(
            "corral_streams_followed",
            "Readers that follow event streams in this process.",
            registry=registry,
        )
        self.commit_seconds = Histogram(
            "corral_stream_commit_seconds",
            "Duration of a group commit of events.",
            registry=registry,
        )
        self.events_per_commit = Histogram(
            "corral_stream_events_per_commit",
            "Events in a group commit, of all its streams.",
            buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
            registry=registry,
        )
        self.reads = Counter(
            "corral_stream_reads",
            "Transactions that read events, each for all waiting readers.",
            registry=registry,
        )


class BackupMetrics:
    """When the newest complete backup was made; NaN without one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.last = Gauge(
            "corral_last_backup_timestamp_seconds",
            "Time of the newest complete backup; NaN without one.",
            registry=registry,
        )
        self.last.set(math.nan)


class JobMetrics:
    """Jobs of the control service: attempts of this process, and the queue in the database."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.attempts = Counter(
            "corral_job_attempts",
            "Finished attempts of this process, by job kind and outcome.",
            ["kind", "outcome"],
            registry=registry,
        )
        self.running = Gauge(
            "corral_jobs_running", "Jobs that this process is running.", ["kind"], registry=registry
        )
        self.jobs = Gauge(
            "corral_jobs",
            "Jobs in the database, by kind and state; every control process exports the same.",
            ["kind", "state"],
            registry=registry,
        )
        self.oldest_queued = Gauge(
            "corral_jobs_oldest_queued_seconds",
            "Age of the oldest job that is due, by kind.",
            ["kind"],
            registry=registry,
        )
