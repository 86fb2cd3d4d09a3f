"""How the step thread shares its time between generation and embeddings, and applies commands."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.embedding_request import SubmitEmbedding
from inference_svc.engine.events import Delta, Event, Failed, Flushed
from inference_svc.engine.request import ArchivePrefixes, Command, Flush, Submit
from inference_svc.engine_client.messages import DeviceMemoryReport, SnapshotDone
from inference_svc.engine_process.step_loop import StepLoop, _ReceivedCommand
from inference_svc.llama.engine_memory import EngineMemory
from inference_svc.models.placement import Placement
from tests.support.fake_backend import FakeBackend
from tests.support.sequences import EngineBench, ManualClock, make_request


class FakeStepper:
    """An engine or embedder whose steps all take the same time."""

    def __init__(self, clock: ManualClock, step_s: float, *, busy: bool = True) -> None:
        self.has_work = self.has_sequences = busy
        self.has_events = False
        self.num_steps = 0
        self._clock = clock
        self._step_s = step_s

    def step(self) -> list[Event]:
        self.num_steps += 1
        self._clock.now += self._step_s
        return []


def make_loop(engine: Any, embedder: Any = None, clock: ManualClock | None = None) -> StepLoop:
    """A loop without a pipe."""
    return StepLoop(cast(Any, None), engine, embedder, clock or ManualClock())


def make_busy_loop(chat_s: float, embedding_s: float) -> tuple[StepLoop, FakeStepper, FakeStepper]:
    """A loop over a model that chats and embeds, with work for both."""
    clock = ManualClock()
    chat, embedding = FakeStepper(clock, chat_s), FakeStepper(clock, embedding_s)
    return make_loop(chat, embedding, clock), chat, embedding


def run_turns(loop: StepLoop, count: int) -> None:
    """Run turns without receiving commands."""
    for _ in range(count):
        loop.run_turn()


@pytest.mark.parametrize(("chat_s", "embedding_s"), [(0.001, 0.02), (0.5, 0.02), (0.01, 0.01)])
def test_both_sides_get_the_same_time(chat_s: float, embedding_s: float) -> None:
    """Twenty short decode steps run per long embedding step, and vice versa."""
    loop, chat, embedding = make_busy_loop(chat_s, embedding_s)
    run_turns(loop, 2000)

    chat_total, embedding_total = chat.num_steps * chat_s, embedding.num_steps * embedding_s
    assert chat_total == pytest.approx(embedding_total, abs=max(chat_s, embedding_s) * 1.01)


def test_one_side_alone_gets_all_the_time() -> None:
    """If the other side has no work, its events are still emitted."""
    loop, chat, embedding = make_busy_loop(0.001, 0.02)
    chat.has_work = chat.has_sequences = False
    run_turns(loop, 10)
    chat.has_events = True
    run_turns(loop, 1)

    assert (embedding.num_steps, chat.num_steps) == (11, 1)


def test_a_waiting_sequence_takes_no_turns() -> None:
    """The deadlines of a paused stream are checked while embeddings run at full speed."""
    loop, chat, embedding = make_busy_loop(0.0, 0.02)
    chat.has_work = False
    run_turns(loop, 50)

    assert (embedding.num_steps, chat.num_steps) == (50, 50)


def test_a_model_without_a_prefix_cache_has_nothing_to_archive() -> None:
    """The command is answered at once."""
    loop = make_loop(None, FakeStepper(ManualClock(), 0.0))
    loop._apply(_ReceivedCommand(ArchivePrefixes(3), 0))

    assert loop._outbox.get() == [SnapshotDone(3, 0, None)]


def test_gpu_memory_is_reported_before_the_result_of_the_request_that_allocated_it() -> None:
    """The first embedding request creates a context; its result follows the new memory usage."""
    free = {"CUDA0": 100}
    memory = EngineMemory(Placement(), lambda only: dict(free))
    result = Flushed(1, num_tokens=7)

    class Embedder(FakeStepper):
        def step(self) -> list[Event]:
            with memory.tracking():
                free["CUDA0"] = 40
            return [result]

    clock = ManualClock()
    embedder = cast(Any, Embedder(clock, 0.02))
    loop = StepLoop(cast(Any, None), None, embedder, clock, memory=memory)
    run_turns(loop, 2)

    assert loop._outbox.get() == [DeviceMemoryReport({"CUDA0": 60}), [result, result]]


@pytest.mark.parametrize("is_busy", [True, False])
def test_embeddings_do_not_wait_for_the_grammar_of_another_request(*, is_busy: bool) -> None:
    """The loop waits for a grammar only if there is no other work, and does not count it as a
    turn."""
    guided = EngineBench(FakeBackend(builds_after=30))
    guided.submit(make_request(constraint=Constraint("a?b", "constraint")))
    guided.step()
    guide = guided.backend.guides[0]
    guide.waits.clear()
    embedding = FakeStepper(ManualClock(), 0.02, busy=is_busy)
    loop = make_loop(guided.engine, embedding)
    run_turns(loop, 20)

    assert len(guide.waits) == 20
    assert all(wait == 0 for wait in guide.waits) == is_busy
    assert embedding.num_steps == (20 if is_busy else 0)
    run_turns(loop, 20)
    assert not guided.engine.has_sequences


def collect_events(
    loop: StepLoop, respond: Callable[[list[Event]], Command | None]
) -> list[list[Event]]:
    """Record the events that the loop emits; `respond` may return a command that arrives then."""
    emitted: list[list[Event]] = []

    def put(events: list[Event]) -> None:
        emitted.append(events)
        if (command := respond(events)) is not None:
            loop._inbox.put(_ReceivedCommand(command, 1))

    loop._outbox = cast(Any, SimpleNamespace(put=put))
    return emitted


def test_commands_are_applied_between_the_calls_of_a_step() -> None:
    """A token is emitted before the prompt behind it is computed, and a request submitted then is
    computed with that prompt."""
    backend = FakeBackend()
    bench = EngineBench(backend)
    bench.submit(make_request(0, max_tokens=50))
    bench.step()
    loop = make_loop(bench.engine)
    commands: list[Command] = [Submit(make_request(1, max_tokens=50))]
    emitted = collect_events(loop, lambda _: commands.pop() if commands else None)
    loop.run_turn()

    deltas = [[e.sequence_id for e in events if isinstance(e, Delta)] for events in emitted]
    assert deltas[:2] == [[0], [1]]
    assert [set(batch.slots.tolist()) for batch in backend.batches[-2:]] == [{0}, {1}]


def receive_and_run(loop: StepLoop) -> None:
    """One iteration of the loop; fails if it would block forever."""
    inbox = loop._inbox

    def get(*, timeout: float | None) -> _ReceivedCommand:
        assert timeout is not None or not inbox.empty(), "the loop blocks forever"
        return inbox.get(timeout=timeout)

    others = {name: getattr(inbox, name) for name in ("empty", "get_nowait", "put")}
    loop._inbox = cast(Any, SimpleNamespace(get=get, **others))
    loop._receive()
    loop._inbox = inbox
    loop.run_turn()


@pytest.mark.parametrize(
    "command", [Flush(2), Submit(make_request(2, range(10_000)))], ids=["flush", "refused"]
)
def test_events_of_a_command_at_the_end_of_a_step_are_emitted(command: Command) -> None:
    """Even if there is nothing left to compute and no other command arrives."""
    loop = make_loop(EngineBench().engine)
    commands = [command]
    emitted = collect_events(loop, lambda _: commands.pop() if commands else None)
    loop._inbox.put(_ReceivedCommand(Flush(1), 0))
    receive_and_run(loop)
    receive_and_run(loop)

    answers = [e for events in emitted for e in events if isinstance(e, Flushed | Failed)]
    assert len(answers) == 2


def test_embeddings_that_arrive_in_a_step_wait_for_their_turn() -> None:
    """A client that sends the next request at once gets no more than half of the time."""

    class Embedder(FakeStepper):
        def submit(self, _: object) -> None:
            self.has_work = self.has_sequences = True

        def step(self) -> list[Event]:
            self.has_work = self.has_sequences = False
            return super().step()

    clock = ManualClock()
    bench = EngineBench()
    bench.submit(make_request(max_tokens=500, ignore_eos=True))
    bench.step()
    embedder = Embedder(clock, 1.0, busy=False)
    loop = make_loop(bench.engine, embedder, clock)

    def respond(_: list[Event]) -> Command | None:
        clock.now += 0.01  # the time of a decode call
        return None if embedder.has_work else SubmitEmbedding(cast(Any, None))

    collect_events(loop, respond)
    for _ in range(50):
        receive_and_run(loop)

    assert embedder.num_steps == 1
