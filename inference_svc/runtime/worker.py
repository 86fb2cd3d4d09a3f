"""The engine as the frontend sees it: admission at the door, streams out, and a process that is
started again when it dies.

When the process dies, what was in flight ends with ENGINE_RESTARTING (UNAVAILABLE, with RetryInfo),
the frontend stays up and the models are loaded again, with what the first warm-up measured.
"""

import asyncio
import enum
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from inference_svc.engine.embedding import EmbeddingRequest, Vector
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
from inference_svc.engine.request import (
    Cancel,
    Command,
    Flush,
    Pause,
    SequenceRequest,
    Submit,
    Unpause,
)
from inference_svc.models.memory import resident_bytes
from inference_svc.runtime.adapters import Adapter, AdapterRegistry
from inference_svc.runtime.embedding_jobs import EmbeddingJobs
from inference_svc.runtime.generation import Generation, ReaderLimits
from inference_svc.runtime.messages import (
    Boot,
    BootFailed,
    LoadProgress,
    ModelReady,
    Ready,
    SnapshotDone,
)
from inference_svc.runtime.pipe import EngineProcess, FromEngine, describe_exit
from inference_svc.runtime.snapshot_jobs import SnapshotJobs
from svc_kit.errors import (
    AbortedByOperator,
    DomainError,
    Draining,
    EngineRestarting,
    QueueFull,
)
from svc_kit.startup import StartupError

log = logging.getLogger(__name__)

_MAX_BACKOFF_S = 10.0
_HEALTHY_S = 10.0
DRAIN_RETRY_S = 5.0


class EngineState(enum.Enum):
    """How the engine is."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    RESTARTING = "restarting"


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds on what may wait for a slot, for each model."""

    requests: int
    tokens: int


@dataclass(slots=True)
class Live:
    """What the frontend knows of a sequence that waits or runs. Times are monotonic seconds."""

    request: SequenceRequest
    generation: Generation
    project: str
    label: str
    arrived_at: float
    adapters: tuple[Adapter, ...] = ()
    slot: int | None = None
    num_output: int = 0

    @property
    def is_waiting(self) -> bool:
        """Whether it has no slot yet."""
        return self.slot is None


@dataclass(frozen=True, slots=True)
class Submission:
    """Whose request it is, and the adapters that it uses."""

    request_id: str
    project: str
    label: str
    adapters: tuple[Adapter, ...] = ()


@dataclass(slots=True)
class _Flush:
    """A flush that not all models have answered yet."""

    done: "asyncio.Future[int]"
    num_models: int
    num_tokens: int = 0


class EngineWorker:
    """The engine process and its streams. All methods run on the event loop.

    `on_state` hears each change; `on_event` hears every engine event, for metrics; `on_progress`
    hears how far the models are loaded. `adapters` may outlive it, and be its successor's.
    """

    def __init__(
        self,
        boot: Boot,
        queue: QueueLimits,
        reader: ReaderLimits,
        *,
        on_state: Callable[[EngineState], None] = lambda _: None,
        on_event: Callable[[Event], None] = lambda _: None,
        on_progress: Callable[[LoadProgress], None] = lambda _: None,
        adapters: AdapterRegistry | None = None,
    ) -> None:
        self.restarts = 0
        self.live: dict[int, Live] = {}
        self.loads: dict[str, ModelLoad] = {}
        self.models: dict[str, ModelReady] = {}
        self.embeddings = EmbeddingJobs(queue.requests, queue.tokens, self._send)
        self.snapshots = SnapshotJobs(self._send, self.check_open)
        self.adapters = adapters or AdapterRegistry()
        self.adapters.attach(self._send, self._count_requests)
        self.system_info = ""
        self._boot = boot
        self._queue = queue
        self._reader = reader
        self._on_state = on_state
        self._on_event = on_event
        self._on_progress = on_progress
        self._process: EngineProcess | None = None
        self._state = EngineState.STARTING
        self._closed_with: DomainError | None = None
        self._next_id = 0
        self._flushes: dict[int, _Flush] = {}
        self._quick_deaths = 0
        self._ready_at = 0.0
        self._first_boot: asyncio.Future[None] | None = None
        self._restart: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the models. Raises `StartupError` where that fails."""
        self._first_boot = asyncio.get_running_loop().create_future()
        self._spawn()
        await self._first_boot

    async def close(self, error: DomainError | None = None) -> None:
        """End the process; streams that still run, and requests that still come, fail with `error`
        (unset: DRAINING). May be called again."""
        if self._closed_with is None:
            self._closed_with = error or Draining(retry_after=DRAIN_RETRY_S)
        if self._restart is not None:
            self._restart.cancel()
        if self._first_boot is not None and not self._first_boot.done():
            self._first_boot.set_exception(StartupError("the engine was ended while it loaded"))
        self._fail_all(self._closed_with)
        self.adapters.on_engine_gone(self._closed_with)
        if self._process is not None:
            await self._process.close()

    @property
    def state(self) -> EngineState:
        """How the engine is now."""
        return self._state

    @property
    def pid(self) -> int:
        """The engine's process id; 0 while it is down."""
        return self._process.pid if self._process is not None and self._is_up else 0

    @property
    def _is_up(self) -> bool:
        return self._state is EngineState.SERVING and self._closed_with is None

    @property
    def memory_bytes(self) -> int:
        """What the process takes now, measured; 0 while it is down."""
        return resident_bytes(self.pid) if self.pid else 0

    @property
    def load_s(self) -> float:
        """Seconds that loading the models took last."""
        return sum(model.load_s for model in self.models.values())

    def _set_state(self, state: EngineState) -> None:
        self._state = state
        self._on_state(state)

    def _spawn(self) -> None:
        self._process = EngineProcess(self._boot, on_message=self._hear, on_death=self._on_death)

    def _hear(self, message: FromEngine) -> None:
        if self._closed_with is not None:
            return  # what is shared with a successor may be the successor's by now
        if isinstance(message, list):
            for event in message:
                self._deliver(event)
        elif isinstance(message, Ready):
            self._on_ready(message)
        elif isinstance(message, SnapshotDone):
            self.snapshots.deliver(message)
        elif isinstance(message, LoadProgress):
            self._on_progress(message)
        else:
            self._on_boot_failed(message)

    def _on_ready(self, ready: Ready) -> None:
        self.models = {model.name: model for model in ready.models}
        self.system_info = ready.system_info
        self.snapshots.use = ready.snapshots
        measured = [
            replace(model, warm_up=self.models[model.name].warm_up) for model in self._boot.models
        ]
        self._boot = replace(self._boot, models=tuple(measured))
        self._ready_at = time.monotonic()
        self._set_state(EngineState.SERVING)
        self.adapters.on_engine_ready()
        if self._first_boot is not None and not self._first_boot.done():
            self._first_boot.set_result(None)

    def _on_boot_failed(self, failed: BootFailed) -> None:
        log.error("the engine cannot start: %s", failed.problem)
        if self._first_boot is not None and not self._first_boot.done():
            self._first_boot.set_exception(StartupError(failed.problem))

    def _on_death(self, code: int) -> None:
        if self._closed_with is not None:
            return
        log.error("the engine process ended (%s)", describe_exit(code))
        if self._first_boot is not None and not self._first_boot.done():
            self._first_boot.set_exception(
                StartupError(f"the engine process ended while it loaded ({describe_exit(code)})")
            )
        if self._first_boot is not None and self._first_boot.exception() is not None:
            return
        lived = time.monotonic() - self._ready_at if self._is_up else 0.0
        self._quick_deaths = 0 if lived >= _HEALTHY_S else self._quick_deaths + 1
        self._set_state(EngineState.RESTARTING)
        self._fail_all(self._restarting())
        self.adapters.on_engine_death(self._restarting())
        self.restarts += 1
        self._restart = asyncio.create_task(self._restart_after_pause())

    async def _restart_after_pause(self) -> None:
        old = self._process
        if old is not None:
            await old.close()
        # The first death is followed at once; only one that keeps dying has to wait.
        pause = min(0.5 * 2 ** (self._quick_deaths - 2), _MAX_BACKOFF_S)
        if self._quick_deaths > 1:
            await asyncio.sleep(pause)
        self._spawn()

    def _restarting(self) -> EngineRestarting:
        return EngineRestarting(retry_after=max(1.0, round(self.load_s + 1.0, 1)))

    def _fail_all(self, error: DomainError) -> None:
        generations = {live.generation.request_id: live.generation for live in self.live.values()}
        self.live.clear()
        self.loads.clear()
        for flush in self._flushes.values():
            if not flush.done.done():
                flush.done.set_exception(error)
        self._flushes.clear()
        for generation in generations.values():
            generation.fail(error)
        self.embeddings.fail_all(error)
        self.snapshots.fail_all(error)
        self._idle.set()

    # --- admission --------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Whether new work is taken. Raises `EngineRestarting`, or what it was closed with."""
        if self._closed_with is not None:
            raise self._closed_with
        if not self._is_up:
            raise self._restarting()

    def submit(
        self, requests: Sequence[SequenceRequest], submission: Submission
    ) -> tuple[Generation, int]:
        """Admit the choices of one request; returns its stream and its place in the queue (0 is
        next).

        Sequence and request ids are given here. Raises as `check_open`, or `QueueFull`; then
        nothing was done.
        """
        self.check_open()
        model = requests[0].model
        ahead = self._check_queue(model, requests)
        ids = tuple(self._next_id + choice for choice in range(len(requests)))
        self._next_id += len(requests)
        generation = Generation(
            submission.request_id,
            ids,
            self._reader,
            steer=lambda paused: self._steer(ids, paused=paused),
            end=lambda: self._cancel(ids),
        )
        now = time.monotonic()
        for sequence_id, request in zip(ids, requests, strict=True):
            request = replace(request, sequence_id=sequence_id, request_id=submission.request_id)
            self.live[sequence_id] = Live(
                request, generation, submission.project, submission.label, now, submission.adapters
            )
            self._send(Submit(request))
        self._idle.clear()
        return generation, ahead

    async def embed(self, request: EmbeddingRequest) -> list[Vector]:
        """The vector of each input, in order; its sequence id is given here.

        Raises as `submit`, or whatever ended the request in the engine.
        """
        self.check_open()
        sequence_id = self._next_id
        self._next_id += 1
        return await self.embeddings.run(replace(request, sequence_id=sequence_id))

    def _check_queue(self, model: str, requests: Sequence[SequenceRequest]) -> int:
        live = [item for item in self.live.values() if item.request.model == model]
        slots = self.models[model].slots
        ahead = max(0, len(live) - slots)
        if len(live) + len(requests) <= slots:
            return ahead  # nobody waits, though the last ones may not have been heard to start
        depth = ahead + len(requests)
        if live and len(live) + len(requests) > slots + self._queue.requests:
            raise QueueFull(
                bound="requests",
                depth=depth,
                limit=self._queue.requests,
                retry_after=self._retry_after(ahead, model),
            )
        waiting = sum(len(item.request.prompt) for item in live if item.is_waiting)
        asked = sum(len(request.prompt) for request in requests)
        if waiting and waiting + asked > self._queue.tokens:
            raise QueueFull(
                bound="tokens",
                depth=waiting + asked,
                limit=self._queue.tokens,
                retry_after=self._retry_after(ahead, model),
            )
        return ahead

    def _retry_after(self, ahead: int, model: str) -> float:
        """A guess from the age of what runs: when the first of the queue may have moved up."""
        now = time.monotonic()
        ages = [now - live.arrived_at for live in self.live.values() if not live.is_waiting]
        typical = sum(ages) / len(ages) if ages else 1.0
        turns = 1 + ahead / max(self.models[model].slots, 1)
        return round(min(max(typical * turns, 1.0), 60.0), 1)

    # --- steering ---------------------------------------------------------------------------------

    def abort(self, request_id: str, *, project: str | None) -> bool:
        """End a request (of `project`, where one is given). Returns whether it was live.

        One that has ended, and whose slot the engine has not reported free yet, no longer is.
        """
        for live in self.live.values():
            named = live.generation.request_id == request_id and project in (None, live.project)
            if named and not live.generation.is_over:
                live.generation.fail(AbortedByOperator())
                return True
        return self.embeddings.abort(request_id, project=project)

    async def wait_idle(self) -> None:
        """Return once nothing waits or runs."""
        await self._idle.wait()
        await self.embeddings.wait_idle()

    async def load_adapter(self, adapter: Adapter) -> Adapter:
        """Have the engine load an adapter. Raises `EngineRestarting` or `AdapterInvalid`; the
        adapter is closed then."""
        if not self._is_up:
            adapter.file.close()
            raise self._restarting()
        return await self.adapters.load(adapter)

    def _count_requests(self, adapter: Adapter) -> int:
        users = (live for live in self.live.values() if adapter in live.adapters)
        return len({live.generation.request_id for live in users})

    async def flush(self) -> int:
        """Forget every prefix that is only kept for reuse; returns the tokens. Raises
        `EngineRestarting`."""
        self.check_open()
        flush_id, self._next_id = self._next_id, self._next_id + 1
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        caching = sum(model.slots > 0 for model in self.models.values())
        if not caching:
            return 0
        self._flushes[flush_id] = _Flush(done, caching)
        self._send(Flush(flush_id))
        try:
            return await done
        finally:
            self._flushes.pop(flush_id, None)

    def _on_flushed(self, event: Flushed) -> None:
        flush = self._flushes.get(event.flush_id)
        if flush is None:
            return
        flush.num_models -= 1
        flush.num_tokens += event.num_tokens
        if flush.num_models == 0 and not flush.done.done():
            flush.done.set_result(flush.num_tokens)

    def _steer(self, ids: Iterable[int], *, paused: bool) -> None:
        for sequence_id in ids:
            if sequence_id in self.live:
                self._send(Pause(sequence_id) if paused else Unpause(sequence_id))

    def _cancel(self, ids: Iterable[int]) -> None:
        for sequence_id in ids:
            if sequence_id in self.live:
                self._send(Cancel(sequence_id))

    def _send(self, command: Command) -> None:
        if self._process is not None and self._is_up:
            self._process.send(command)

    # --- events -----------------------------------------------------------------------------------

    def _deliver(self, event: Event) -> None:
        self._on_event(event)
        match event:
            case ModelLoad():
                self.loads[event.model] = event
            case Flushed():
                self._on_flushed(event)
            case Embedded():
                self.embeddings.deliver(event)
            case AdapterLoaded() | AdapterFailed():
                self.adapters.deliver(event)
            case _:
                self._deliver_to_sequence(event)

    def _deliver_to_sequence(
        self, event: Started | Preempted | Resumed | Delta | Finished | Failed | Cancelled
    ) -> None:
        if isinstance(event, Failed):
            self.embeddings.deliver(event)  # ids are of either; the other knows nothing of it
        live = self.live.get(event.sequence_id)
        if live is None:
            return
        if isinstance(event, Preempted):
            live.slot = None
            return
        if isinstance(event, Resumed):
            live.slot = event.slot
            return
        if isinstance(event, Started):
            live.slot = event.slot
        elif isinstance(event, Delta):
            live.num_output += len(event.tokens)
        if isinstance(event, Finished | Cancelled | Failed):
            del self.live[event.sequence_id]
            if live.adapters:
                self.adapters.sweep()
            if not self.live:
                self._idle.set()
        live.generation.deliver(event)
