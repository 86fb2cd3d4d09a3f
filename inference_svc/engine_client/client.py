"""The client of an engine process: admission, output streams, and restart after a crash.

When the process dies, requests in flight end with ENGINE_RESTARTING (UNAVAILABLE, with RetryInfo).
"""

import asyncio
import enum
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from inference_svc.engine.embedding_request import EmbeddingRequest, Vector
from inference_svc.engine.events import (
    AdapterFailed,
    AdapterLoaded,
    DiskCacheLoad,
    Embedded,
    Event,
    Failed,
    Flushed,
    ModelLoad,
)
from inference_svc.engine.request import Command, Flush, SequenceRequest
from inference_svc.engine_client.adapter_registry import Adapter, AdapterRegistry
from inference_svc.engine_client.embedding_requests import EmbeddingTracker
from inference_svc.engine_client.messages import (
    DevicesTaken,
    EngineConfig,
    EngineStartFailed,
    LoadProgress,
    ModelReady,
    Ready,
    SnapshotDone,
)
from inference_svc.engine_client.output_stream import OutputStream, ReaderLimits
from inference_svc.engine_client.process import EngineProcess, FromEngine, describe_exit
from inference_svc.engine_client.queue_limits import QueueLimits
from inference_svc.engine_client.requests import RequestTracker, Submission
from inference_svc.engine_client.snapshot_requests import SnapshotTracker
from inference_svc.machine import resident_bytes
from inference_svc.models.device_memory import DeviceBytes
from svc_kit.errors import DomainError, Draining, EngineRestarting
from svc_kit.lifecycle import StartupError

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


class EngineClient:
    """The engine process of one model and its streams. Call all methods on the event loop.

    `ready` is the process's last load report, `report` its load and `archive` the archive's state
    when last used (both None while it is down). `on_state` is called at each state change,
    `on_event` with every engine event, for metrics, and `on_progress` with the progress of loading.
    `adapters` may outlive it and be passed to its successor.
    """

    def __init__(
        self,
        boot: EngineConfig,
        queue: QueueLimits,
        reader: ReaderLimits,
        *,
        on_state: Callable[[EngineState], None] = lambda _: None,
        on_event: Callable[[Event], None] = lambda _: None,
        on_progress: Callable[[LoadProgress], None] = lambda _: None,
        adapters: AdapterRegistry | None = None,
    ) -> None:
        self.restarts = 0
        self.ready: ModelReady | None = None
        self.report: ModelLoad | None = None
        self.archive: DiskCacheLoad | None = None
        self.adapters = adapters or AdapterRegistry()
        self.sequences = RequestTracker(queue, reader, self._send, self.adapters.sweep)
        self.embeddings = EmbeddingTracker(queue, self._send)
        self.snapshots = SnapshotTracker(self._send, self.check_open)
        self.adapters.attach(self._send, self.sequences.num_requests)
        self.system_info = ""
        self._boot = boot
        self._on_state = on_state
        self._on_event = on_event
        self._on_progress = on_progress
        self._process: EngineProcess | None = None
        self._state = EngineState.STARTING
        self._closed_with: DomainError | None = None
        self._next_id = 0
        self._flushes: dict[int, asyncio.Future[int]] = {}
        self._quick_deaths = 0
        self._ready_at = 0.0
        self._first_boot: asyncio.Future[None] | None = None
        self._restart: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the model. Raises `StartupError` where that fails."""
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

    def set_digest(self, digest: str) -> None:
        """By this digest a process that is started again knows its files, touched or copied."""
        self._boot = replace(self._boot, model=replace(self._boot.model, digest=digest))

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
    def memory(self) -> DeviceBytes:
        """What the process takes now, measured; nothing while it is down."""
        if self.ready is None or not self.pid:
            return DeviceBytes()
        return DeviceBytes(resident_bytes(self.pid), self.ready.device_bytes)

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
        elif isinstance(message, DevicesTaken):
            self._on_devices_taken(message)
        else:
            self._on_boot_failed(message)

    def _on_ready(self, ready: Ready) -> None:
        self.ready, self.system_info = ready.model, ready.system_info
        self.sequences.slots = ready.model.slots
        self.snapshots.use = ready.snapshots
        measured = replace(self._boot.model, warm_up=ready.model.warm_up)
        self._boot = replace(self._boot, model=measured)
        self._ready_at = time.monotonic()
        self._set_state(EngineState.SERVING)
        self.adapters.on_engine_ready()
        if self._first_boot is not None and not self._first_boot.done():
            self._first_boot.set_result(None)

    def _on_devices_taken(self, taken: DevicesTaken) -> None:
        if self.ready is not None:
            self.ready = replace(self.ready, device_bytes=taken.device_bytes)

    def _on_boot_failed(self, failed: EngineStartFailed) -> None:
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
        self._fail_all(self._restarting("running"))
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

    def _restarting(self, phase: str | None = None) -> EngineRestarting:
        load_s = self.ready.load_s if self.ready is not None else 0.0
        return EngineRestarting(phase=phase, retry_after=round(load_s + 1.0, 1))

    def _fail_all(self, error: DomainError) -> None:
        self.report = self.archive = None
        for flush in self._flushes.values():
            if not flush.done():
                flush.set_exception(error)
        self.sequences.fail_all(error)
        self.embeddings.fail_all(error)
        self.snapshots.fail_all(error)

    # --- admission --------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Whether new work is taken. Raises `EngineRestarting`, or what it was closed with."""
        if self._closed_with is not None:
            raise self._closed_with
        if not self._is_up:
            raise self._restarting()

    def submit(
        self, requests: Sequence[SequenceRequest], submission: Submission
    ) -> tuple[OutputStream, int]:
        """Admit the choices of one request; returns its stream and its place in the queue (0 is
        next).

        Sequence and request ids are given here. Raises as `check_open`, or `QueueFull`; then
        nothing was done.
        """
        self.check_open()
        return self.sequences.submit(requests, submission, self._next_ids(len(requests)))

    async def embed(self, request: EmbeddingRequest) -> list[Vector]:
        """The vector of each input, in order; its sequence id is given here.

        Raises as `submit`, or whatever ended the request in the engine.
        """
        self.check_open()
        return await self.embeddings.run(replace(request, sequence_id=self._next_ids(1)))

    def _next_ids(self, count: int) -> int:
        """The first of so many new ids."""
        first, self._next_id = self._next_id, self._next_id + count
        return first

    # --- steering ---------------------------------------------------------------------------------

    def abort(self, request_id: str, *, project: str | None) -> bool:
        """End a request (of `project`, where one is given). Returns whether it was live."""
        jobs = (self.sequences, self.embeddings)
        return any(each.abort(request_id, project=project) for each in jobs)

    async def wait_idle(self) -> None:
        """Return once nothing waits or runs."""
        await self.sequences.wait_idle()
        await self.embeddings.wait_idle()

    async def load_adapter(self, adapter: Adapter) -> Adapter:
        """Have the engine load an adapter. Raises `EngineRestarting` or `AdapterInvalid`; the
        adapter is closed then."""
        if not self._is_up:
            adapter.file.close()
            raise self._restarting()
        return await self.adapters.load(adapter)

    async def flush(self) -> int:
        """Forget every prefix that is only kept for reuse; returns the tokens. Raises
        `EngineRestarting`."""
        self.check_open()
        if not self.sequences.slots:
            return 0  # it keeps none
        flush_id = self._next_ids(1)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._flushes[flush_id] = done
        self._send(Flush(flush_id))
        try:
            return await done
        finally:
            del self._flushes[flush_id]

    def _on_flushed(self, event: Flushed) -> None:
        done = self._flushes.get(event.flush_id)
        if done is not None and not done.done():
            done.set_result(event.num_tokens)

    def _send(self, command: Command) -> None:
        if self._process is not None and self._is_up:
            self._process.send(command)

    # --- events -----------------------------------------------------------------------------------

    def _deliver(self, event: Event) -> None:
        self._on_event(event)
        match event:
            case ModelLoad():
                self.report = event
            case DiskCacheLoad():
                self.archive = event
            case Flushed():
                self._on_flushed(event)
            case Embedded():
                self.embeddings.deliver(event)
            case AdapterLoaded() | AdapterFailed():
                self.adapters.deliver(event)
            case Failed():  # ids are of either; the other knows nothing of it
                self.embeddings.deliver(event)
                self.sequences.deliver(event)
            case _:
                self.sequences.deliver(event)
