"""The connection to an upstream: takes the commands of an engine, and emits its events.

Requests wait in the queue of a local engine until one of the URLs has a free slot (`dispatcher`).
`upstream_turn` serves one of them, `endpoints` says which URLs may be asked, and `probe` what is
behind them.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from inference_svc.engine.embedding_request import (
    EmbeddingLimits,
    EmbeddingRequest,
    SubmitEmbedding,
)
from inference_svc.engine.events import (
    AdapterLoadDone,
    AdaptersListed,
    Cancelled,
    Event,
    Failed,
    Flushed,
    ModelLoad,
)
from inference_svc.engine.request import (
    ArchivePrefixes,
    Cancel,
    Command,
    DropCachedPrefixes,
    Flush,
    LoadAdapter,
    Pause,
    RestoreSnapshot,
    SaveSnapshot,
    SequenceRequest,
    ShareCores,
    Submit,
)
from inference_svc.engine.sequence import Sequence
from inference_svc.engine_client.features import Features
from inference_svc.engine_client.messages import EngineMessage, ModelReady, Ready, SnapshotDone
from inference_svc.engine_client.process import StartFailed
from inference_svc.llama.warmup import WarmUp
from inference_svc.snapshots.store import FolderUsage
from inference_svc.upstream.dispatcher import Dispatcher
from inference_svc.upstream.endpoint import Endpoint
from inference_svc.upstream.endpoints import Endpoints, EndpointStatus, Mode, Probed
from inference_svc.upstream.engine_api import EngineInfo
from inference_svc.upstream.faults import EngineFault, RequestRefused
from inference_svc.upstream.probe import PinnedIdentity
from inference_svc.upstream.target import UpstreamTarget
from inference_svc.upstream.upstream_turn import ServedModel, Turn
from inference_svc.upstream.verdict import judge
from svc_kit.errors import (
    ContextLengthExceeded,
    DeadlineExpired,
    DecodeFailed,
    DomainError,
    EngineRestarting,
    FeatureUnsupported,
)

log = logging.getLogger(__name__)
_TICK_S: Final = 0.1
_REPORT_S: Final = 1.0


class UpstreamStatus(NamedTuple):
    """What is known of an upstream, for operators; `features` and `info` are None until an engine
    was probed."""

    features: Features | None
    info: EngineInfo | None
    endpoints: tuple[EndpointStatus, ...]


class UpstreamConnection:
    """The child of a `SupervisedProcess` that is no process. Create it on the event loop.

    `on_message` gets `Ready` once an engine was probed, `StartFailed` (and then `on_exit`) if it
    can never be used as configured, `SnapshotDone`, and lists of events. `on_exit` gets 1 when no
    URL can be asked any more, after `Ready`; until then engines may take their time. All
    connections of a name share `mode` and `pin`.
    """

    pid = 0

    def __init__(
        self,
        target: UpstreamTarget,
        mode: Mode,
        pin: PinnedIdentity,
        *,
        on_message: Callable[[Any], None],
        on_exit: Callable[[int], None],
    ) -> None:
        self._target = target
        self._on_message = on_message
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._started_at = time.monotonic()
        self._endpoints = Endpoints(
            target, mode, pin, on_change=self._on_change, on_unusable=self._fail_start
        )
        self._served: ServedModel | None = None
        self._listed: frozenset[str] | None = None
        self._features: Features | None = None
        max_wait_s = target.first_token_timeout_s / 2
        self._dispatcher = Dispatcher(self._endpoints, max_wait_s, self._on_done)
        self._events: list[Event] = []
        self._is_ended = False
        self._load: ModelLoad | None = None
        self._report_at = 0.0
        self._timer = self._loop.call_soon(self._tick)

    # --- of SupervisedProcess ---------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Take a command."""
        if self._is_ended:
            return
        match command:
            case Submit(request) | SubmitEmbedding(request):
                self._submit(request)
            case Cancel(sequence_id):
                self._cancel(sequence_id)
            case Pause(sequence_id, paused):
                if (turn := self._dispatcher.turns.get(sequence_id)) is not None:
                    turn.set_paused(paused=paused)
                    self._admit()
            case _:
                self._refuse(command)

    def _refuse(self, command: Command) -> None:
        """Answer what only a local engine does."""
        match command:
            case Flush(job_id):
                self._emit(Flushed(job_id, 0))
            case LoadAdapter(digest):
                problem = f"the engine {self._target.name} takes no adapters in GGUF files"
                self._emit(AdapterLoadDone(digest, problem))
            case ShareCores(job_id) | DropCachedPrefixes(job_id) | ArchivePrefixes(job_id):
                self._answer(SnapshotDone(job_id, 0, None))
            case SaveSnapshot(job_id) | RestoreSnapshot(job_id):
                self._answer(SnapshotDone(job_id, self._cannot("snapshots"), None))
            case _:
                pass  # an adapter is unloaded that was never loaded

    def kill(self) -> None:
        """Close all connections, which cancels the requests at the engines, and call `on_exit`."""
        self._end(1)

    def resume(self) -> None:
        """Nothing was stopped."""

    async def close(self) -> None:
        """Close all connections, and wait until nothing runs."""
        tasks = self._dispatcher.tasks
        self._end(None)
        await asyncio.gather(*tasks, self._endpoints.close(), return_exceptions=True)

    @property
    def status(self) -> UpstreamStatus:
        return UpstreamStatus(self._features, self._endpoints.info, self._endpoints.status)

    def _cannot(self, feature: str) -> DomainError:
        engine = self._features.engine if self._features is not None else self._target.name
        return FeatureUnsupported(feature=f"{feature} with the engine {engine}")

    def _end(self, code: int | None) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        self._timer.cancel()
        for task in self._dispatcher.tasks:
            task.cancel()
        self._endpoints.stop()
        if code is not None:
            self._on_exit(code)

    def _fail_start(self, problem: str) -> None:
        """An engine can never be used as it is configured, and none was used before."""
        self._answer(StartFailed(problem))
        self._end(1)

    # --- messages ---------------------------------------------------------------------------------

    def _answer(self, message: EngineMessage | StartFailed) -> None:
        self._flush()
        self._on_message(message)

    def _emit(self, event: Event) -> None:
        """Send an event with all others of this turn of the loop."""
        if not self._events:
            self._loop.call_soon(self._flush)
        self._events.append(event)

    def _flush(self) -> None:
        events, self._events = self._events, []
        if events and not self._is_ended:
            self._on_message(events)

    def _tick(self) -> None:
        now = time.monotonic()
        self._timer = self._loop.call_later(_TICK_S, self._tick)
        self._endpoints.probe_due(now)
        self._expire(now)
        if self._served is not None and now >= self._report_at:
            self._report_at = now + _REPORT_S
            self._report(self._served)
            self._admit()  # waiting raises priorities, and URLs that were set aside come back

    def _report(self, served: ServedModel) -> None:
        counters = served.counters
        load = ModelLoad(
            self._target.name,
            num_running=self._dispatcher.num_running,
            num_waiting=self._dispatcher.num_waiting,
            prompt_tokens=counters.prompt,
            cached_tokens=counters.cached,
            output_tokens=counters.output,
        )
        if load != self._load:
            self._load = load
            self._emit(load)

    def _on_change(self) -> None:
        """An endpoint is up, or is no longer."""
        if self._is_ended:
            return
        if self._served is None and self._endpoints.probed is not None:
            self._begin()
        self._report_adapters()
        self._go_on()

    def _report_adapters(self) -> None:
        probed, wanted = self._endpoints.probed, self._target.adapters
        if probed is None or not wanted or probed.adapters == self._listed:
            return
        self._listed = probed.adapters
        if missing := sorted(set(wanted) - self._listed):
            log.warning("%s has no adapters %s", probed.features.engine, ", ".join(missing))
        self._flush()
        self._on_message([AdaptersListed(self._listed)])

    def _go_on(self) -> None:
        """Start what waits, or end if no engine can be reached, and none still writes an answer."""
        if self._is_ended:
            return
        if self._served is None or self._dispatcher.tasks or not self._endpoints.are_lost:
            self._admit()
            return
        log.warning("no engine of %s can be reached", self._target.name)
        self._flush()
        self._end(1)

    def _begin(self) -> None:
        probed, name = self._endpoints.probed, self._target.name
        if probed is None:
            return
        slots = probed.slots * len(self._target.urls)
        self._features = probed.features
        self._served = ServedModel(
            probed.engine.info.model,
            probed.context_tokens,
            probed.features.takes_grammars,
            probed.features.takes_gbnf,
            self._emit,
            lambda project: self._dispatcher.queue.shares.charge(project, 1),
        )
        self._dispatcher.set_slots(slots)
        load_s = time.monotonic() - self._started_at
        ready = ModelReady(
            name,
            slots,
            probed.context_tokens,
            probed.context_tokens,
            WarmUp(0, "the engine is not ours", {}),
            load_s,
            self._embedding_limits(probed),
            features=probed.features,
        )
        self._answer(Ready(ready, probed.features.engine, FolderUsage(0, 0)))

    def _embedding_limits(self, probed: Probed) -> EmbeddingLimits | None:
        """Of the models that embed; in text mode tokens are not known."""
        if (size := probed.features.vector_size) is None:
            return None
        slots, context = probed.slots * len(self._target.urls), probed.context_tokens
        return EmbeddingLimits(
            batch_tokens=context,
            input_tokens=context,
            sequences=slots,
            cells=slots * context,
            vector_size=size,
            vocabulary_size=probed.engine.vocabulary_size,
        )

    # --- requests ---------------------------------------------------------------------------------

    def _submit(self, request: SequenceRequest | EmbeddingRequest) -> None:
        try:
            turn = self._new_turn(request)
        except DomainError as error:
            self._emit(Failed(request.sequence_id, error))
            return
        self._dispatcher.add(turn)
        self._admit()

    def _new_turn(self, request: SequenceRequest | EmbeddingRequest) -> Turn:
        """Raises a `DomainError` for what the engines would not do."""
        served, probed = self._served, self._endpoints.probed
        if served is None or probed is None:
            raise EngineRestarting()
        if isinstance(request, EmbeddingRequest):
            if probed.engine.embed is None:
                raise self._cannot("embeddings")
            return probed.engine.embed(request, served)
        if not probed.features.generates:
            raise self._cannot("generation")
        probed.features.check(request)
        sequence = Sequence(request, arrived_at=time.monotonic())
        count, limit = len(sequence.tokens), served.context_tokens
        if count > limit:
            raise ContextLengthExceeded(field="prompt", prompt_tokens=count, context_tokens=limit)
        return probed.engine.turn(sequence, served)

    def _admit(self) -> None:
        if not self._is_ended:
            self._dispatcher.admit()

    def _on_done(self, turn: Turn, endpoint: Endpoint, task: asyncio.Task[None]) -> None:
        sequence_id = turn.sequence.request.sequence_id
        problem = None if task.cancelled() else task.exception()
        if self._is_ended:
            return
        if isinstance(problem, EngineFault):
            self._on_fault(turn, endpoint, problem)
        elif isinstance(problem, DomainError):
            if sequence_id in self._dispatcher.turns:
                self._fail(turn, problem)
        elif problem is not None:
            log.error("a request to %s failed", self._target.name, exc_info=problem)
            if sequence_id in self._dispatcher.turns:
                self._fail(turn, DecodeFailed(request_id=turn.sequence.request.request_id))
        elif not task.cancelled():
            self._endpoints.on_served(endpoint, turn.failed_at)
            self._dispatcher.drop(turn)
        self._go_on()

    def _on_fault(self, turn: Turn, endpoint: Endpoint, fault: EngineFault) -> None:
        """Put the sequence back into the queue, or fail it."""
        request = turn.sequence.request
        log.warning(
            "the engine %s failed: %s",
            endpoint.url,
            fault,
            extra={"fields": {"model": self._target.name, "request_id": request.request_id}},
        )
        if not turn.is_finished:  # it may have been cancelled in the same turn of the loop
            error = judge(turn, endpoint, fault, time.monotonic(), self._target.name)
            if error is None:
                self._dispatcher.queue.push(turn.sequence)
            else:
                self._fail(turn, error)
        if not isinstance(fault, RequestRefused):
            self._endpoints.on_failed(endpoint, fault)

    def _cancel(self, sequence_id: int) -> None:
        turn = self._dispatcher.turns.get(sequence_id)
        if turn is not None and not turn.is_finished:
            phase = turn.phase
            self._drop(turn)
            self._emit(Cancelled(sequence_id, phase, 0, 0))

    def _fail(self, turn: Turn, error: DomainError) -> None:
        self._drop(turn)
        self._emit(Failed(turn.sequence.request.sequence_id, error))

    def _drop(self, turn: Turn) -> None:
        """End a sequence in any phase; the engine sees that its connection is closed."""
        turn.is_finished = True
        self._dispatcher.drop(turn)

    def _expire(self, now: float) -> None:
        for turn in self._dispatcher.late_turns(now):
            if not turn.is_finished:
                self._fail(turn, DeadlineExpired(phase=turn.phase))
