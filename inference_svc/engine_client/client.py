"""The client of an engine, a process or an upstream: admission, output streams, restarts.

When the engine dies or is lost, requests in flight end with ENGINE_RESTARTING (UNAVAILABLE, with
RetryInfo).
"""

import asyncio
import contextlib
import enum
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from inference_svc.engine.embedding_request import EmbeddingRequest, Embeddings
from inference_svc.engine.events import (
    AdapterLoadDone,
    AdaptersListed,
    Delta,
    DiskCacheLoad,
    Embedded,
    Event,
    Failed,
    Flushed,
    ModelLoad,
)
from inference_svc.engine.request import (
    ArchivePrefixes,
    Command,
    Flush,
    SequenceRequest,
    ShareCores,
)
from inference_svc.engine_client.adapter_registry import Adapter, AdapterRegistry
from inference_svc.engine_client.embedding_requests import EmbeddingTracker
from inference_svc.engine_client.messages import (
    EngineMessage,
    LoadProgress,
    ModelReady,
    Ready,
    SnapshotDone,
)
from inference_svc.engine_client.output_stream import OutputStream, ReaderLimits
from inference_svc.engine_client.process import Child, SupervisedProcess
from inference_svc.engine_client.queue_limits import QueueLimits
from inference_svc.engine_client.requests import RequestTracker
from inference_svc.engine_client.snapshot_requests import UNSET_ID, SnapshotTracker
from inference_svc.machine import resident_bytes
from inference_svc.models.device_memory import DeviceBytes
from svc_kit.errors import DomainError, Draining, EngineRestarting
from svc_kit.queue_share import QueueEntry

DRAIN_RETRY_S = 5.0
MAX_ARCHIVE_S: Final = 5.0
"""How long an engine that is to end may archive its prefixes: half as long as a load waits for
memory by default (`pool.memory_wait_s`)."""


class EngineState(enum.Enum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    RESTARTING = "restarting"


class EngineClient:
    """The engine of one model and its streams. Call all methods on the event loop.

    `spawn` starts the engine with the callbacks of a `Child`: a `LocalEngine` starts a process.

    `ready` describes the loaded model. `report` is the last load report and `disk_cache` the state
    of the disk prefix cache at its last use; both are None while the process is down.
    `on_state` is called at each state change, `on_event` with every engine event, for metrics, and
    `on_progress` with the progress of loading. `on_process_exit` is called when the process has
    ended. `adapters` may outlive the client and be passed to
    its successor.
    """

    def __init__(
        self,
        name: str,
        spawn: Callable[..., Child[Command]],
        queue: QueueLimits,
        reader: ReaderLimits,
        *,
        on_state: Callable[[EngineState], None] = lambda _: None,
        on_event: Callable[[Event], None] = lambda _: None,
        on_progress: Callable[[LoadProgress], None] = lambda _: None,
        adapters: AdapterRegistry | None = None,
    ) -> None:
        self.state = EngineState.STARTING
        self.on_process_exit: Callable[[], None] = lambda: None
        self.ready: ModelReady | None = None
        self.report: ModelLoad | None = None
        self.disk_cache: DiskCacheLoad | None = None
        self.adapters = adapters or AdapterRegistry()
        self._process = SupervisedProcess[EngineMessage, Command](
            "the engine",
            name,
            spawn,
            early_exit="the engine process ended while it loaded",
            on_message=self._on_message,
            on_down=self._on_down,
            on_exit=lambda: self.on_process_exit(),
        )
        send = self._process.send
        self._ids = count()
        self.sequences = RequestTracker(queue, reader, send, self.adapters.free_unused, self._ids)
        self.embeddings = EmbeddingTracker(queue, send)
        self.snapshots = SnapshotTracker(send, self.check_open)
        self.adapters.attach(send, self.sequences.num_requests)
        self.system_info = ""
        self._on_state = on_state
        self._on_event = on_event
        self._on_progress = on_progress
        self._closed_with: DomainError | None = None

    # --- lifecycle --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the model. Raises `StartupError` on failure."""
        await self._process.start()

    async def close(self, error: DomainError | None = None) -> None:
        """End the process. Running streams and new requests fail with `error` (default: DRAINING).

        Can be called repeatedly.
        """
        if self._closed_with is None:
            self._closed_with = error or Draining(retry_after=DRAIN_RETRY_S)
        self._fail_all(self._closed_with)
        self.adapters.on_engine_closed(self._closed_with)
        await self._process.close()

    @property
    def pid(self) -> int:
        """The process id; 0 while the engine is down."""
        return self._process.pid

    @property
    def problem(self) -> str:
        """Why it could not start again; empty if it serves, or has not been refused."""
        return self._process.problem

    @property
    def restarts(self) -> int:
        """How often the process was started again."""
        return self._process.restarts

    @property
    def memory(self) -> DeviceBytes:
        """The measured memory of the process; nothing while it is down."""
        if self.ready is None or not self.pid:
            return DeviceBytes()
        return DeviceBytes(resident_bytes(self.pid), self.ready.device_bytes)

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        self._on_state(state)

    def _on_message(self, message: EngineMessage) -> None:
        if isinstance(message, list):
            for event in message:
                self._deliver(event)
        elif isinstance(message, Ready):
            self._on_ready(message)
        elif isinstance(message, SnapshotDone):
            self.snapshots.deliver(message)
        elif isinstance(message, LoadProgress):
            self._on_progress(message)
        elif self.ready is not None:
            self.ready = replace(self.ready, device_bytes=message.device_bytes)

    def _on_ready(self, ready: Ready) -> None:
        self.ready, self.system_info = ready.model, ready.system_info
        self.sequences.slots = ready.model.slots
        self.snapshots.use = ready.snapshots
        self._process.mark_up()
        self._set_state(EngineState.SERVING)
        self.adapters.on_engine_ready()

    def _on_down(self, _was_up: bool, _pause_s: float) -> None:
        self._set_state(EngineState.RESTARTING)
        self._fail_all(self._restarting("running"))
        self.adapters.on_engine_crash(self._restarting())

    def _restarting(self, phase: str | None = None) -> EngineRestarting:
        load_s = self.ready.load_s if self.ready is not None else 0.0
        return EngineRestarting(phase=phase, retry_after=round(load_s + 1.0, 1))

    def _fail_all(self, error: DomainError) -> None:
        self.report = self.disk_cache = None
        self.sequences.fail_all(error)
        self.embeddings.fail_all(error)
        self.snapshots.fail_all(error)

    # --- admission --------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise the error it was closed with, or `EngineRestarting`, unless it serves."""
        if self._closed_with is not None:
            raise self._closed_with
        if not self._process.is_up:
            raise self._restarting()

    @property
    def is_full(self) -> bool:
        """Whether as many sequences wait as run at once. Then a new one would take about twice as
        long, more than a shared prefix usually saves. A lower mark moves away what is cached, and
        computing it again fills other replicas (docs/understand/simulation.md)."""
        return len(self.sequences.live) >= 2 * max(1, self.sequences.slots)

    def submit(
        self,
        requests: Sequence[SequenceRequest],
        label: str = "",
        adapters: tuple[Adapter, ...] = (),
    ) -> tuple[OutputStream, int]:
        """Admit the choices of one request, which uses `adapters`, and assign their ids. Return its
        stream and its position in the queue (0 is next).

        Raises like `check_open`, or `QueueFull`; then nothing was admitted.
        """
        self.check_open()
        return self.sequences.submit(requests, label, adapters)

    def check_room(self, new: QueueEntry, num_choices: int) -> None:
        """Raise like `submit` for a request of `num_choices` before its prompt is known, so that a
        full queue costs little."""
        self.check_open()
        self.sequences.check_queue([new] * num_choices)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Return the vectors of all inputs.

        Raises like `submit`, or the error with which the engine ended the request.
        """
        self.check_open()
        return await self.embeddings.run(replace(request, sequence_id=next(self._ids)))

    # --- control ----------------------------------------------------------------------------------

    def abort(self, request_id: str, *, project: str | None) -> bool:
        """Abort a request (only of `project` if given). Return whether it was live."""
        trackers = (self.sequences, self.embeddings)
        return any(tracker.abort(request_id, project=project) for tracker in trackers)

    async def wait_idle(self) -> None:
        """Return once nothing waits or runs."""
        await self.sequences.wait_idle()
        await self.embeddings.wait_idle()

    async def load_adapter(self, adapter: Adapter) -> Adapter:
        """Load an adapter into the engine.

        Raises `EngineRestarting` or `AdapterInvalid`, and closes the adapter's file.
        """
        if not self._process.is_up:
            adapter.file.close()
            raise self._restarting()
        return await self.adapters.load(adapter)

    async def share_cores(self, encoder_pid: int) -> None:
        """Return once the engine leaves cores to an encoder: after its current decode call, or at
        once if it is down. The process is stopped in steps that compute tokens of streams."""
        with contextlib.suppress(DomainError):
            await self.snapshots.run(ShareCores(UNSET_ID, encoder_pid))

    def reclaim_cores(self) -> None:
        """Let the engine use all cores again."""
        self._process.send(ShareCores(UNSET_ID, None))

    async def flush(self) -> int:
        """Drop all prefixes that are only cached for reuse; return their tokens.

        Raises `EngineRestarting`.
        """
        self.check_open()
        if not self.sequences.slots:
            return 0  # an embedding engine has no prefix cache
        return await self.snapshots.run(Flush(UNSET_ID))

    async def archive_prefixes(self, timeout_s: float = MAX_ARCHIVE_S) -> None:
        """Write the prefixes that are archived to disk, before the engine is closed. What fails or
        takes longer is only computed again."""
        cache = self.disk_cache
        if cache is None or not cache.tier.max_bytes:
            return
        with contextlib.suppress(DomainError, TimeoutError):
            async with asyncio.timeout(min(timeout_s, MAX_ARCHIVE_S)):
                await self.snapshots.run(ArchivePrefixes(UNSET_ID))

    # --- events -----------------------------------------------------------------------------------

    def _deliver(self, event: Event) -> None:
        self._on_event(event)
        if isinstance(event, Delta):  # nearly all are
            self.sequences.deliver(event)
            return
        match event:
            case ModelLoad():
                self.report = event
            case DiskCacheLoad():
                self.disk_cache = event
            case Flushed(job_id, num_tokens):
                self.snapshots.deliver(SnapshotDone(job_id, num_tokens, None))
            case Embedded():
                self.embeddings.deliver(event)
            case AdapterLoadDone():
                self.adapters.deliver(event)
            case AdaptersListed(names):
                self.adapters.on_listed(names)
            case Failed():  # the id belongs to one of them; the other ignores it
                self.embeddings.deliver(event)
                self.sequences.deliver(event)
            case _:
                self.sequences.deliver(event)
