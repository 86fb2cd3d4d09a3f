"""The client of an encoder process: a queue that is fair between projects, and restarts.

One picture or sound is encoded at a time, so that a crash costs only the one that caused it: after
a second crash it is refused.
"""

import asyncio
import logging
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, Protocol

from inference_svc.engine_client.process import ChildProcess, SupervisedProcess
from inference_svc.machine import resident_bytes
from inference_svc.media.encoder_messages import (
    EncodeDone,
    EncodeFailed,
    EncoderConfig,
    EncodeRequest,
    EncoderMessage,
    EncoderReady,
)
from inference_svc.media.model import DecodedMedia, MediaChunk
from svc_kit.errors import (
    DeadlineExpired,
    DomainError,
    Draining,
    EngineRestarting,
    InvalidField,
    StorageFailed,
)
from svc_kit.fairness import FairTurns
from svc_kit.queue_share import QueueEntry, check_queue

log = logging.getLogger(__name__)
_ENCODER = "inference_svc.media.encoder_main"
_MAX_CRASHES: Final = 2  # the first may have another cause, such as a lack of memory
_REMEMBERED_CRASHES: Final = 256


@dataclass(frozen=True, slots=True)
class EncoderLimits:
    """Limits of an encoder: how many pictures and sounds may wait, and how long one may take."""

    queued: int = 256
    timeout_s: float = 600.0


@dataclass(slots=True)
class EncoderStats:
    """What an encoder has done: encoded pictures and sounds, the seconds they took, and crashes."""

    encoded: int = 0
    seconds: float = 0.0
    crashes: int = 0


class CoreOwner(Protocol):
    """An engine that computes on the encoder's cores."""

    async def share_cores(self, encoder_pid: int) -> None:
        """Return once it leaves cores to the encoder, whose process it may stop at times."""

    def reclaim_cores(self) -> None:
        """Let it use all cores again."""


@dataclass(eq=False, slots=True)
class _Job:
    request: EncodeRequest
    project: str
    field: str
    done: asyncio.Future[tuple[MediaChunk, ...]]


class Encoder:
    """The encoder process of one model. Call all methods on the event loop.

    `ready` describes the loaded projector, None before `start`. If it competes for cores, `engine`
    is asked for them before each picture or sound: encoding that starts during a step delays it
    several times over.
    """

    def __init__(self, config: EncoderConfig, limits: EncoderLimits) -> None:
        self.ready: EncoderReady | None = None
        self.stats = EncoderStats()
        self._config = config
        self._limits = limits
        self._ids = count()
        self._process = SupervisedProcess[EncoderMessage, EncodeRequest](
            "the encoder",
            config.name,
            partial(ChildProcess, _ENCODER, config),
            early_exit="it ended while it encoded a picture or sound",
            on_message=self._on_message,
            on_down=self._on_down,
        )
        self._is_killed = False
        self._closed_with: DomainError | None = None
        self._restart_pause_s = 0.0
        self._waiting: defaultdict[str, deque[_Job]] = defaultdict(deque)
        self._turns: FairTurns[str] = FairTurns()
        self._running: _Job | None = None
        self._sent_at = 0.0
        self._deadline: asyncio.TimerHandle | None = None
        self._crashes: Counter[bytes] = Counter()
        self.engine: CoreOwner | None = None
        self._asking: asyncio.Task[None] | None = None

    # --- lifecycle --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the projector and try it. Raises `StartupError` with the reason of a failure."""
        await self._process.start()

    async def close(self, error: DomainError | None = None) -> None:
        """End the process. Waiting and new requests fail with `error` (default: DRAINING)."""
        if self._closed_with is None:
            self._closed_with = error or Draining()
        if self._asking is not None:
            self._asking.cancel()
        self._fail_all(self._closed_with)
        await self._process.close()

    def resume(self) -> None:
        """Let the process continue, which a killed engine may have left stopped."""
        self._process.resume()

    @property
    def memory_bytes(self) -> int:
        """The memory of the process; 0 while it is down."""
        return resident_bytes(self.pid) if self.pid else 0

    @property
    def pid(self) -> int:
        """The process id; 0 while the process is down."""
        return self._process.pid

    @property
    def num_waiting(self) -> int:
        """Pictures and sounds that wait, without the one that is encoded."""
        return sum(map(len, self._waiting.values()))

    # --- requests ---------------------------------------------------------------------------------

    async def encode(
        self, media: DecodedMedia, digest: bytes, path: Path | None, *, project: str, field: str
    ) -> tuple[MediaChunk, ...]:
        """Encode a picture or a sound with its digest, and write its vectors to a new file; without
        a path, only count its tokens.

        Raises:
            InvalidField: this picture or sound cannot be encoded.
            DeadlineExpired: its encoding took longer than the limit.
            QueueFull: too many wait.
            EngineRestarting: the process cannot start again at the moment.
            StorageFailed: its vectors cannot be written.
        """
        if self._closed_with is not None:
            raise self._closed_with
        if self._crashes.get(digest, 0) >= _MAX_CRASHES:
            raise _refusal(field)
        if self._restart_pause_s:
            raise EngineRestarting(retry_after=self._restart_pause_s)
        check_queue(
            "pictures and sounds",
            self._limits.queued,
            (QueueEntry(owner, 0, len(jobs)) for owner, jobs in self._waiting.items()),
            QueueEntry(project),
            depth=self.num_waiting + 1,
        )
        done = asyncio.get_running_loop().create_future()
        job = _Job(EncodeRequest(next(self._ids), media, digest, path), project, field, done)
        self._waiting[project].append(job)
        self._send_next()
        try:
            return await job.done
        finally:
            self._remove_waiting(job)

    def _remove_waiting(self, job: _Job) -> None:
        """Drop a request that has no caller any more; one that is encoded goes on."""
        if job in self._waiting.get(job.project, ()):
            self._waiting[job.project].remove(job)
            self._remove_idle(job.project)

    def _remove_idle(self, project: str) -> None:
        if not self._waiting[project]:
            del self._waiting[project]

    def _send_next(self) -> None:
        if not self._can_send or (self._asking is not None and not self._asking.done()):
            return
        if (engine := self._sharing_engine) is None:
            self._send()
        else:
            self._asking = asyncio.create_task(self._send_after_step(engine))

    async def _send_after_step(self, engine: CoreOwner) -> None:
        await engine.share_cores(self.pid)
        if self._can_send:
            self._send()
        else:
            engine.reclaim_cores()

    @property
    def _can_send(self) -> bool:
        is_free = self._process.is_up and not self._is_killed and self._running is None
        return is_free and bool(self._waiting)

    @property
    def _sharing_engine(self) -> CoreOwner | None:
        """The engine that computes on the same cores."""
        return self.engine if self._config.competes_for_cores else None

    def _send(self) -> None:
        project = self._turns.next(self._waiting)
        self._running = job = self._waiting[project].popleft()
        self._remove_idle(project)
        self._sent_at = time.monotonic()
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._limits.timeout_s, self._on_timeout)
        self._process.send(job.request)

    def _on_timeout(self) -> None:
        log.error("%s: a picture or sound took too long to encode", self._config.name)
        self._is_killed = True
        self._process.kill()

    def _end_running(self) -> _Job | None:
        job, self._running = self._running, None
        if self._deadline is not None:
            self._deadline.cancel()
        if job is not None:
            self._turns.charge(job.project, time.monotonic() - self._sent_at)
            if (engine := self._sharing_engine) is not None:
                engine.reclaim_cores()
        return job

    def _fail_all(self, error: DomainError) -> None:
        running = [] if (job := self._end_running()) is None else [job]
        waiting = [job for jobs in self._waiting.values() for job in jobs]
        for job in (*running, *waiting):
            _fail(job, error)

    # --- process ----------------------------------------------------------------------------------

    def _on_message(self, message: EncoderMessage) -> None:
        if isinstance(message, EncoderReady):
            self.ready = message
            self._restart_pause_s = 0.0
            self._process.mark_up()
        else:
            self._on_answer(message)
        self._send_next()

    def _on_answer(self, answer: EncodeDone | EncodeFailed) -> None:
        job = self._end_running()
        if job is None:
            return
        if isinstance(answer, EncodeDone):
            self._crashes.pop(job.request.digest, None)  # those before it had another cause
            self.stats.encoded += job.request.path is not None
            self.stats.seconds += answer.seconds
            if job.done.done():  # the caller has left
                _delete_file(job)
            else:
                job.done.set_result(answer.chunks)
        elif answer.is_disk:
            _fail(job, StorageFailed(problem=answer.problem))
        else:
            _fail(job, InvalidField(field=job.field, problem=answer.problem))

    def _on_down(self, was_up: bool, pause_s: float) -> None:
        if not was_up:
            self._restart_pause_s = pause_s
            self._fail_all(EngineRestarting(retry_after=pause_s))
        self.stats.crashes += 1
        if (job := self._end_running()) is not None:
            self._blame(job)
        self._is_killed = False

    def _blame(self, job: _Job) -> None:
        if self._is_killed and self._sharing_engine is not None:  # perhaps it had little time
            _fail(job, DeadlineExpired(phase="encode"))
            return
        digest = job.request.digest
        if len(self._crashes) >= _REMEMBERED_CRASHES:
            self._crashes.clear()
        self._crashes[digest] += 1
        _delete_file(job)
        if self._crashes[digest] >= _MAX_CRASHES:
            _fail(job, _refusal(job.field))
        elif not job.done.done():
            self._waiting[job.project].appendleft(job)


def _refusal(field: str) -> InvalidField:
    return InvalidField(field=field, problem="the model's projector cannot encode it")


def _fail(job: _Job, error: DomainError) -> None:
    _delete_file(job)
    if not job.done.done():
        job.done.set_exception(error)


def _delete_file(job: _Job) -> None:
    if job.request.path is not None:
        job.request.path.unlink(missing_ok=True)
