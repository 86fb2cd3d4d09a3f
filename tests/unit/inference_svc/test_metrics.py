"""Metrics of engine events, with a fake backend."""

import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.constraint import Constraint
from inference_svc.engine.events import Event, Failed
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine_client.client import EngineClient
from inference_svc.engine_client.local_engine import LocalEngine
from inference_svc.engine_client.messages import EngineConfig
from inference_svc.engine_client.output_stream import OutputStream, ReaderLimits
from inference_svc.engine_client.queue_limits import QueueLimits
from inference_svc.engine_client.requests import ActiveSequence
from inference_svc.llama.backend import BackendSettings
from inference_svc.metrics import EngineObserver
from svc_kit.errors import DeadlineExpired
from svc_kit.metrics import EngineMetrics
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, make_request

READER = ReaderLimits(9, 9.0)


class MetricsHarness:
    """An engine with one slot, a manual clock, and its metrics."""

    def __init__(self) -> None:
        limits = NativeLimits(64, 1, 1, 256, VOCABULARY_SIZE)
        self.bench = EngineBench(FakeBackend(limits), saved_bytes=10**6)
        settings = BackendSettings(Path("m.gguf"), 1, 50, 64, 64, 1, 1)
        config = EngineConfig("m", settings, chunk_cap=16, threads=1, cores=1)
        self._engine = EngineClient(
            "m", LocalEngine(config).spawn, QueueLimits(4, 1000, 1000), READER
        )
        self._registry = CollectorRegistry()
        self._observer = EngineObserver(EngineMetrics(self._registry))
        self._observer.bind(self._engine)

    def submit(self, request: SequenceRequest) -> None:
        number = request.sequence_id
        stream = OutputStream(
            "r", (number,), READER, set_paused=lambda _: None, cancel=lambda: None
        )
        self._engine.sequences.live[number] = ActiveSequence(request, stream, "", time.monotonic())
        self.bench.submit(request)

    def step(self, *, at: float) -> None:
        """Run a step at the time `at`, and observe its events."""
        self.bench.clock.now = at
        self.observe(*self.bench.step())

    def observe(self, *events: Event) -> None:
        for event in events:
            self._observer.on_event(event)

    def sample(self, name: str, **labels: str) -> float | None:
        """Return the value of a metric of the model; None if it has none."""
        return self._registry.get_sample_value(f"corral_{name}", {"model": "m", **labels})


async def test_the_queue_time_of_every_started_sequence_is_observed() -> None:
    """Also if it is cancelled or fails."""
    harness = MetricsHarness()
    harness.submit(make_request(0, max_tokens=1))
    harness.submit(make_request(1))
    harness.submit(make_request(2))
    for second in range(3):
        harness.step(at=second)
    harness.bench.engine.cancel(1, arrived_in_step=3, step=4)
    harness.step(at=3.0)
    harness.observe(Failed(2, DeadlineExpired(phase="prefill")))

    assert harness.sample("queue_seconds_count") == 3
    assert harness.bench.finished(0).timings.queue_s == 0
    assert harness.sample("queue_seconds_sum") == 1.0 + 3.0


async def test_the_queue_time_of_a_preempted_sequence_is_observed_once() -> None:
    """Waiting after a preemption does not count."""
    harness = MetricsHarness()
    harness.submit(make_request(0, priority=1))
    harness.step(at=0.0)
    harness.submit(make_request(1, priority=3, max_tokens=2))
    for second in range(1, 20):
        harness.step(at=second)

    assert harness.sample("preemptions_total") == 1
    assert harness.sample("requests_finished_total", finish_reason="length") == 2
    assert harness.sample("queue_seconds_count") == 2
    assert harness.sample("queue_seconds_sum") == 1.0


async def test_inter_token_time_is_measured_in_the_engine() -> None:
    """Delayed and batched delivery of events does not change it."""
    harness = MetricsHarness()
    harness.submit(make_request(max_tokens=4))
    for number in range(4):
        harness.bench.clock.now = number * 0.03
        harness.bench.step()
    harness.observe(*harness.bench.events)

    assert harness.sample("time_to_first_token_seconds_count") == 1
    assert harness.sample("inter_token_seconds_count") == 3
    assert harness.sample("inter_token_seconds_sum") == pytest.approx(0.09)
    assert harness.sample("inter_token_seconds_bucket", le="0.025") == 0
    assert harness.sample("inter_token_seconds_bucket", le="0.05") == 3


async def test_the_time_of_a_step_is_divided_among_its_tokens() -> None:
    """The mean is the time per token. Tokens of the first step are not measured."""
    harness = MetricsHarness()
    harness.submit(make_request(max_tokens=100, constraint=Constraint("ab?cd??ef", "constraint")))
    for number in range(3):
        harness.step(at=number * 0.06)

    assert [len(delta.tokens) for delta in harness.bench.deltas(0)] == [5, 1, 3]
    assert harness.sample("completion_tokens_total") == 9
    assert harness.sample("inter_token_seconds_count") == 4
    assert harness.sample("inter_token_seconds_sum") == pytest.approx(0.12)
    assert harness.sample("inter_token_seconds_bucket", le="0.025") == 3
