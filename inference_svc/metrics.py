"""The engine's events as Prometheus metrics."""

import time
from collections.abc import Mapping

from inference_svc.engine.events import (
    AdapterFailed,
    AdapterLoaded,
    Cancelled,
    Delta,
    Embedded,
    Event,
    Failed,
    Finished,
    Flushed,
    ModelLoad,
    Preempted,
    Resumed,
    Started,
)
from inference_svc.runtime.worker import EngineState, EngineWorker, Live
from svc_kit.telemetry import EngineMetrics

SequenceEvent = Started | Preempted | Resumed | Delta | Finished | Failed | Cancelled


class EngineObserver:
    """Hears every event before it is delivered; bind it to the worker it listens to."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._live: Mapping[int, Live] = {}
        self._worker: EngineWorker | None = None
        self._last_token_at: dict[int, float] = {}

    def bind(self, worker: EngineWorker) -> None:
        """Learn whose events these are."""
        self._worker = worker
        self._live = worker.live
        self._metrics.adapters.set_function(lambda: worker.adapters.num_loaded)
        self._metrics.adapter_bytes.set_function(lambda: worker.adapters.num_bytes)

    def on_state(self, state: EngineState) -> None:
        """Count restarts; streams of a dead engine send nothing more."""
        if state is EngineState.RESTARTING:
            self._metrics.engine_restarts.inc()
            self._last_token_at.clear()

    def on_event(self, event: Event) -> None:
        """Take an event into account."""
        match event:
            case ModelLoad():
                self._on_load(event)
            case Embedded():
                self._metrics.prompt_tokens.labels(event.model).inc(event.num_tokens)
            case Flushed() | AdapterLoaded() | AdapterFailed():
                pass
            case _:
                live = self._live.get(event.sequence_id)
                if live is not None:
                    self._on_sequence(event, live)

    def _on_sequence(self, event: SequenceEvent, live: Live) -> None:
        model = live.request.model
        match event:
            case Delta():
                self._on_delta(event, live)
            case Started():
                self._metrics.prompt_tokens.labels(model).inc(len(live.request.prompt))
                self._metrics.cached_tokens.labels(model, event.source.value).inc(
                    event.cached_tokens
                )
            case Preempted():
                self._metrics.preemptions.labels(model).inc()
            case Finished():
                self._metrics.queue_time.labels(model).observe(event.timings.queue_s)
                self._metrics.finished.labels(model, event.reason.value).inc()
                self._last_token_at.pop(event.sequence_id, None)
            case Failed():
                self._metrics.aborted.labels(model, "engine", event.error.reason).inc()
                self._last_token_at.pop(event.sequence_id, None)
            case Cancelled():
                self._metrics.aborted.labels(model, event.phase, "cancelled").inc()
                self._last_token_at.pop(event.sequence_id, None)

    def _on_delta(self, event: Delta, live: Live) -> None:
        if not event.tokens:
            return
        model, now = live.request.model, time.monotonic()
        self._metrics.completion_tokens.labels(model).inc(len(event.tokens))
        last = self._last_token_at.get(event.sequence_id)
        if last is None:
            self._metrics.time_to_first_token.labels(model).observe(now - live.arrived_at)
        else:
            self._metrics.inter_token_time.labels(model).observe(now - last)
        self._last_token_at[event.sequence_id] = now

    def _on_load(self, load: ModelLoad) -> None:
        cells = 0
        if self._worker is not None:
            ready, files = self._worker.models.get(load.model), self._worker.snapshots.use
            cells = ready.slots * ready.slot_tokens if ready is not None else 0
            self._metrics.snapshot_files.set(files.num_files)
            self._metrics.snapshot_file_bytes.set(files.num_bytes)
        self._metrics.set_load(
            load.model,
            num_waiting=load.num_waiting,
            num_running=load.num_running,
            kv_cache_usage=load.num_used_cells / cells if cells else 0.0,
        )
        self._metrics.saved_bytes.labels(load.model).set(load.snapshot_bytes)
        if load.last_step_s:
            self._metrics.step_time.labels(load.model).observe(load.last_step_s)
