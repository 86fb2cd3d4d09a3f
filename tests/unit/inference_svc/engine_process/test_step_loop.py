"""How the step thread's time is shared between generation and embeddings."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.embedding_request import SubmitEmbedding
from inference_svc.engine.events import Delta, Event, Failed, Flushed
from inference_svc.engine.fake import FakeBackend
from inference_svc.engine.request import Command, Flush, Submit
from inference_svc.engine_client.messages import DeviceMemoryReport
from inference_svc.engine_process.step_loop import StepLoop, _ReceivedCommand
from inference_svc.llama.engine_memory import EngineMemory
from inference_svc.models.placement import Placement
from tests.support.sequences import EngineBench, ManualClock, a_request


class Worker:
    """An engine or embedder whose every step takes the same time."""

    def __init__(self, clock: ManualClock, step_s: float) -> None:
        self.has_work = self.has_sequences = True
        self.has_events = False
        self.num_steps = 0
        self._clock = clock
        self._step_s = step_s

    def step(self) -> list[Event]:
        """One step."""
        self.num_steps += 1
        self._clock.now += self._step_s
        return []


def a_loop(chat_s: float, embedding_s: float) -> tuple[StepLoop, Worker, Worker]:
    """A loop over a model that chats and embeds."""
    clock = ManualClock()
    chat, embedding = Worker(clock, chat_s), Worker(clock, embedding_s)
    loop = StepLoop(cast(Any, None), cast(Any, chat), cast(Any, embedding), clock)
    return loop, chat, embedding


@pytest.mark.parametrize(("chat_s", "embedding_s"), [(0.001, 0.02), (0.5, 0.02), (0.01, 0.01)])
def test_both_sides_get_the_same_time(chat_s: float, embedding_s: float) -> None:
    """Short decode steps come twenty to one dear embedding step, and the other way round."""
    loop, chat, embedding = a_loop(chat_s, embedding_s)
    for _ in range(2000):
        loop.make_turn()

    chatting, embedded = chat.num_steps * chat_s, embedding.num_steps * embedding_s
    assert chatting == pytest.approx(embedded, abs=max(chat_s, embedding_s) * 1.01)


def test_one_side_alone_has_all_the_time() -> None:
    """Without work on the other side nothing is held back, and news of it still go out."""
    loop, chat, embedding = a_loop(0.001, 0.02)
    chat.has_work = chat.has_sequences = False
    for _ in range(10):
        loop.make_turn()
    chat.has_events = True
    loop.make_turn()

    assert (embedding.num_steps, chat.num_steps) == (11, 1)


def test_a_sequence_that_only_waits_takes_no_turns() -> None:
    """A paused stream keeps its deadlines, and embeddings go on at full speed."""
    loop, chat, embedding = a_loop(0.0, 0.02)
    chat.has_work = False
    for _ in range(50):
        loop.make_turn()

    assert (embedding.num_steps, chat.num_steps) == (50, 50)


def test_what_was_taken_of_gpus_is_told_before_the_answer_to_what_took_it() -> None:
    """A context for embeddings is made by the first request: whoever has the answer can read what
    the engine holds."""
    free = {"CUDA0": 100}
    memory = EngineMemory(Placement(), lambda only: dict(free))
    answer = Flushed("m", 1, num_tokens=7)

    class Embedding(Worker):
        def step(self) -> list[Event]:
            with memory.taking():
                free["CUDA0"] = 40
            return [answer]

    clock = ManualClock()
    embedding = cast(Any, Embedding(clock, 0.02))
    loop = StepLoop(cast(Any, None), None, embedding, clock, memory=memory)
    loop.make_turn()
    loop.make_turn()

    assert loop._outbox.take() == [DeviceMemoryReport({"CUDA0": 60}), [answer, answer]]


@pytest.mark.parametrize("is_busy", [True, False])
def test_nobody_waits_for_the_grammar_of_another(*, is_busy: bool) -> None:
    """The loop waits for it only where there is nothing else to do, and takes no turn for it."""
    guided = EngineBench(FakeBackend(builds_after=30))
    guided.submit(a_request(constraint=Constraint("a?b", "constraint")))
    guided.step()
    guide = guided.backend.guides[0]
    guide.waits.clear()
    embedding = Worker(ManualClock(), 0.02)
    embedding.has_work = embedding.has_sequences = is_busy
    loop = StepLoop(cast(Any, None), guided.engine, cast(Any, embedding), ManualClock())
    for _ in range(20):
        loop.make_turn()

    assert len(guide.waits) == 20
    assert all(wait == 0 for wait in guide.waits) == is_busy
    assert embedding.num_steps == (20 if is_busy else 0)
    for _ in range(20):
        loop.make_turn()
    assert not guided.engine.has_sequences


def test_commands_are_taken_and_news_told_between_the_calls_of_a_step() -> None:
    """A token is on its way before the prompt behind it is computed, and who comes meanwhile is
    computed with that prompt."""
    backend = FakeBackend()
    bench = EngineBench(backend)
    bench.submit(a_request(0, max_tokens=50))
    bench.step()
    loop = StepLoop(cast(Any, None), bench.engine, None, ManualClock())
    told: list[tuple[int, ...]] = []

    def hear(events: list[Event]) -> None:
        told.append(tuple(event.sequence_id for event in events if isinstance(event, Delta)))
        if len(told) == 1:
            loop._inbox.put(_ReceivedCommand(Submit(a_request(1, max_tokens=50)), 1))

    loop._outbox = cast(Any, SimpleNamespace(put=hear))
    loop.make_turn()

    assert told[:2] == [(0,), (1,)]
    assert [set(batch.slots.tolist()) for batch in backend.batches[-2:]] == [{0}, {1}]


def _hearing(loop: StepLoop, answer: Callable[[list[Event]], Command | None]) -> list[Event]:
    """What the loop tells, with a command that comes in while it does."""
    told: list[Event] = []

    def hear(events: list[Event]) -> None:
        told.extend(events)
        if (command := answer(events)) is not None:
            loop._inbox.put(_ReceivedCommand(command, 1))

    loop._outbox = cast(Any, SimpleNamespace(put=hear))
    return told


def _turn(loop: StepLoop) -> None:
    """One turn, as the thread makes it; waiting for a command that never comes fails the test."""
    inbox = loop._inbox

    def get(*, block: bool = True, timeout: float | None = None) -> _ReceivedCommand:
        assert not block or timeout is not None or not inbox.empty(), "it waits for ever"
        return inbox.get(block=block, timeout=timeout)

    loop._inbox = cast(Any, SimpleNamespace(get=get, get_nowait=inbox.get_nowait, put=inbox.put))
    loop._drain()
    loop._inbox = inbox
    loop.make_turn()


@pytest.mark.parametrize(
    "command", [Flush(2), Submit(a_request(2, range(10_000)))], ids=["flush", "refused"]
)
def test_what_a_command_leaves_behind_at_the_end_of_a_step_is_told(command: Command) -> None:
    """Though nothing is left to compute, and no other command comes."""
    loop = StepLoop(cast(Any, None), EngineBench().engine, None, ManualClock())
    first = [True]
    told = _hearing(loop, lambda _: command if first and first.pop() else None)
    loop._inbox.put(_ReceivedCommand(Flush(1), 0))
    _turn(loop)
    _turn(loop)

    answers = [event for event in told if isinstance(event, Flushed | Failed)]
    assert len(answers) == 2


def test_embeddings_that_come_in_a_step_wait_for_their_turn() -> None:
    """A client that sends the next one at once has half of the time and no more."""

    class Embedding(Worker):
        has_work = has_sequences = False

        def submit(self, _: object) -> None:
            self.has_work = self.has_sequences = True

        def step(self) -> list[Event]:
            self.has_work = self.has_sequences = False
            return super().step()

    clock = ManualClock()
    bench = EngineBench()
    bench.submit(a_request(max_tokens=500, ignore_eos=True))
    bench.step()
    embedding = Embedding(clock, 1.0)
    embedding.has_work = embedding.has_sequences = False
    loop = StepLoop(cast(Any, None), bench.engine, cast(Any, embedding), clock)

    def answer(_: list[Event]) -> Command | None:
        clock.now += 0.01  # what a decode call takes
        return None if embedding.has_work else SubmitEmbedding(cast(Any, None))

    _hearing(loop, answer)
    for _ in range(50):
        _turn(loop)

    assert embedding.num_steps == 1
