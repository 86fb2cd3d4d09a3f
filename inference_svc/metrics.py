"""Counters and histograms of engine events. `gauges.py` exports the current state."""

import time
from collections.abc import Mapping

from prometheus_client import Counter, Histogram

from inference_svc.engine import events
from inference_svc.engine_client.client import EngineClient, EngineState
from inference_svc.engine_client.requests import ActiveSequence, SequenceEvent
from svc_kit.metrics import EngineMetrics, exemplar


class EngineObserver:
    """Counts the events of one engine; call `bind` with its client first."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._live: Mapping[int, ActiveSequence] = {}
        self._last_token_at: dict[int, float] = {}
        self._of_tokens: dict[str, tuple[Counter, Histogram]] = {}
        """Those of each token by model, since finding them costs as much as counting."""

    def bind(self, engine: EngineClient) -> None:
        self._live = engine.sequences.live

    def on_state(self, state: EngineState) -> None:
        """Count restarts. The streams of a crashed engine send no more tokens."""
        if state is EngineState.RESTARTING:
            self._metrics.engine_restarts.inc()
            self._last_token_at.clear()

    def on_event(self, event: events.Event) -> None:
        """Count an event, before it is delivered."""
        if isinstance(event, events.Delta):  # nearly all are
            live = self._live.get(event.sequence_id)
            if live is not None:
                self._on_delta(event, live)
            return
        match event:
            case events.Embedded():
                self._metrics.prompt_tokens.labels(event.model).inc(event.num_tokens)
                self._metrics.embedding_inputs.labels(event.model).inc()
            case (
                events.ModelLoad()
                | events.DiskCacheLoad()
                | events.Flushed()
                | events.AdapterLoadDone()
                | events.AdaptersListed()
            ):
                pass
            case _:
                live = self._live.get(event.sequence_id)
                if live is not None:
                    self._on_sequence(event, live)

    def _on_sequence(self, event: SequenceEvent, live: ActiveSequence) -> None:
        model = live.request.model
        match event:
            case events.Started():
                self._metrics.prompt_tokens.labels(model).inc(live.request.num_prompt_tokens)
                self._metrics.cached_tokens.labels(model, event.source.value).inc(
                    event.cached_tokens
                )
                self._metrics.queue_time.labels(model).observe(event.queue_s, exemplar(live.span))
            case events.Preempted():
                self._metrics.preemptions.labels(model).inc()
            case events.Moved():
                self._metrics.moves.labels(model).inc()
            case events.Finished():
                self._metrics.finished.labels(model, event.reason.value).inc()
                self._last_token_at.pop(event.sequence_id, None)
            case events.Failed():
                self._metrics.aborted.labels(model, "engine", event.error.reason).inc()
                self._last_token_at.pop(event.sequence_id, None)
            case events.Cancelled():
                self._metrics.aborted.labels(model, event.phase, "cancelled").inc()
                self._last_token_at.pop(event.sequence_id, None)

    def _on_delta(self, event: events.Delta, live: ActiveSequence) -> None:
        if not event.num_tokens:
            return
        model, num_tokens = live.request.model, event.num_tokens
        if model not in self._of_tokens:
            metrics = self._metrics
            counted, timed = metrics.completion_tokens, metrics.inter_token_time
            self._of_tokens[model] = counted.labels(model), timed.labels(model)
        counter, inter_token_time = self._of_tokens[model]
        counter.inc(num_tokens)
        last = self._last_token_at.get(event.sequence_id)
        if last is None:
            elapsed = time.monotonic() - live.arrived_at
            first_token_time = self._metrics.time_to_first_token.labels(model)
            first_token_time.observe(elapsed, exemplar(live.span))
        else:
            # Times of sampling, not of arrival, which batching delays. Tokens of one step share it.
            for _ in range(num_tokens):
                inter_token_time.observe((event.sampled_at - last) / num_tokens)
        self._last_token_at[event.sequence_id] = event.sampled_at
