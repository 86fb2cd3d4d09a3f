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
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, NoReturn

from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Event
from inference_svc.engine.request import Cancel, Command, Flush, Pause, Submit, Unpause
from inference_svc.engine.shape import StepShape
from inference_svc.llama import library
from inference_svc.llama.backend import LlamaBackend, ModelLoadError
from inference_svc.llama.warmup import warm_up
from inference_svc.runtime.messages import Boot, BootFailed, ModelBoot, ModelReady, Ready
from svc_kit.telemetry import configure_logging

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_WATCH_S = 0.05


class _Arrived(NamedTuple):
    """A command, and the step that ran when it came in."""

    command: Command
    step: int


class StepLoop:
    """Drain commands, then let each model with work make a step; sleep when there is none.

    The step thread never blocks on the pipe: two other threads do.
    """

    def __init__(self, pipe: "Connection[Any, Any]", engines: dict[str, Engine]) -> None:
        self._pipe = pipe
        self._engines = engines
        self._inbox: SimpleQueue[_Arrived] = SimpleQueue()
        self._outbox: SimpleQueue[list[Event]] = SimpleQueue()
        self._step = 0

    def run(self) -> NoReturn:
        """Serve until the pipe closes."""
        threading.Thread(target=self._read, name="commands", daemon=True).start()
        threading.Thread(target=self._write, name="events", daemon=True).start()
        while True:
            self._drain()
            self._step += 1
            for engine in self._engines.values():
                if engine.has_sequences or engine.has_news:
                    events = engine.step()
                    if events:
                        self._outbox.put(events)

    def _drain(self) -> None:
        engines = self._engines.values()
        idle = not any(engine.has_work for engine in engines)
        # Sequences that only wait (behind paused ones, say) still have deadlines to keep.
        watching = any(engine.has_sequences for engine in engines)
        try:
            arrived = self._inbox.get(block=idle, timeout=_WATCH_S if watching else None)
            while True:
                self._apply(arrived)
                arrived = self._inbox.get_nowait()
        except Empty:
            return

    def _apply(self, arrived: _Arrived) -> None:
        match arrived.command:
            case Submit(request):
                self._engines[request.model].submit(request)
            case Cancel(sequence_id):
                for engine in self._engines.values():
                    engine.cancel(sequence_id, arrived_in_step=arrived.step, step=self._step + 1)
            case Pause(sequence_id) | Unpause(sequence_id):
                paused = isinstance(arrived.command, Pause)
                for engine in self._engines.values():
                    engine.pause(sequence_id, paused=paused)
            case Flush(flush_id):
                for engine in self._engines.values():
                    engine.flush(flush_id)

    def _read(self) -> NoReturn:
        try:
            while True:
                self._inbox.put(_Arrived(self._pipe.recv(), self._step))
        except (EOFError, OSError):
            os._exit(0)

    def _write(self) -> NoReturn:
        try:
            while True:
                self._pipe.send(self._outbox.get())
        except OSError:
            os._exit(0)


def _load(boot: Boot) -> tuple[dict[str, Engine], Ready]:
    library.start()
    engines: dict[str, Engine] = {}
    ready: list[ModelReady] = []
    for model in boot.models:
        engines[model.name], description = _load_model(boot, model)
        ready.append(description)
    return engines, Ready(tuple(ready), library.system_info())


def _load_model(boot: Boot, model: ModelBoot) -> tuple[Engine, ModelReady]:
    started = time.monotonic()
    backend = LlamaBackend(model.backend)
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
        policy=model.policy,
        token_target_s=model.token_target_s,
    )
    limits = backend.limits
    return engine, ModelReady(
        model.name,
        limits.slots,
        limits.slot_tokens,
        limits.batch_tokens,
        measured,
        time.monotonic() - started,
    )


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
        engines, ready = _load(boot)
    except ModelLoadError as error:
        pipe.send(BootFailed(str(error)))
        return
    pipe.send(ready)
    StepLoop(pipe, engines).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
