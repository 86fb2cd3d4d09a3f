"""Tests of the engine client with real processes and the demo model."""

import asyncio
import os
import re
import shutil
import signal
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from inference_svc.engine.events import Delta, Event, Preempted, Resumed, Started
from inference_svc.engine.request import (
    DropCachedPrefixes,
    RestoreSnapshot,
    SaveSnapshot,
    SequenceRequest,
)
from inference_svc.engine_client.client import EngineClient, EngineState
from inference_svc.engine_client.local_engine import LocalEngine
from inference_svc.engine_client.messages import EngineConfig, LoadProgress
from inference_svc.engine_client.output_stream import OutputStream, ReaderLimits
from inference_svc.engine_client.queue_limits import QueueLimits
from inference_svc.engine_process.model_load import load
from inference_svc.llama.backend import BackendSettings
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.llama.weights import ModelLoadError
from inference_svc.models.file_identity import FileStamp
from inference_svc.models.sources import BUNDLED_PATH
from inference_svc.snapshots.store import FolderLimits
from svc_kit.errors import (
    AbortedByOperator,
    EngineRestarting,
    QueueFull,
    SlowReader,
)
from svc_kit.lifecycle import StartupError
from tests.support.processes import sleeping_process
from tests.support.sequences import make_request

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


def make_config(
    path: Path = BUNDLED_PATH,
    *,
    slots: int = 2,
    saved_bytes: int = 0,
    shared_cells: int | None = None,
) -> EngineConfig:
    """The demo model with few slots and a minimal warm-up."""
    backend = BackendSettings(
        path,
        slots=slots,
        context_tokens=512,
        batch_tokens=256,
        ubatch_tokens=128,
        threads=1,
        sampling_threads=1,
        shared_cells=shared_cells,
    )
    return EngineConfig(
        "demo",
        backend,
        chunk_cap=64,
        threads=1,
        cores=2,
        warm_up_budget_s=0.1,
        saved_bytes=saved_bytes,
    )


class EventLog(list[Event]):
    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def record(self, event: Event) -> None:
        self.append(event)
        self._changed.set()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Return once a condition holds; it is checked after each event."""
        while not condition():
            await self._changed.wait()
            self._changed.clear()


@asynccontextmanager
async def start_engine(
    config: EngineConfig | None = None,
    *,
    queue: QueueLimits | None = None,
    reader: ReaderLimits | None = None,
) -> AsyncIterator[tuple[EngineClient, EventLog, asyncio.Queue[EngineState]]]:
    """Start an engine; yields it with its events and its state changes."""
    events = EventLog()
    states: asyncio.Queue[EngineState] = asyncio.Queue()
    engine = EngineClient(
        "demo",
        LocalEngine(config or make_config()).spawn,
        queue or QueueLimits(4, 10_000, 1000),
        reader or ReaderLimits(1000, 60.0),
        on_event=events.record,
        on_state=states.put_nowait,
    )
    try:
        await engine.start()
        yield engine, events, states
    finally:
        await engine.close()


def _prompt() -> "array[int]":
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    tokens = vocabulary.tokenize(QUESTION, add_special=False, parse_special=True)
    vocabulary.close()
    return array("i", tokens)


PROMPT = _prompt()


def _submit(
    engine: EngineClient, request: SequenceRequest | None = None, name: str = "r"
) -> OutputStream:
    request = request or make_request(0, PROMPT, model="demo", max_tokens=30)
    request = replace(request, model="demo", request_id=name, project="default")
    return engine.submit([request])[0]


def _endless() -> SequenceRequest:
    return make_request(0, PROMPT, max_tokens=400, ignore_eos=True)


async def _text(generation: OutputStream) -> str:
    texts = []
    while batch := await generation.read():
        texts += [event.text for event in batch if isinstance(event, Delta)]
    return "".join(texts)


async def _first_delta(stream: OutputStream) -> None:
    while not any(isinstance(event, Delta) for event in await stream.read()):
        pass


async def _wait_for_state(states: asyncio.Queue[EngineState], state: EngineState) -> None:
    while await states.get() is not state:
        pass


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return state != "Z"


async def test_a_request_is_streamed_from_the_engine_process() -> None:
    """Closing the client ends the process."""
    async with start_engine() as (engine, _, _):
        pid = engine.pid

        assert await _text(_submit(engine)) == "The capital of France is Paris."
        assert engine.sequences.live == {}
    assert not _is_alive(pid)


def _huge_page_bytes(pid: int) -> int:
    """Bytes of a process that were advised to use huge pages."""
    mappings = re.findall(
        r"^Size: +(\d+) kB$.*?^VmFlags:([^\n]*)$",
        Path(f"/proc/{pid}/smaps").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    return sum(int(kib) << 10 for kib, flags in mappings if "hg" in flags.split())


@pytest.mark.skipif(
    "[madvise]" not in (HUGE_PAGES.read_text() if HUGE_PAGES.exists() else ""),
    reason="the kernel does not offer huge pages on request",
)
async def test_weights_and_kv_cache_use_huge_pages() -> None:
    """Like all large allocations of the engine."""
    async with start_engine() as (engine, _, _):
        huge_page_bytes = _huge_page_bytes(engine.pid)

    assert huge_page_bytes > BUNDLED_PATH.stat().st_size


async def test_an_engine_does_not_restart_with_another_file(tmp_path: Path) -> None:
    """It would serve it under the digest of the described file. It serves again once that file is
    back."""
    path, away = tmp_path / "model.gguf", tmp_path / "away.gguf"
    shutil.copy(BUNDLED_PATH, path)
    config = replace(make_config(path), stamps=(FileStamp.of(path),))
    async with start_engine(config) as (engine, _, states):
        path.rename(away)
        shutil.copy(BUNDLED_PATH, path)
        os.kill(engine.pid, signal.SIGKILL)
        await _wait_for_state(states, EngineState.RESTARTING)
        assert await states.get() is EngineState.RESTARTING  # it failed to start
        away.replace(path)
        await _wait_for_state(states, EngineState.SERVING)

        assert await _text(_submit(engine)) == "The capital of France is Paris."


def test_a_file_replaced_during_the_load_is_not_served(tmp_path: Path) -> None:
    """Reading a large file takes minutes."""
    path, new = tmp_path / "model.gguf", tmp_path / "new.gguf"
    shutil.copy(BUNDLED_PATH, path)
    shutil.copy(BUNDLED_PATH, new)
    config = replace(make_config(path), stamps=(FileStamp.of(path),))

    def replace_file(_: LoadProgress) -> None:
        if new.exists():
            new.replace(path)

    with pytest.raises(ModelLoadError, match="replaced or written to"):
        load(config, replace_file)


async def test_batch_work_is_preempted_by_interactive_work_and_resumed() -> None:
    """It counts as waiting meanwhile, and its stream is complete."""
    request = make_request(0, PROMPT, max_tokens=150, ignore_eos=True, priority=1)
    async with start_engine(make_config(slots=1, saved_bytes=100 << 20)) as (engine, events, _):
        undisturbed = await _text(_submit(engine, request))
        batch = _submit(engine, request)
        await events.wait_for(lambda: sum(isinstance(event, Started) for event in events) == 2)
        urgent = _submit(engine, replace(request, max_tokens=100, priority=3))
        await events.wait_for(lambda: any(isinstance(event, Preempted) for event in events))
        waiting = [live.stream for live in engine.sequences.live.values() if live.is_waiting]
        text, urgent_text = await asyncio.gather(_text(batch), _text(urgent))

        assert waiting == [batch]
        assert text == undisturbed
        assert undisturbed.startswith(urgent_text)
        assert sum(isinstance(event, Resumed) for event in events) == 1


async def test_a_flush_returns_the_dropped_tokens_or_fails_with_the_engine() -> None:
    """UNAVAILABLE if the engine ends before it answers."""
    async with start_engine() as (engine, _, _):
        await _text(_submit(engine))
        assert await engine.flush() > len(PROMPT)
        assert await engine.flush() == 0

        os.kill(engine.pid, signal.SIGSTOP)
        flushing = asyncio.create_task(engine.flush())
        await asyncio.sleep(0)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineRestarting):
            await flushing


async def test_an_encoder_continues_if_the_engine_is_killed_in_a_step() -> None:
    """The engine had stopped it, and the client says that it has ended."""
    with sleeping_process() as encoder:
        async with start_engine() as (engine, _, _):
            engine.on_process_exit = lambda: os.kill(encoder, signal.SIGCONT)
            _submit(engine, _endless())
            await engine.share_cores(encoder)
            await asyncio.to_thread(_stop_in_step, engine.pid, encoder)
            os.kill(engine.pid, signal.SIGKILL)
            await asyncio.to_thread(os.waitid, os.P_PID, encoder, os.WCONTINUED)


def _stop_in_step(engine: int, encoder: int) -> None:
    while True:
        os.waitid(os.P_PID, encoder, os.WSTOPPED)
        os.kill(engine, signal.SIGSTOP)
        os.waitid(os.P_PID, engine, os.WSTOPPED)
        if os.waitid(os.P_PID, encoder, os.WCONTINUED | os.WNOHANG) is None:
            return
        os.kill(engine, signal.SIGCONT)


async def test_a_saved_sequence_survives_a_crash_of_the_engine(tmp_path: Path) -> None:
    """The next process restores and continues it; commands pending at the crash fail as
    retryable."""
    folder = FolderLimits(tmp_path, max_bytes=100 << 20, max_files=9)
    config = replace(make_config(saved_bytes=100 << 20), snapshots=folder)
    request = make_request(0, PROMPT, max_tokens=60, ignore_eos=True)
    async with start_engine(config) as (engine, events, states):
        stream = _submit(engine, request)
        await _first_delta(stream)
        saved = await engine.snapshots.run(SaveSnapshot(0, "r", 0, "d1"))
        await _text(stream)
        tokens = [token for event in events if isinstance(event, Delta) for token in event.tokens]
        events.clear()
        os.kill(engine.pid, signal.SIGSTOP)
        saving = asyncio.create_task(engine.snapshots.run(SaveSnapshot(0, "r", 0, "d1")))
        await asyncio.sleep(0)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineRestarting):
            await saving
        with pytest.raises(EngineRestarting):
            await engine.snapshots.run(DropCachedPrefixes(0, ()))
        await _wait_for_state(states, EngineState.RESTARTING)
        await _wait_for_state(states, EngineState.SERVING)
        restored = await engine.snapshots.run(RestoreSnapshot(0, saved.snapshot_id, "d1"))
        output = restored.origin.tokens[len(PROMPT) :]
        await _text(_submit(engine, replace(request, resumed=output)))
        tail = [token for event in events if isinstance(event, Delta) for token in event.tokens]

        assert restored == saved
        assert engine.snapshots.use.num_files == 1
        assert [*output, *tail] == tokens


async def test_slots_share_their_cells_in_the_unified_layout() -> None:
    """Two of three requests run at once."""
    async with start_engine(make_config(shared_cells=512)) as (engine, _, _):
        streams = [_submit(engine, name=f"r{i}") for i in range(3)]
        texts = await asyncio.gather(*map(_text, streams))

        assert set(texts) == {"The capital of France is Paris."}
        assert engine.ready is not None
        assert (engine.ready.slot_tokens, engine.ready.num_cells) == (512, 512)
        assert engine.report is not None
        assert 0 < engine.report.num_used_cells <= 512


async def test_the_queue_is_limited_in_tokens() -> None:
    """Long prompts fill it sooner."""
    async with start_engine(queue=QueueLimits(100, len(PROMPT) + 3, 1000)) as (engine, events, _):
        running = [_submit(engine, _endless()) for _ in range(2)]
        for stream in running:
            await _first_delta(stream)
        running.append(_submit(engine))
        with pytest.raises(QueueFull) as failure:
            _submit(engine)

        assert failure.value.metadata["bound"] == "tokens"
        assert sum(isinstance(event, Started) for event in events) == 2
        for stream in running:
            stream.close()


async def test_a_stream_that_is_not_read_is_paused_and_then_fails() -> None:
    """With SLOW_READER. Its memory is bounded and other streams are not delayed."""
    async with start_engine(reader=ReaderLimits(20, 0.5)) as (engine, events, _):
        slow = _submit(engine, _endless(), "slow")
        quick = await _text(_submit(engine, name="quick"))
        await engine.wait_idle()

        assert quick == "The capital of France is Paris."
        produced = [e for e in events if isinstance(e, Delta) and e.sequence_id == 0]
        assert 20 <= len(produced) < 100
        with pytest.raises(SlowReader):
            await _text(slow)


async def test_a_paused_stream_continues_when_it_is_read() -> None:
    """No output is lost."""
    request = make_request(0, PROMPT, max_tokens=60, ignore_eos=True)
    async with start_engine(reader=ReaderLimits(10, 60.0)) as (engine, events, _):
        stream = _submit(engine, request)
        await events.wait_for(lambda: stream.is_paused)
        paused = await _text(stream)
        steady = await _text(_submit(engine, request))

        assert paused == steady


async def test_abort_ends_only_requests_of_the_project() -> None:
    """It is idempotent; ids of other projects look unknown."""
    async with start_engine() as (engine, _, _):
        stream = _submit(engine, _endless(), "mine")
        await _first_delta(stream)

        assert {item.request.request_id for item in engine.sequences.live.values()} == {"mine"}
        assert not engine.abort("mine", project="other")
        assert engine.abort("mine", project="default")
        with pytest.raises(AbortedByOperator):
            await _text(stream)
        await engine.wait_idle()
        assert not engine.abort("mine", project=None)


async def test_a_broken_model_file_fails_the_start(tmp_path: Path) -> None:
    """The engine is not restarted."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))

    with pytest.raises(StartupError, match=r"broken\.gguf"):
        async with start_engine(make_config(broken)):
            pass
