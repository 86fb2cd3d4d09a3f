"""The step thread: commands in, decode calls, events out. Other threads read and write the pipe, so
that it never blocks.
"""

import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, NoReturn

from inference_svc.engine.embedder import Embedder
from inference_svc.engine.embedding_request import SubmitEmbedding
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Event
from inference_svc.engine.request import (
    Cancel,
    Command,
    DropCachedPrefixes,
    Flush,
    LoadAdapter,
    Pause,
    RestoreSnapshot,
    SaveSnapshot,
    SnapshotCommand,
    Submit,
    UnloadAdapter,
    Unpause,
)
from inference_svc.engine.scheduler.fairness import FairTurns
from inference_svc.engine_client.messages import DeviceMemoryReport, SnapshotDone
from inference_svc.engine_process.output_batcher import OutputBatcher
from inference_svc.engine_process.prefix_offload import OffloadDone, PrefixOffloader
from inference_svc.engine_process.snapshot_io import FileDone, SnapshotIO
from inference_svc.llama.engine_memory import EngineMemory


class AbortingPipe:
    """An engine's pipe at which the process aborts, as a native assertion would make it, with the
    first request that has a text among its stop texts."""

    def __init__(self, pipe: "Connection[Any, Any]", stop_text: str) -> None:
        self.send = pipe.send
        self._pipe = pipe
        self._stop_text = stop_text

    def recv(self) -> Any:
        """The next command."""
        command = self._pipe.recv()
        if isinstance(command, Submit) and self._stop_text in command.request.stop:
            os.abort()
        return command


_WATCH_S = 0.05
Stepper = Engine | Embedder


class _ReceivedCommand(NamedTuple):
    """A command (or a file that is done), and the decode call that ran when it came in."""

    command: Command | FileDone | OffloadDone
    step: int


class StepLoop:
    """Drain commands, then let generation or embeddings make a step; sleep when there is none. Both
    have the same share of the thread's time while both have work. Commands are drained between the
    decode calls of generation's steps, too."""

    def __init__(
        self,
        pipe: "Connection[Any, Any] | AbortingPipe",
        engine: Engine | None,
        embedder: Embedder | None = None,
        clock: Callable[[], float] = time.monotonic,
        memory: EngineMemory | None = None,
        stream_interval_s: float = 0.0,
        desk: Callable[[Callable[[FileDone], None]], SnapshotIO] | None = None,
        archive: Callable[[Callable[[OffloadDone], None]], PrefixOffloader] | None = None,
    ) -> None:
        """`memory` is what to tell of; `stream_interval_s` is how long tokens may wait to travel
        together; `desk` and `archive` make the desks for files, given the way back to the step
        thread."""
        self._pipe = pipe
        self._clock = clock
        self._engine = engine
        self._embedder = embedder
        self._memory = memory or EngineMemory()
        self._steppers: list[Stepper] = [each for each in (engine, embedder) if each is not None]
        self._turns: FairTurns[Stepper] = FairTurns()
        self._inbox: SimpleQueue[_ReceivedCommand] = SimpleQueue()
        self._outbox = OutputBatcher(stream_interval_s)
        self._desk = desk(self._hear_of_file) if desk is not None else None
        self._archive = archive(self._hear_of_file) if archive is not None else None
        self._report_prefix_offload()
        self._step = 0

    def run(self) -> NoReturn:
        """Serve until the pipe closes."""
        threading.Thread(target=self._read, name="commands", daemon=True).start()
        threading.Thread(target=self._write, name="events", daemon=True).start()
        while True:
            self._drain()
            self.make_turn()

    def make_turn(self) -> None:
        """Run a step of the loop that was served less; without work it only sends events."""
        self._step += 1
        busy = [stepper for stepper in self._steppers if _computes(stepper)]
        turn = self._turns.next(busy) if busy else None
        for stepper in self._steppers:
            if stepper is turn:
                started = self._clock()
                self._make_step(stepper)
                self._turns.charge(stepper, self._clock() - started)
            elif not _computes(stepper):  # work that came in this turn has to wait for its own
                self._make_step(stepper)

    def _make_step(self, stepper: Stepper) -> None:
        if not stepper.has_sequences and not stepper.has_events:
            return
        if not isinstance(stepper, Engine):
            self._tell(stepper.step())
            return
        if any(_computes(other) for other in self._steppers if other is not stepper):
            calls = stepper.decode_calls(
                patience_s=0.0
            )  # one request does not wait for another's grammar
        else:
            calls = stepper.decode_calls()
        for events in calls:
            self._tell(events)
            self._apply_arrived()
            self._step += 1

    def _tell(self, events: list[Event]) -> None:
        self._report_memory()
        if events:
            self._outbox.put(events)

    def _report_memory(self) -> None:
        """Before the answer to what took it."""
        if (taken := self._memory.news()) is not None:
            self._outbox.put(DeviceMemoryReport(taken))

    def _drain(self) -> None:
        # Commands between the calls of a step may leave events that no step has emitted.
        idle = not any(stepper.has_work or stepper.has_events for stepper in self._steppers)
        # Sequences that only wait (behind paused ones, say) still have deadlines to keep.
        watching = any(stepper.has_sequences for stepper in self._steppers)
        try:
            self._apply(self._inbox.get(block=idle, timeout=_WATCH_S if watching else None))
        except Empty:
            return
        self._apply_arrived()

    def _apply_arrived(self) -> None:
        """Give the commands that have come in, without waiting for any."""
        try:
            while True:
                self._apply(self._inbox.get_nowait())
        except Empty:
            return

    def _hear_of_file(self, done: FileDone | OffloadDone) -> None:
        self._inbox.put(_ReceivedCommand(done, self._step))

    def _apply(self, arrived: _ReceivedCommand) -> None:
        match arrived.command:
            case SaveSnapshot() | RestoreSnapshot() | FileDone() as news:
                self._apply_to_desk(news)
            case DropCachedPrefixes() | OffloadDone() as news:
                self._apply_to_archive(news)
            case SubmitEmbedding(request) if self._embedder is not None:
                self._embedder.submit(request)
            case Cancel(sequence_id):
                self._release(sequence_id)
                for stepper in self._steppers:
                    stepper.cancel(sequence_id, arrived_in_step=arrived.step, step=self._step + 1)
            case command if self._engine is not None:
                self._apply_to_engine(self._engine, command)

    def _apply_to_engine(self, engine: Engine, command: Command | FileDone | OffloadDone) -> None:
        match command:
            case Submit(request):
                if self._archive is None or not self._archive.holds(request):
                    engine.submit(request)
                self._report_prefix_offload()
            case Pause(sequence_id) | Unpause(sequence_id):
                engine.pause(sequence_id, paused=isinstance(command, Pause))
            case Flush(flush_id):
                engine.flush(flush_id)
            case UnloadAdapter():
                with self._memory.taking():
                    engine.adapters.unload(command.digest)
                self._report_memory()
            case LoadAdapter():
                with self._memory.taking():
                    loaded = engine.adapters.load(command.digest, command.path)
                self._report_memory()
                # Answered at once: what follows may end the process, and this was not to blame.
                self._outbox.put([loaded])

    def _apply_to_desk(self, news: SnapshotCommand | FileDone) -> None:
        if self._desk is not None:
            for answer in self._desk.hear(news):
                self._outbox.put(answer)

    def _apply_to_archive(self, news: DropCachedPrefixes | OffloadDone) -> None:
        if self._archive is None or self._engine is None:
            if isinstance(news, DropCachedPrefixes):
                self._outbox.put(SnapshotDone(news.job_id, 0, None))
        elif isinstance(news, DropCachedPrefixes):
            self._archive.drop(news)
        else:
            for result in self._archive.hear(news):
                if isinstance(result, SnapshotDone):
                    self._outbox.put(result)
                else:
                    self._engine.submit(result)
            self._report_prefix_offload()

    def _report_prefix_offload(self) -> None:
        if self._archive is not None and (load := self._archive.news()) is not None:
            self._outbox.put([load])

    def _release(self, sequence_id: int) -> None:
        """Have the engine know a request that waits for a file."""
        held = self._archive.release(sequence_id) if self._archive is not None else None
        if held is not None and self._engine is not None:
            self._engine.submit(held)

    def _read(self) -> NoReturn:
        try:
            while True:
                self._inbox.put(_ReceivedCommand(self._pipe.recv(), self._step))
        except (EOFError, OSError):
            os._exit(0)

    def _write(self) -> NoReturn:
        try:
            while True:
                for news in self._outbox.take():
                    self._pipe.send(news)
        except OSError:
            os._exit(0)


def _computes(stepper: Stepper) -> bool:
    """Whether a step would do more than look for a grammar."""
    awaits = isinstance(stepper, Engine) and stepper.awaits_grammars
    return stepper.has_work and not awaits
