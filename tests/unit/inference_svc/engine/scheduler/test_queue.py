"""Who starts next."""

from functools import partial

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import Failed, Finished, Started
from inference_svc.engine.fake import VOCABULARY_SIZE, FakeBackend
from inference_svc.engine.scheduler.fairness import FairShare
from inference_svc.engine.scheduler.queue import (
    AGING_S,
    AdmissionQueue,
    PriorityAging,
    aged_priority,
)
from inference_svc.engine.sequence import Sequence
from svc_kit.errors import ContextLengthExceeded
from tests.support.sequences import EngineBench, make_request


def _queue(*sequences: Sequence, shares: FairShare[str] | None = None) -> AdmissionQueue:
    queue = AdmissionQueue(shares)
    for sequence in sequences:
        queue.push(sequence)
    return queue


def _order(queue: AdmissionQueue, now: float) -> list[int]:
    priority_of = partial(aged_priority, now=now)
    return [sequence.request.sequence_id for sequence in queue.in_order(priority_of)]


def _waiting(i: int, *, priority: int = 2, project: str = "p", since: float = 0.0) -> Sequence:
    return Sequence(make_request(i, priority=priority, project=project), arrived_at=since)


def _one_slot(**options: object) -> EngineBench:
    return EngineBench(FakeBackend(NativeLimits(64, 1, 1, 128, VOCABULARY_SIZE)), **options)  # type: ignore[arg-type]


def test_classes_come_first_then_arrival() -> None:
    """Interactive, normal, batch."""
    queue = _queue(
        _waiting(0, priority=1), _waiting(1), _waiting(2, since=-1.0), _waiting(3, priority=3)
    )

    assert _order(queue, 0.0) == [3, 2, 1, 0]


def test_waiting_is_worth_a_class() -> None:
    """Batch work is not starved: after two terms it stands among interactive work, and older."""
    queue = _queue(_waiting(0, priority=1), _waiting(1, priority=3, since=2 * AGING_S - 1))

    assert _order(queue, 2 * AGING_S - 0.5) == [1, 0]
    assert _order(queue, 2 * AGING_S) == [0, 1]


def test_only_a_part_of_those_that_run_has_risen() -> None:
    """Of sixteen slots two of each class, one after the other with somebody else in between; one
    that goes on for long, or stands still, does not count."""
    ascent, now = PriorityAging(16), 2 * AGING_S
    old = [_waiting(i, priority=1) for i in range(9)]
    usual = _waiting(9)
    running: list[Sequence] = []

    def stands(sequence: Sequence, *, at: float = now) -> int:
        ascent.begin(running, at)
        ascent.start(sequence)
        running.append(sequence)
        return sequence.admitted_priority

    assert [stands(sequence) for sequence in old[:5]] == [3, 1, 3, 1, 1]
    assert [stands(usual), stands(old[5])] == [3, 1]
    old[0].paused = True
    assert [stands(old[6]), stands(old[7])] == [3, 1]
    ascent.begin(running, now)
    assert ascent.priority_of(old[8]) == 1
    ascent.begin(running, now + AGING_S)
    assert [ascent.priority_of(old[8]), ascent.priority_of(_waiting(10, since=now))] == [3, 3]
    ascent.start(old[8])
    assert ascent.priority_of(_waiting(11)) == 2, "until others start"


def test_a_backlog_that_has_aged_gets_an_eighth_of_the_slots() -> None:
    """While younger interactive work wants all of them."""
    limits = NativeLimits(256, 16, 16, 64, VOCABULARY_SIZE)
    bench = EngineBench(FakeBackend(limits))
    bench.submit(*(make_request(i, priority=1, max_tokens=30, ignore_eos=True) for i in range(8)))
    bench.clock.now = 2 * AGING_S
    bench.submit(*(make_request(i, priority=3, max_tokens=2) for i in range(8, 48)))
    for _ in range(6):
        bench.step()

    started = [event.sequence_id for event in bench.events if isinstance(event, Started)]
    assert [i for i in started if i < 8] == [0, 1]
    assert len(started) > 20


def test_who_falls_while_the_order_is_followed_is_ranked_anew() -> None:
    """Also where its project was charged nothing."""
    queue = _queue(_waiting(0, project="a"), _waiting(1, project="b"), _waiting(2, project="c"))
    classes = {0: 3, 1: 3, 2: 2}
    order = []
    for sequence in queue.in_order(lambda one: classes[one.request.sequence_id]):
        order.append(sequence.request.sequence_id)
        classes[1] = 1

    assert order == [0, 2, 1]


def test_a_backlog_that_has_aged_leaves_slots_to_others() -> None:
    """With one slot, every second one; the older does come first."""
    bench = _one_slot()
    bench.submit(*(make_request(i, priority=1, max_tokens=2) for i in range(4)))
    bench.clock.now = 2 * AGING_S
    bench.submit(*(make_request(i, priority=3, max_tokens=2) for i in range(4, 6)))
    bench.run()

    order = [event.sequence_id for event in bench.events if isinstance(event, Started)]
    assert order == [0, 4, 1, 5, 2, 3]


def test_the_project_that_was_served_least_comes_first() -> None:
    """A hundred requests of one project do not delay another's first."""
    shares = FairShare[str]()
    queue = _queue(_waiting(0, project="big"), _waiting(1, project="small"), shares=shares)
    shares.enter("big")
    shares.enter("small")
    shares.charge("big", 10)

    assert _order(queue, 0.0) == [1, 0]


def test_projects_take_turns() -> None:
    """Through the engine: the many do not crowd out the few, whoever came first."""
    bench = _one_slot()
    bench.submit(*(make_request(i, project="many", max_tokens=3) for i in range(6)))
    bench.submit(*(make_request(i, project="few", max_tokens=3, cache_key=b"few") for i in (6, 7)))
    bench.run()

    order = [event.sequence_id for event in bench.events if isinstance(event, Started)]
    assert order[:4] == [0, 6, 1, 7]


class CountingShare(FairShare[str]):
    """Counts how often a rank is computed: each asks for what a project was served."""

    num_asked = 0

    def served(self, key: str) -> float:
        """What a project has had."""
        self.num_asked += 1
        return super().served(key)


def test_following_the_order_takes_in_charges_and_ranks_few_anew() -> None:
    """Five hundred that wait are not all compared at every one of them: that is a step's time."""
    shares = CountingShare()
    queue = _queue(*(_waiting(i, project=f"p{i % 2}") for i in range(500)), shares=shares)
    order = []
    for sequence in queue.in_order(partial(aged_priority, now=0.0)):
        if sequence.request.sequence_id == 10:
            shares.charge("p0", 1)
        order.append(sequence.request.sequence_id)

    assert order == [*range(11), *range(11, 500, 2), *range(12, 500, 2)]
    assert shares.num_asked < 3 * 500


def test_what_no_slot_can_hold_fails_alone_at_once() -> None:
    """With its size and the limit; nothing of it reaches llama.cpp."""
    bench = _one_slot()
    bench.submit(make_request(0, prompt=[65] * 129), make_request(1, max_tokens=2))
    bench.run()

    assert bench.failures() == {
        0: Failed(0, ContextLengthExceeded(field="prompt", prompt_tokens=129, context_tokens=128))
    }
    assert len(bench.tokens(1)) == 2


def test_a_chunk_holds_the_target_beside_decoding_rows() -> None:
    """The measured step time sizes it; without decoding rows the cap does."""
    limits = NativeLimits(256, 4, 4, 256, VOCABULARY_SIZE)
    bench = EngineBench(
        FakeBackend(limits), chunk_cap=64, measured={1: 0.01, 4: 0.04}, token_target_s=0.215
    )
    bench.submit(make_request(0, prompt=[70] * 100, max_tokens=50, ignore_eos=True))
    bench.step()
    bench.step()
    bench.submit(make_request(1, prompt=[71] * 60, max_tokens=1))
    bench.step()

    assert [len(batch.tokens) for batch in bench.backend.batches] == [64, 36, 1, 20]


def test_small_passes_do_not_make_small_steps() -> None:
    """Where somebody decodes the cap counts, for each step pays for that: three floors of it here.
    Where nobody does, a step is one pass, and a prompt is short by the cap, not by the pass."""
    limits = NativeLimits(256, 4, 4, 512, VOCABULARY_SIZE, ubatch_tokens=64)
    bench = EngineBench(FakeBackend(limits), chunk_cap=128, measured={1: 1.0, 4: 4.0})
    bench.submit(make_request(0, prompt=[70] * 400, max_tokens=50, ignore_eos=True))
    bench.clock.now = AGING_S - 1
    bench.submit(make_request(1, prompt=[71] * 40, max_tokens=50, ignore_eos=True))
    bench.step()
    first = bench.backend.batches[0]
    while len(bench.tokens(1)) < 2:
        bench.step()
    known = len(bench.backend.batches)
    bench.submit(*(make_request(i, prompt=[71 + i] * 400, max_tokens=1) for i in (2, 3)))
    bench.step()
    chunks = [len(batch.tokens) for batch in bench.backend.batches[known:]]

    assert first.tokens.tolist() == [71] * 40
    assert chunks == [1, 96]


def test_an_urgent_prompt_overtakes_long_ones() -> None:
    """It needs one step beside four that need many, and that step computes nothing else."""
    limits = NativeLimits(64, 8, 8, 512, VOCABULARY_SIZE)
    bench = EngineBench(FakeBackend(limits), chunk_cap=64)
    bench.submit(*(make_request(i, prompt=[70 + i] * 400, cache_key=b"%d" % i) for i in range(4)))
    bench.step()
    bench.submit(make_request(9, prompt=[65] * 40, priority=3, max_tokens=1))
    bench.step()

    assert len(bench.tokens(9)) == 1
    assert len(bench.backend.batches[-1].tokens) == 40


def test_urgent_prompts_that_never_end_leave_a_part_to_others() -> None:
    """A long prompt is passed over four times, and goes on then beside them."""
    limits = NativeLimits(64, 8, 8, 512, VOCABULARY_SIZE)
    bench = EngineBench(FakeBackend(limits), chunk_cap=64)
    bench.submit(make_request(0, prompt=[70] * 200, max_tokens=1))
    bench.step()
    known = len(bench.backend.batches)
    for number in range(1, 6):
        bench.submit(make_request(number, prompt=[80 + number] * 40, priority=3, max_tokens=1))
        bench.step()

    assert [len(batch.tokens) for batch in bench.backend.batches[known:]] == [40] * 5 + [8]


def test_a_project_that_is_gone_lowers_the_bar_for_nobody() -> None:
    """A newcomer stands beside those with work, not beside one that had little and left."""
    bench = _one_slot()
    bench.submit(make_request(0, project="gone", max_tokens=2))
    bench.submit(*(make_request(i, project="busy", max_tokens=9) for i in (1, 2)))
    while not any(isinstance(event, Finished) and event.sequence_id == 1 for event in bench.events):
        bench.step()
    bench.submit(make_request(3, project="new", max_tokens=2))
    bench.run()

    order = [event.sequence_id for event in bench.events if isinstance(event, Started)]
    assert order == [0, 1, 2, 3]
