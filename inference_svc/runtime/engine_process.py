"""The engine process: one step thread that owns llama.cpp, a thread that reads commands, a thread
that writes events.

It is a process of its own because a native assertion ends the process, and because Python work in
the same interpreter delays the step loop. It exits when its pipe closes and when its parent dies.
It has no sockets and no templates.
"""

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, NoReturn

from inference_svc.engine.adapter_stack import UnloadAdapter
from inference_svc.engine.backend import DecodeError
from inference_svc.engine.embedder import Embedder
from inference_svc.engine.embedding import SubmitEmbedding
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Event
from inference_svc.engine.fairness import Turns
from inference_svc.engine.request import (
    AdapterCommand,
    Cancel,
    Command,
    Flush,
    Pause,
    SnapshotCommand,
    Submit,
    Unpause,
)
from inference_svc.engine.shape import StepShape
from inference_svc.llama import library
from inference_svc.llama.backend import LlamaBackend
from inference_svc.llama.embeddings import EmbeddingSettings, LlamaEmbedding
from inference_svc.llama.warmup import WarmUp, warm_up
from inference_svc.llama.weights import ModelLoadError, load_model
from inference_svc.runtime.messages import (
    Boot,
    BootFailed,
    LoadPhase,
    LoadProgress,
    ModelBoot,
    ModelReady,
    Ready,
)
from inference_svc.runtime.outbox import Outbox
from inference_svc.runtime.snapshot_desk import FileDone, Served, SnapshotDesk
from inference_svc.snapshots.description import Fingerprint
from inference_svc.snapshots.folder import SnapshotFolder
from svc_kit.errors import ModelTooLarge
from svc_kit.telemetry import configure_logging

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_WATCH_S = 0.05


Stepper = Engine | Embedder


class _Arrived(NamedTuple):
    """A command (or a file that is done), and the step that ran when it came in."""

    command: Command | FileDone
    step: int


class StepLoop:
    """Drain commands, then let generation or embeddings make a step; sleep when there is none.

    Both have the same share of the thread's time while both have work. The step thread never blocks
    on the pipe: two other threads do.
    """

    def __init__(
        self,
        pipe: "Connection[Any, Any]",
        engines: dict[str, Engine],
        embedders: dict[str, Embedder] | None = None,
        clock: Callable[[], float] = time.monotonic,
        stream_interval_s: float = 0.0,
        desk: Callable[[Callable[[FileDone], None]], SnapshotDesk] | None = None,
    ) -> None:
        """`stream_interval_s` is how long tokens may wait to travel together; `desk` makes the desk
        for snapshots, given the way back to the step thread."""
        self._pipe = pipe
        self._clock = clock
        self._engines = engines
        self._embedders = embedders or {}
        self._sides: dict[str, list[Stepper]] = {
            "generation": list(engines.values()),
            "embeddings": list(self._embedders.values()),
        }
        self._steppers = [stepper for side in self._sides.values() for stepper in side]
        self._turns: Turns[str] = Turns()
        self._inbox: SimpleQueue[_Arrived] = SimpleQueue()
        self._outbox = Outbox(stream_interval_s)
        self._desk = desk(self._hear_of_file) if desk is not None else None
        self._step = 0

    def run(self) -> NoReturn:
        """Serve until the pipe closes."""
        threading.Thread(target=self._read, name="commands", daemon=True).start()
        threading.Thread(target=self._write, name="events", daemon=True).start()
        while True:
            self._drain()
            self.make_turn()

    def make_turn(self) -> None:
        """Let the side that was served less make a step; one without work only tells its news."""
        self._step += 1
        busy = [side for side, group in self._sides.items() if any(map(_computes, group))]
        turn = self._turns.next(busy) if busy else None
        for side, group in self._sides.items():
            started = self._clock()
            if side == turn or side not in busy:
                self._make_steps(group)
            if side == turn:
                self._turns.charge(side, self._clock() - started)

    def _make_steps(self, group: Iterable[Stepper]) -> None:
        for stepper in group:
            if stepper.has_sequences or stepper.has_news:
                events = self._make_step(stepper)
                if events:
                    self._outbox.put(events)

    def _make_step(self, stepper: Stepper) -> list[Event]:
        others = (other for other in self._steppers if other is not stepper)
        if isinstance(stepper, Engine) and any(map(_computes, others)):
            return stepper.step(patience_s=0.0)  # nobody waits for another's grammar
        return stepper.step()

    def _drain(self) -> None:
        idle = not any(engine.has_work for engine in self._steppers)
        # Sequences that only wait (behind paused ones, say) still have deadlines to keep.
        watching = any(engine.has_sequences for engine in self._steppers)
        try:
            arrived = self._inbox.get(block=idle, timeout=_WATCH_S if watching else None)
            while True:
                self._apply(arrived)
                arrived = self._inbox.get_nowait()
        except Empty:
            return

    def _hear_of_file(self, done: FileDone) -> None:
        self._inbox.put(_Arrived(done, self._step))

    def _apply(self, arrived: _Arrived) -> None:
        if isinstance(arrived.command, SnapshotCommand | FileDone):
            self._apply_to_desk(arrived.command)
        elif isinstance(arrived.command, AdapterCommand):
            self._apply_to_adapters(arrived.command)
        else:
            self._apply_to_sequences(arrived)

    def _apply_to_sequences(self, arrived: _Arrived) -> None:
        match arrived.command:
            case Submit(request):
                self._engines[request.model].submit(request)
            case SubmitEmbedding(embedding):
                self._embedders[embedding.model].submit(embedding)
            case Cancel(sequence_id):
                for engine in self._steppers:
                    engine.cancel(sequence_id, arrived_in_step=arrived.step, step=self._step + 1)
            case Pause(sequence_id) | Unpause(sequence_id):
                paused = isinstance(arrived.command, Pause)
                for engine in self._engines.values():
                    engine.pause(sequence_id, paused=paused)
            case Flush(flush_id):
                for engine in self._engines.values():
                    engine.flush(flush_id)

    def _apply_to_desk(self, news: SnapshotCommand | FileDone) -> None:
        if self._desk is not None:
            for answer in self._desk.hear(news):
                self._outbox.put(answer)

    def _apply_to_adapters(self, command: AdapterCommand) -> None:
        adapters = self._engines[command.model].adapters
        if isinstance(command, UnloadAdapter):
            adapters.unload(command.digest)
        else:  # answered at once: what follows may end the process, and this was not to blame
            self._outbox.put([adapters.load(command.digest, command.path)])

    def _read(self) -> NoReturn:
        try:
            while True:
                self._inbox.put(_Arrived(self._pipe.recv(), self._step))
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


class _Loaded(NamedTuple):
    """What serves one model."""

    ready: ModelReady
    engine: Engine | None
    embedder: Embedder | None
    fingerprint: Fingerprint | None = None


Tell = Callable[[LoadProgress], None]


def load_models(boot: Boot, tell: Tell = lambda _: None) -> list[_Loaded]:
    """Load and warm all models; `tell` hears how far it is. Raises `ModelLoadError` or
    `ModelTooLarge`."""
    library.start()
    return [
        _load_decoder(boot, model, tell) if model.generates else _load_encoder(boot, model, tell)
        for model in boot.models
    ]


def _reading(tell: Tell) -> Callable[[float], None]:
    return lambda fraction: tell(LoadProgress(LoadPhase.WEIGHTS, fraction))


def _load_decoder(boot: Boot, model: ModelBoot, tell: Tell) -> _Loaded:
    started = time.monotonic()
    backend = LlamaBackend(model.backend, _reading(tell))
    tell(LoadProgress(LoadPhase.WARM_UP, 1.0))
    measured = model.warm_up
    if measured is None:
        measured = warm_up(
            backend, cores=boot.cores, threads=model.threads, budget_s=boot.warm_up_budget_s
        )
    backend.set_threads(measured.threads)
    backend.prepare_guides()
    engine = Engine(
        model.name,
        backend,
        shape=StepShape(measured.step_times if backend.can_trim else {}, backend.limits.slots),
        chunk_cap=model.chunk_cap,
        clock=time.monotonic,
        copy_costs=measured.copy_costs,
        saved_bytes=model.saved_bytes,
        step_times=measured.step_times,
        token_times=measured.token_times,
        policy=model.policy,
        token_target_s=model.token_target_s,
        adapter_wait_s=model.adapter_wait_s,
    )
    embedder = None
    if model.embedding is not None:
        embedder = _embedder(backend.model, model.embedding, measured.threads)
    limits = backend.limits
    ready = ModelReady(
        model.name,
        limits.slots,
        limits.slot_tokens,
        limits.batch_tokens,
        measured,
        time.monotonic() - started,
        embedder.limits if embedder is not None else None,
        model.embedding.pooling.value if model.embedding is not None else "",
    )
    return _Loaded(ready, engine, embedder, _fingerprint(backend))


def _fingerprint(backend: LlamaBackend) -> Fingerprint:
    """Without the digest of the model, which takes the frontend a while."""
    return Fingerprint(backend.architecture, "", backend.cache_types, version("llama-cpp-python"))


def _load_encoder(boot: Boot, model: ModelBoot, tell: Tell) -> _Loaded:
    """One that only embeds or ranks: its one context is made now."""
    started = time.monotonic()
    if model.embedding is None:
        raise ModelLoadError(f"{model.name} neither generates nor embeds")
    weights = load_model(model.backend.path, model.backend.placement, _reading(tell))
    tell(LoadProgress(LoadPhase.WARM_UP, 1.0))
    threads = model.threads or max(1, boot.cores - 1)
    reason = "as configured" if model.threads else "the frontends need a core"
    embedder = _embedder(weights, model.embedding, threads, now=True)
    try:
        embedder.warm_up()
    except DecodeError as error:
        problem = f"{model.name} cannot compute a first input (code {error.code})"
        raise ModelLoadError(problem) from error
    limits = embedder.limits
    ready = ModelReady(
        model.name,
        0,
        limits.input_tokens,
        limits.batch_tokens,
        WarmUp(threads, reason, {}),
        time.monotonic() - started,
        limits,
        model.embedding.pooling.value,
    )
    return _Loaded(ready, None, embedder)


def _embedder(
    weights: Any, settings: EmbeddingSettings, threads: int, *, now: bool = False
) -> Embedder:
    """An embedder whose context is made with its first request, or `now`."""
    backend = LlamaEmbedding(weights, replace(settings, threads=threads))
    if now:
        backend.open()
    return Embedder(settings.name, backend, pack_tokens=settings.pack_tokens, clock=time.monotonic)


def _die_with_parent() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(pipe_fd: int) -> None:
    """Serve the frontend at the other end of a socket pair."""
    _die_with_parent()
    # A terminal sends Ctrl-C to the whole group; the frontend drains first and then closes the
    # pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pipe: Connection[Any, Any] = Connection(pipe_fd)
    boot: Boot = pipe.recv()
    configure_logging("engine", level=boot.log_level, json=boot.log_json)
    try:
        loaded = load_models(boot, pipe.send)
    except (ModelLoadError, ModelTooLarge) as error:
        pipe.send(BootFailed(str(error)))
        return
    folder = SnapshotFolder(boot.snapshots)
    pipe.send(Ready(tuple(each.ready for each in loaded), library.system_info(), folder.use))
    engines = {each.ready.name: each.engine for each in loaded if each.engine is not None}
    embedders = {each.ready.name: each.embedder for each in loaded if each.embedder is not None}
    served = {
        each.ready.name: Served(each.engine, each.fingerprint, each.ready.slot_tokens)
        for each in loaded
        if each.engine is not None and each.fingerprint is not None
    }
    desk = partial(SnapshotDesk, served, folder)
    StepLoop(pipe, engines, embedders, stream_interval_s=boot.stream_interval_s, desk=desk).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
