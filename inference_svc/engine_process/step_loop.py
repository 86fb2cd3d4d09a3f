"""The step thread: applies commands, makes decode calls, and emits events. Two other threads read
and write the pipe, so that it never blocks on I/O.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, NoReturn, TypeGuard

from inference_svc.engine.embedder import Embedder
from inference_svc.engine.embedding_request import SubmitEmbedding
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Event
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
    ShareCores,
    Submit,
    UnloadAdapter,
)
from inference_svc.engine_client.messages import DeviceMemoryReport, SnapshotDone
from inference_svc.engine_process.encoder_signals import EncoderSignals
from inference_svc.engine_process.file_thread import FileDone
from inference_svc.engine_process.output_batcher import OutputBatcher
from inference_svc.engine_process.prefix_offload import PrefixOffloader
from inference_svc.engine_process.snapshot_io import SnapshotIO
from inference_svc.engine_process.warm_prefixes import WarmPrefixes
from inference_svc.llama.engine_memory import EngineMemory
from svc_kit.fairness import FairTurns


class AbortingPipe:
    """A pipe for tests: aborts the process, as a failed native assertion would, at the first
    request that has `stop_text` among its stop texts."""

    def __init__(self, pipe: "Connection[Any, Any]", stop_text: str) -> None:
        self.send = pipe.send
        self._pipe = pipe
        self._stop_text = stop_text

    def recv(self) -> Any:
        """Receive the next command."""
        command = self._pipe.recv()
        if isinstance(command, Submit) and self._stop_text in command.request.stop:
            os.abort()
        return command


_DEADLINE_CHECK_S = 0.05
Stepper = Engine | Embedder
PostDone = Callable[[FileDone], None]
EmitResult = Callable[[SnapshotDone], None]


class _ReceivedCommand(NamedTuple):
    """A command (or a finished file operation), and the decode call during which it arrived."""

    command: Command | FileDone
    step: int


class StepLoop:
    """Applies commands, then runs a step of generation or of embeddings, which share the thread's
    time equally; blocks while there is no work. Commands are also applied between the decode calls
    of a generation step."""

    def __init__(
        self,
        pipe: "Connection[Any, Any] | AbortingPipe",
        engine: Engine | None,
        embedder: Embedder | None = None,
        clock: Callable[[], float] = time.monotonic,
        memory: EngineMemory | None = None,
        outbox: OutputBatcher | None = None,
        make_snapshot_io: Callable[[PostDone, EmitResult], SnapshotIO] | None = None,
        make_offloader: Callable[[PostDone, EmitResult], PrefixOffloader] | None = None,
    ) -> None:
        """`outbox` sends its outputs; without one, none is delayed. `make_snapshot_io` and
        `make_offloader` receive the functions with which their threads report to the step
        thread, and with which they emit results."""
        self._pipe = pipe
        self._clock = clock
        self._engine = engine
        self._embedder = embedder
        self._memory = memory or EngineMemory()
        self._encoder = EncoderSignals()
        self._steppers: list[Stepper] = [each for each in (engine, embedder) if each is not None]
        self._turns: FairTurns[Stepper] = FairTurns()
        self._inbox: SimpleQueue[_ReceivedCommand] = SimpleQueue()
        self._outbox = outbox or OutputBatcher(0.0)
        callbacks = self._enqueue, self._outbox.put
        self._snapshot_io = make_snapshot_io(*callbacks) if make_snapshot_io else None
        self._offloader = make_offloader(*callbacks) if make_offloader else None
        self._warm: WarmPrefixes | None = None
        if engine is not None and self._offloader is not None:
            self._warm = WarmPrefixes(engine, self._offloader, clock)
        self._report_disk_cache()
        self._step = 0

    def run(self) -> NoReturn:
        """Compute what commands ask for."""
        while True:
            self._receive()
            self.run_turn()
            if self._offloader is not None:
                self._offloader.submit_overdue()
            if self._warm is not None:
                self._warm.archive_grown(is_busy=any(map(_is_busy, self._steppers)))

    def run_turn(self) -> None:
        """Run a step of the engine or embedder that has used less time. Those without work only
        emit their events."""
        self._step += 1
        busy = [stepper for stepper in self._steppers if _can_compute(stepper)]
        turn = self._turns.next(busy) if busy else None
        for stepper in self._steppers:
            if stepper is turn:
                if _is_decoding(stepper):
                    self._encoder.stop()
                started = self._clock()
                self._run_step(stepper)
                self._turns.charge(stepper, self._clock() - started)
                if self._encoder.resume() and _is_decoding(stepper):
                    self._leave_cores(stepper.encoder_pause_s)
            elif not _can_compute(stepper):  # work that arrived in this turn waits for the next
                self._run_step(stepper)

    def _run_step(self, stepper: Stepper) -> None:
        if not stepper.has_sequences and not stepper.has_events:
            return
        if not isinstance(stepper, Engine):
            self._emit(stepper.step())
            return
        if any(_can_compute(other) for other in self._steppers if other is not stepper):
            # Embeddings must not wait for the grammar of another request.
            calls = stepper.decode_calls(patience_s=0.0)
        else:
            calls = stepper.decode_calls()
        for events in calls:
            self._emit(events)
            self._apply_received()
            self._step += 1

    def _leave_cores(self, pause_s: float) -> None:
        """Apply commands until the pause is over or the encoder is done."""
        until = time.monotonic() + pause_s
        while self._encoder.is_encoding and (left_s := until - time.monotonic()) > 0:
            with suppress(Empty):
                self._apply(self._inbox.get(timeout=left_s))

    def _emit(self, events: list[Event]) -> None:
        self._report_memory()
        if events:
            self._outbox.put(events)

    def _report_memory(self) -> None:
        """Report changed memory usage; called before the events of whatever changed it."""
        if (device_bytes := self._memory.changed_usage()) is not None:
            self._outbox.put(DeviceMemoryReport(device_bytes))

    def _receive(self) -> None:
        """Apply commands; block for the first one if there is nothing else to do."""
        # Commands applied between the calls of a step may leave events that no step has emitted.
        if any(stepper.has_work or stepper.has_events for stepper in self._steppers):
            self._apply_received()
            return
        # Waiting sequences, e.g. paused ones, still have deadlines.
        has_deadlines = any(stepper.has_sequences for stepper in self._steppers) or (
            self._offloader is not None and self._offloader.has_deferred
        )
        timeout = self._warm.wait_s if self._warm is not None else None
        if has_deadlines:
            timeout = _DEADLINE_CHECK_S
        try:
            self._apply(self._inbox.get(timeout=timeout))
        except Empty:
            return
        self._apply_received()

    def _apply_received(self) -> None:
        """Apply the commands that have arrived, without blocking."""
        while not self._inbox.empty():  # no other thread takes any
            self._apply(self._inbox.get_nowait())

    def _enqueue(self, command: Command | FileDone) -> None:
        self._inbox.put(_ReceivedCommand(command, self._step))

    def _apply(self, received: _ReceivedCommand) -> None:
        match received.command:
            case FileDone(apply):
                apply()
                self._report_disk_cache()
            case SaveSnapshot() | RestoreSnapshot() as command if self._snapshot_io is not None:
                self._snapshot_io.execute(command)
            case DropCachedPrefixes() as command if self._offloader is not None:
                self._offloader.drop(command)
            case ArchivePrefixes(job_id) if self._warm is not None:
                self._warm.archive_all(
                    lambda count: self._outbox.put(SnapshotDone(job_id, count, None))
                )
            case DropCachedPrefixes(job_id) | ArchivePrefixes(job_id):
                self._outbox.put(SnapshotDone(job_id, 0, None))
            case SubmitEmbedding(request) if self._embedder is not None:
                self._embedder.submit(request)
            case Cancel(sequence_id):
                self._submit_deferred(sequence_id)
                for stepper in self._steppers:
                    stepper.cancel(sequence_id, arrived_in_step=received.step, step=self._step + 1)
            case command if self._engine is not None:
                self._apply_to_engine(self._engine, command)

    def _apply_to_engine(self, engine: Engine, command: Command) -> None:
        match command:
            case Submit(request):
                if self._offloader is None or not self._offloader.defer(request):
                    engine.submit(request)
                self._report_disk_cache()
            case Pause(sequence_id, paused):
                engine.pause(sequence_id, paused=paused)
            case ShareCores(job_id, encoder_pid):
                if encoder_pid is not None:
                    self._encoder.share(encoder_pid)
                else:
                    self._encoder.reclaim()
                self._outbox.put(SnapshotDone(job_id, 0, None))
            case Flush(job_id):
                engine.flush(job_id)
            case UnloadAdapter():
                with self._memory.tracking():
                    engine.adapters.unload(command.digest)
                self._report_memory()
            case LoadAdapter():
                with self._memory.tracking():
                    loaded = engine.adapters.load(command.digest, command.path)
                self._report_memory()
                # Reported at once: should the process abort later, this adapter is not the cause.
                self._outbox.put([loaded])

    def _report_disk_cache(self) -> None:
        if self._offloader is not None and (load := self._offloader.changed_load()) is not None:
            self._outbox.put([load])

    def _submit_deferred(self, sequence_id: int) -> None:
        """Submit a request that waits for a file, so that the engine can cancel it."""
        request = self._offloader.release(sequence_id) if self._offloader is not None else None
        if request is not None and self._engine is not None:
            self._engine.submit(request)

    def read_commands(self) -> NoReturn:
        """Read commands from the pipe, in a thread of its own, and end the process with it."""
        try:
            while True:
                self._enqueue(self._pipe.recv())
        except (EOFError, OSError):
            os._exit(0)

    def write_outputs(self) -> NoReturn:
        """Write outputs to the pipe, in a thread of its own, and end the process with it."""
        try:
            while True:
                for output in self._outbox.get():
                    self._pipe.send(output)
        except OSError:
            os._exit(0)


def _is_decoding(stepper: Stepper) -> TypeGuard[Engine]:
    """Whether its next step computes tokens of streams."""
    return isinstance(stepper, Engine) and stepper.is_decoding


def _is_busy(stepper: Stepper) -> bool:
    return stepper.has_work or stepper.has_sequences


def _can_compute(stepper: Stepper) -> bool:
    """Whether a step would do more than poll for compiled grammars."""
    awaits = isinstance(stepper, Engine) and stepper.awaits_grammars
    return stepper.has_work and not awaits
