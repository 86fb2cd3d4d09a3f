"""The rows of the call of decoding sequences."""

from array import array

import pytest

from inference_svc.engine.batch import NativeLimits, Row
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.scheduler.plan import plan_decode
from inference_svc.engine.sequence import Plan, Sequence
from inference_svc.engine.slots import SlotTable
from tests.support.fake_backend import VOCABULARY_SIZE
from tests.support.sequences import make_request

NUM_COMPUTED = 2
SLOT_TOKENS = 9
FULL_IS_FASTEST = {1: 10.0, 2: 10.5, 3: 11.0}


def plan(
    used: dict[int, int],
    *,
    batch_tokens: int = 64,
    step_times: dict[int, float] | None = None,
    idle_tokens: int = 0,
) -> Plan:
    """Plan a call of three slots. The sequences of the `used` slots have that many tokens to
    compute, from 10 on; the other slots have `idle_tokens`."""
    slots = SlotTable(3).slots
    sequences = []
    for index, num_remaining in used.items():
        prompt = [1] * NUM_COMPUTED + [10 + i for i in range(num_remaining)]
        sequence = Sequence(make_request(index, prompt), arrived_at=0.0)
        sequence.slot = slots[index]
        slots[index].tokens = array("i", prompt[:NUM_COMPUTED])
        sequences.append(sequence)
    for slot in slots:
        if slot.index not in used:
            slot.tokens = array("i", [1] * idle_tokens)
    limits = NativeLimits(batch_tokens, 3, 3, SLOT_TOKENS, VOCABULARY_SIZE)
    return plan_decode(sequences, slots, limits, BatchLayout(step_times or {}, 3))


@pytest.mark.parametrize(
    ("batch_tokens", "counts"),
    [(64, (5, 1)), (10, (5, 1)), (9, (4, 1)), (2, (1, 1)), (1, (1, 1))],
)
def test_a_row_has_at_most_an_equal_part_of_the_batch(
    batch_tokens: int, counts: tuple[int, int]
) -> None:
    """At least the next token; logits only if the row reaches the last one."""
    planned = plan({2: 1, 0: 5}, batch_tokens=batch_tokens)

    forced, last = counts
    assert planned.rows == (
        Row(0, NUM_COMPUTED, array("i", range(10, 10 + forced)), output=forced == 5),
        Row(2, NUM_COMPUTED, array("i", range(10, 10 + last)), output=True),
    )
    assert [item.sequence.request.sequence_id for item in planned.work] == [0, 2]
    assert (planned.num_decoding, planned.prompt_tokens) == (2, forced + last - 2)
    assert planned.fillers == ()


@pytest.mark.parametrize(
    ("batch_tokens", "idle_tokens", "is_filled"),
    [
        (64, 0, True),
        (64, SLOT_TOKENS - 1, True),
        (64, SLOT_TOKENS, False),
        (3, 0, True),
        (2, 0, False),
    ],
)
def test_a_filler_row_needs_room_in_its_slot_and_in_the_batch(
    batch_tokens: int, idle_tokens: int, is_filled: bool
) -> None:
    """It follows the cached tokens of an idle slot, and has logits like the other rows."""
    planned = plan(
        {0: 1, 2: 1},
        batch_tokens=batch_tokens,
        step_times=FULL_IS_FASTEST,
        idle_tokens=idle_tokens,
    )

    filler = Row(1, idle_tokens, (0,), output=True)
    first, last = (Row(i, NUM_COMPUTED, array("i", [10]), output=True) for i in (0, 2))
    assert planned.rows == ((first, filler, last) if is_filled else (first, last))
    assert [slot.index for slot in planned.fillers] == [1] * is_filled
    assert (planned.num_decoding, planned.prompt_tokens) == (2, 0)
