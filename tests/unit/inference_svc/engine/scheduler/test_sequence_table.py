"""The end of sequences, waiting and running ones."""

from collections.abc import Callable
from functools import partial

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.constraint import Constraint
from inference_svc.engine.events import Event, Failed
from inference_svc.engine.scheduler.sequence_table import SequenceTable
from inference_svc.engine.sequence import Sequence
from svc_kit.errors import AbortedByOperator
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend, FakeSampler
from tests.support.sequences import EngineBench, make_request

ERROR = AbortedByOperator()
PROMPT = range(60, 100)
End = Callable[[SequenceTable, Sequence], None]
fail = partial(SequenceTable.fail, error=ERROR)


def start(**changes: object) -> tuple[EngineBench, SequenceTable, Sequence]:
    """An engine with one slot, in which sequence 0 decodes; sequence 1 waits."""
    limits = NativeLimits(64, 1, 1, 128, VOCABULARY_SIZE)
    bench = EngineBench(FakeBackend(limits), chunk_cap=64)
    bench.submit(make_request(0, PROMPT, max_tokens=50, project="p", **changes))
    bench.step()
    bench.submit(make_request(1, project="q"))
    table = bench.engine._sequences
    return bench, table, table.running[0]


@pytest.mark.parametrize(
    ("end", "events", "is_kept"),
    [
        (SequenceTable.remove, [], True),
        (partial(SequenceTable.remove, keep=False), [], False),
        (fail, [Failed(0, ERROR)], True),
        (partial(fail, keep=False), [Failed(0, ERROR)], False),
    ],
)
def test_an_ended_sequence_frees_its_slot(end: End, events: list[Event], *, is_kept: bool) -> None:
    """Its cells stay for reuse unless the caller says otherwise."""
    bench, table, sequence = start(constraint=Constraint("a*", "constraint"))
    num_changes = table.num_changes
    slot = sequence.slot
    assert slot is not None

    end(table, sequence)
    bench.engine.check_integrity()

    assert (list(table.by_id), list(table.running), sequence.slot) == ([1], [], None)
    assert sequence not in table
    assert table.num_changes == num_changes + 1
    assert table.events == events
    assert isinstance(sequence.sampler, FakeSampler)
    assert sequence.sampler.closed
    assert [guide.closed for guide in bench.backend.guides] == [True]
    assert bool(slot.tokens) is is_kept


@pytest.mark.parametrize("end", [SequenceTable.remove, fail])
def test_a_waiting_sequence_leaves_the_queue(end: End) -> None:
    """The running one goes on."""
    bench, table, running = start()

    end(table, table.by_id[1])
    bench.engine.check_integrity()

    assert (list(table.by_id), len(table.queue), list(table.running)) == ([0], 0, [0])
    assert running in table
    bench.run()
    assert len(bench.tokens(0)) == 50


def test_the_last_sequence_of_a_project_resets_its_share() -> None:
    """A project that comes back later is charged from anew."""
    _, table, sequence = start()
    table.remove(table.by_id[1])
    assert table.queue.shares.served("p") > 0

    table.remove(sequence)
    assert table.queue.shares.served("p") == 0


def test_the_outcome_of_the_last_draft_is_counted() -> None:
    """The sequence may end before it is extended by another one."""
    bench, table, sequence = start()
    drafter = bench.engine._state.drafter
    sequence.tokens.extend([1, 2, 3, 1, 2, 3, 1, 2])
    sequence.ngram_proposals.propose(sequence.tokens, 3)
    draft = sequence.ngram_proposals.draft(3)
    sequence.tokens.extend([draft[0], 99])

    table.remove(sequence)
    assert drafter.by_ngram == (len(draft), 1)
