"""What the engine's events do to the metrics, from an engine on a fake backend."""

import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.constraint import Constraint
from inference_svc.engine.events import Event, Failed
from inference_svc.engine.fake import VOCABULARY_SIZE, FakeBackend
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine_client.client import EngineClient
from inference_svc.engine_client.messages import EngineConfig, ModelConfig
from inference_svc.engine_client.output_stream import OutputStream, ReaderLimits
from inference_svc.engine_client.queue_limits import QueueLimits
from inference_svc.engine_client.requests import ActiveSequence
from inference_svc.llama.backend import BackendSettings
from inference_svc.metrics import EngineObserver
from svc_kit.errors import DeadlineExpired
from svc_kit.metrics import EngineMetrics
from tests.support.sequences import EngineBench, a_request

READER = ReaderLimits(9, 9.0)


class Observed:
    """An engine with one slot, and what is observed of it. Its clock is the test's."""

    def __init__(self) -> None:
        limits = NativeLimits(64, 1, 1, 256, VOCABULARY_SIZE)
        self.bench = EngineBench(FakeBackend(limits), saved_bytes=10**6)
        boot = ModelConfig("m", BackendSettings(Path("m.gguf"), 1, 50, 64, 64, 1, 1), 16, 1)
        self._engine = EngineClient(
            EngineConfig(boot, 1, "info", None, 0.0), QueueLimits(4, 1000), READER
        )
        self._registry = CollectorRegistry()
        self._observer = EngineObserver(EngineMetrics(self._registry))
        self._observer.bind(self._engine)

    def submit(self, request: SequenceRequest) -> None:
        """Queue a request, which the frontend knows."""
        number = request.sequence_id
        generation = OutputStream(
            "r", (number,), READER, set_paused=lambda _: None, cancel=lambda: None
        )
        self._engine.sequences.live[number] = ActiveSequence(
            request, generation, "p", "", time.monotonic()
        )
        self.bench.submit(request)

    def step(self, *, at: float) -> None:
        """One step at that time."""
        self.bench.clock.now = at
        self.hear(*self.bench.step())

    def hear(self, *events: Event) -> None:
        """What came through the pipe."""
        for event in events:
            self._observer.on_event(event)

    def sample(self, name: str, **labels: str) -> float | None:
        """A sample of the model."""
        return self._registry.get_sample_value(f"corral_{name}", {"model": "m", **labels})


async def test_whoever_started_has_queued_however_it_ends() -> None:
    """Cancelled and failed ones too: where a server is so slow that callers leave, waits are long.
    The meaning is that of the timings of an answer."""
    observed = Observed()
    observed.submit(a_request(0, max_tokens=1))
    observed.submit(a_request(1))
    observed.submit(a_request(2))
    for second in range(3):
        observed.step(at=second)
    observed.bench.engine.cancel(1, arrived_in_step=3, step=4)
    observed.step(at=3.0)
    observed.hear(Failed(2, DeadlineExpired(phase="prefill")))

    assert observed.sample("queue_seconds_count") == 3
    assert observed.bench.finished(0).timings.queue_s == 0
    assert observed.sample("queue_seconds_sum") == 1.0 + 3.0


async def test_whoever_gives_way_has_queued_once() -> None:
    """What it waits after that is no admission."""
    observed = Observed()
    observed.submit(a_request(0, priority=1))
    observed.step(at=0.0)
    observed.submit(a_request(1, priority=3, max_tokens=2))
    for second in range(1, 20):
        observed.step(at=second)

    assert observed.sample("preemptions_total") == 1
    assert observed.sample("requests_finished_total", finish_reason="length") == 2
    assert observed.sample("queue_seconds_count") == 2
    assert observed.sample("queue_seconds_sum") == 1.0


async def test_the_time_between_tokens_is_that_of_the_engine() -> None:
    """However late, and with how many others, they come through the pipe."""
    observed = Observed()
    observed.submit(a_request(max_tokens=4))
    for number in range(4):
        observed.bench.clock.now = number * 0.03
        observed.bench.step()
    observed.hear(*observed.bench.events)

    assert observed.sample("time_to_first_token_seconds_count") == 1
    assert observed.sample("inter_token_seconds_count") == 3
    assert observed.sample("inter_token_seconds_sum") == pytest.approx(0.09)
    assert observed.sample("inter_token_seconds_bucket", le="0.025") == 0
    assert observed.sample("inter_token_seconds_bucket", le="0.05") == 3


async def test_tokens_of_one_step_share_its_time() -> None:
    """Each counts, so that the mean is that of what is read. What came with the first has nothing
    to share."""
    observed = Observed()
    observed.submit(a_request(max_tokens=100, constraint=Constraint("ab?cd??ef", "constraint")))
    for number in range(3):
        observed.step(at=number * 0.06)

    assert [len(delta.tokens) for delta in observed.bench.deltas(0)] == [5, 1, 3]
    assert observed.sample("completion_tokens_total") == 9
    assert observed.sample("inter_token_seconds_count") == 4
    assert observed.sample("inter_token_seconds_sum") == pytest.approx(0.12)
    assert observed.sample("inter_token_seconds_bucket", le="0.025") == 3
