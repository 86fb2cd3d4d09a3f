"""The engine process and its supervision, with real processes and the demo model."""

import asyncio
import os
import re
import shutil
import signal
import sys
import textwrap
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from inference_svc.engine.events import Cancelled, Delta, Event, Preempted, Resumed, Started
from inference_svc.engine.request import (
    DropCachedPrefixes,
    RestoreSnapshot,
    SaveSnapshot,
    SequenceRequest,
)
from inference_svc.engine_client.client import EngineClient, EngineState
from inference_svc.engine_client.messages import EngineConfig, LoadProgress, ModelConfig
from inference_svc.engine_client.output_stream import OutputStream, ReaderLimits
from inference_svc.engine_client.queue_limits import QueueLimits
from inference_svc.engine_client.requests import Submission
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
from tests.support.sequences import a_request

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


def a_boot(
    path: Path = BUNDLED_PATH,
    *,
    slots: int = 2,
    saved_bytes: int = 0,
    shared_cells: int | None = None,
) -> EngineConfig:
    """The demo model with few slots and next to no warm-up."""
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
    model = ModelConfig("demo", backend, chunk_cap=64, threads=1, saved_bytes=saved_bytes)
    return EngineConfig(model, cores=2, log_level="info", log_json=True, warm_up_budget_s=0.1)


class Heard(list[Event]):
    """Every event of a worker, in order."""

    def __init__(self) -> None:
        super().__init__()
        self._news = asyncio.Event()

    def hear(self, event: Event) -> None:
        """Take an event."""
        self.append(event)
        self._news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition that events bring about."""
        while not holds():
            await self._news.wait()
            self._news.clear()


@asynccontextmanager
async def a_worker(
    boot: EngineConfig | None = None,
    *,
    queue: QueueLimits | None = None,
    reader: ReaderLimits | None = None,
) -> AsyncIterator[tuple[EngineClient, Heard, asyncio.Queue[EngineState]]]:
    """A started worker, every event it heard, and its state changes."""
    events = Heard()
    states: asyncio.Queue[EngineState] = asyncio.Queue()
    worker = EngineClient(
        boot or a_boot(),
        queue or QueueLimits(4, 10_000),
        reader or ReaderLimits(1000, 60.0),
        on_event=events.hear,
        on_state=states.put_nowait,
    )
    await worker.start()
    try:
        yield worker, events, states
    finally:
        await worker.close()


def _prompt() -> "array[int]":
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    tokens = vocabulary.tokenize(QUESTION, add_special=False, parse_special=True)
    vocabulary.close()
    return array("i", tokens)


PROMPT = _prompt()


def _ask(
    worker: EngineClient, request: SequenceRequest | None = None, name: str = "r"
) -> OutputStream:
    asked = request or a_request(0, PROMPT, model="demo", max_tokens=30)
    return worker.submit([replace(asked, model="demo")], Submission(name, "default", ""))[0]


def _endless() -> SequenceRequest:
    return a_request(0, PROMPT, max_tokens=400, ignore_eos=True)


async def _text(generation: OutputStream) -> str:
    return "".join(
        [
            event.text
            async for batch in generation.batches()
            for _, event in batch
            if isinstance(event, Delta)
        ]
    )


async def _first_delta(generation: OutputStream) -> None:
    async for batch in generation.batches():
        if any(isinstance(event, Delta) for _, event in batch):
            return


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return state != "Z"


async def test_a_stream_comes_out_of_the_engine_process() -> None:
    """Submit, read, done; the process ends with the worker."""
    async with a_worker() as (worker, _, _):
        pid = worker.pid

        assert await _text(_ask(worker)) == "The capital of France is Paris."
        assert worker.sequences.live == {}
    assert not _is_alive(pid)


def _asked_for_huge_pages(pid: int) -> int:
    """Bytes of a process that the kernel was asked to keep in huge pages."""
    mappings = re.findall(
        r"^Size: +(\d+) kB$.*?^VmFlags:([^\n]*)$",
        Path(f"/proc/{pid}/smaps").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    return sum(int(kib) << 10 for kib, flags in mappings if "hg" in flags.split())


@pytest.mark.skipif(
    "[madvise]" not in (HUGE_PAGES.read_text() if HUGE_PAGES.exists() else ""),
    reason="the kernel gives no huge pages on request",
)
async def test_weights_and_cells_lie_in_huge_pages() -> None:
    """Whatever the engine allocates in large blocks."""
    async with a_worker() as (worker, _, _):
        asked = _asked_for_huge_pages(worker.pid)

    assert asked > BUNDLED_PATH.stat().st_size


async def test_a_killed_engine_fails_streams_and_serves_again() -> None:
    """UNAVAILABLE with advice when to retry; the next request is served as soon as it has
    loaded."""
    async with a_worker() as (worker, _, states):
        stream = _ask(worker, _endless())
        await _first_delta(stream)
        old = worker.pid
        os.kill(old, signal.SIGKILL)
        with pytest.raises(EngineRestarting) as failure:
            await _text(stream)
        with pytest.raises(EngineRestarting) as refusal:
            _ask(worker)
        for awaited in (EngineState.RESTARTING, EngineState.SERVING):
            while await states.get() is not awaited:
                pass
        answer = await _text(_ask(worker))

        assert failure.value.retry_after is not None
        assert (failure.value.phase, refusal.value.phase) == ("running", None)
        assert answer == "The capital of France is Paris."
        assert (worker.restarts, worker.pid == old) == (1, False)


async def test_an_engine_does_not_come_back_with_another_file(tmp_path: Path) -> None:
    """It would answer under the digest of the one that was described; with that one back in its
    place it serves again."""
    path, away = tmp_path / "model.gguf", tmp_path / "away.gguf"
    shutil.copy(BUNDLED_PATH, path)
    boot = a_boot(path)
    boot = replace(boot, model=replace(boot.model, stamps=(FileStamp.of(path),)))
    async with a_worker(boot) as (worker, _, states):
        path.rename(away)
        shutil.copy(BUNDLED_PATH, path)
        os.kill(worker.pid, signal.SIGKILL)
        while await states.get() is not EngineState.RESTARTING:
            pass
        assert await states.get() is EngineState.RESTARTING  # it ended without having served
        away.replace(path)
        while await states.get() is not EngineState.SERVING:
            pass

        assert await _text(_ask(worker)) == "The capital of France is Paris."


def test_a_file_that_comes_while_it_is_read_is_not_served(tmp_path: Path) -> None:
    """Large ones take minutes to read."""
    path, new = tmp_path / "model.gguf", tmp_path / "new.gguf"
    shutil.copy(BUNDLED_PATH, path)
    shutil.copy(BUNDLED_PATH, new)
    boot = a_boot(path)
    boot = replace(boot, model=replace(boot.model, stamps=(FileStamp.of(path),)))

    def exchange(_: LoadProgress) -> None:
        if new.exists():
            new.replace(path)

    with pytest.raises(ModelLoadError, match="replaced or written to"):
        load(boot, exchange)


async def test_batch_work_gives_its_slot_to_interactive_work_and_goes_on() -> None:
    """Over the pipe: it counts as waiting meanwhile, and its stream misses nothing."""
    asked = a_request(0, PROMPT, max_tokens=150, ignore_eos=True, priority=1)
    async with a_worker(a_boot(slots=1, saved_bytes=100 << 20)) as (worker, heard, _):
        undisturbed = await _text(_ask(worker, asked))
        batch = _ask(worker, asked)
        await heard.until(lambda: sum(isinstance(event, Started) for event in heard) == 2)
        urgent = _ask(worker, replace(asked, max_tokens=100, priority=3))
        await heard.until(lambda: any(isinstance(event, Preempted) for event in heard))
        waiting = [live.generation for live in worker.sequences.live.values() if live.is_waiting]
        text, urgent_text = await asyncio.gather(_text(batch), _text(urgent))

        assert waiting == [batch]
        assert text == undisturbed
        assert undisturbed.startswith(urgent_text)
        assert sum(isinstance(event, Resumed) for event in heard) == 1


async def test_flushing_answers_with_the_tokens_and_fails_with_the_engine() -> None:
    """The tokens that went; UNAVAILABLE where the engine dies instead of answering."""
    async with a_worker() as (worker, _, _):
        await _text(_ask(worker))
        assert await worker.flush() > len(PROMPT)
        assert await worker.flush() == 0

        os.kill(worker.pid, signal.SIGSTOP)
        flushing = asyncio.create_task(worker.flush())
        await asyncio.sleep(0)
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(EngineRestarting):
            await flushing


async def test_a_saved_sequence_survives_the_death_of_its_engine(tmp_path: Path) -> None:
    """The next process restores it and says the rest; who waits for a file while the engine dies
    is told to come back."""
    folder = FolderLimits(tmp_path, max_bytes=100 << 20, max_files=9)
    boot = replace(a_boot(saved_bytes=100 << 20), snapshots=folder)
    asked = a_request(0, PROMPT, max_tokens=60, ignore_eos=True)
    async with a_worker(boot) as (worker, heard, states):
        stream = _ask(worker, asked)
        await _first_delta(stream)
        saved = await worker.snapshots.run(SaveSnapshot(0, "r", 0, "d1"))
        await _text(stream)
        whole = [token for event in heard if isinstance(event, Delta) for token in event.tokens]
        heard.clear()
        os.kill(worker.pid, signal.SIGSTOP)
        saving = asyncio.create_task(worker.snapshots.run(SaveSnapshot(0, "r", 0, "d1")))
        await asyncio.sleep(0)
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(EngineRestarting):
            await saving
        with pytest.raises(EngineRestarting):
            await worker.snapshots.run(DropCachedPrefixes(0, ()))
        while await states.get() is not EngineState.RESTARTING:
            pass
        while await states.get() is not EngineState.SERVING:
            pass
        restored = await worker.snapshots.run(RestoreSnapshot(0, saved.snapshot_id, "d1"))
        told = restored.origin.tokens[len(PROMPT) :]
        await _text(_ask(worker, replace(asked, resumed=told)))
        rest = [token for event in heard if isinstance(event, Delta) for token in event.tokens]

        assert restored == saved
        assert worker.snapshots.use.num_files == 1
        assert [*told, *rest] == whole


async def test_the_engine_dies_with_its_frontend(tmp_path: Path) -> None:
    """SIGKILL of the frontend leaves no engine behind."""
    script = tmp_path / "frontend.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio
            from tests.service.inference_svc.engine_client.test_client import a_worker

            async def main():
                async with a_worker() as (worker, _, _):
                    print(worker.pid, flush=True)
                    await asyncio.Event().wait()

            asyncio.run(main())
            """
        )
    )
    frontend = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert frontend.stdout is not None
    pid = int(await frontend.stdout.readline())
    watch = os.pidfd_open(pid)
    frontend.kill()
    await frontend.wait()

    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(watch, gone.set)
    await asyncio.wait_for(gone.wait(), 5)
    asyncio.get_running_loop().remove_reader(watch)
    os.close(watch)


async def test_a_reader_that_goes_away_frees_the_slot_at_the_next_step() -> None:
    """The engine reports the step of the cancel and the step that freed the slot."""
    async with a_worker() as (worker, events, _):
        stream = _ask(worker, _endless())
        await _first_delta(stream)
        stream.close()
        await worker.wait_idle()

        (cancelled,) = [event for event in events if isinstance(event, Cancelled)]
        assert cancelled.phase == "decode"
        assert cancelled.freed_step - cancelled.cancel_step <= 1


async def test_two_streams_share_steps() -> None:
    """Each runs beside the other: their tokens alternate."""
    async with a_worker() as (worker, events, _):
        await asyncio.gather(_text(_ask(worker, _endless())), _text(_ask(worker, _endless())))

        order = [event.sequence_id for event in events if isinstance(event, Delta)]
        switches = sum(a != b for a, b in pairwise(order))
        assert switches > 300


async def test_slots_may_share_their_cells() -> None:
    """A whole engine process in the unified layout: two that run, and what they hold."""
    async with a_worker(a_boot(shared_cells=512)) as (worker, _, _):
        quick = [_ask(worker, name=f"r{i}") for i in range(3)]
        texts = await asyncio.gather(*map(_text, quick))

        assert set(texts) == {"The capital of France is Paris."}
        assert worker.ready is not None
        assert (worker.ready.slot_tokens, worker.ready.num_cells) == (512, 512)
        assert worker.report is not None
        assert 0 < worker.report.num_used_cells <= 512


async def test_the_queue_is_bounded_in_requests() -> None:
    """What would wait too long is refused with the depth, the limit and when to retry."""
    async with a_worker(queue=QueueLimits(1, 10_000)) as (worker, _, _):
        streams = [_ask(worker, _endless()) for _ in range(3)]
        with pytest.raises(QueueFull) as failure:
            _ask(worker)

        assert failure.value.metadata == {"bound": "requests", "depth": "2", "limit": "1"}
        assert failure.value.retry_after is not None
        for stream in streams:
            stream.close()


async def test_the_queue_is_bounded_in_tokens() -> None:
    """Long prompts fill it sooner."""
    async with a_worker(queue=QueueLimits(100, len(PROMPT) + 3)) as (worker, events, _):
        running = [_ask(worker, _endless()) for _ in range(2)]
        for stream in running:
            await _first_delta(stream)
        running.append(_ask(worker))
        with pytest.raises(QueueFull) as failure:
            _ask(worker)

        assert failure.value.metadata["bound"] == "tokens"
        assert sum(isinstance(event, Started) for event in events) == 2
        for stream in running:
            stream.close()


async def test_a_reader_that_stops_is_paused_and_then_dropped() -> None:
    """Memory stays bounded, nobody else slows down, and the stream ends with SLOW_READER."""
    async with a_worker(reader=ReaderLimits(20, 0.5)) as (worker, events, _):
        slow = _ask(worker, _endless(), "slow")
        quick = await _text(_ask(worker, name="quick"))
        await worker.wait_idle()

        assert quick == "The capital of France is Paris."
        produced = [e for e in events if isinstance(e, Delta) and e.sequence_id == 0]
        assert 20 <= len(produced) < 100
        with pytest.raises(SlowReader):
            await _text(slow)


async def test_a_paused_stream_goes_on_when_its_reader_does() -> None:
    """Nothing is lost by the pause."""
    request = a_request(0, PROMPT, max_tokens=60, ignore_eos=True)
    async with a_worker(reader=ReaderLimits(10, 60.0)) as (worker, events, _):
        stream = _ask(worker, request)
        await events.until(lambda: stream.is_paused)
        paused = await _text(stream)
        steady = await _text(_ask(worker, request))

        assert paused == steady


async def test_abort_ends_a_request_of_its_project_only() -> None:
    """Idempotent; another project's ids look unknown."""
    async with a_worker() as (worker, _, _):
        stream = _ask(worker, _endless(), "mine")
        await _first_delta(stream)

        assert {item.request.request_id for item in worker.sequences.live.values()} == {"mine"}
        assert not worker.abort("mine", project="other")
        assert worker.abort("mine", project="default")
        with pytest.raises(AbortedByOperator):
            await _text(stream)
        await worker.wait_idle()
        assert not worker.abort("mine", project=None)


async def test_a_broken_model_ends_the_start_with_one_line(tmp_path: Path) -> None:
    """No restart loop over a file that cannot be loaded."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))

    with pytest.raises(StartupError, match=r"broken\.gguf"):
        async with a_worker(a_boot(broken)):
            pass
