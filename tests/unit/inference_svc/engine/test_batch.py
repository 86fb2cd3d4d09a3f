"""The arrays of a decode call, and the check of native limits."""

from collections.abc import Sequence

import pytest

from inference_svc.engine.batch import (
    BatchLimitExceeded,
    NativeLimits,
    Row,
    TokenBatch,
    check_native_limits,
)

LIMITS = NativeLimits(batch_tokens=8, output_rows=2, slots=4, slot_tokens=16, vocabulary_size=100)


def test_rows_are_concatenated() -> None:
    """Positions count up inside a row; only its last token has logits."""
    batch = TokenBatch.of([Row(0, 5, (1,), output=True), Row(2, 0, (7, 8, 9), output=True)])

    assert batch.tokens.tolist() == [1, 7, 8, 9]
    assert batch.positions.tolist() == [5, 0, 1, 2]
    assert batch.slots.tolist() == [0, 2, 2, 2]
    assert batch.outputs.tolist() == [1, 0, 0, 1]


def test_a_drafted_row_has_logits_from_its_last_certain_token_on() -> None:
    """Each draft token is verified by the logits before it; the last one has logits too."""
    row = Row(1, 3, (4, 5, 6, 7), output=True, drafted=2)
    batch = TokenBatch.of([Row(0, 0, (1,), output=False), row])

    assert batch.outputs.tolist() == [0, 0, 1, 1, 1]
    assert (row.num_outputs, row.certain) == (3, (4, 5))


def test_single_token_rows_give_the_same_arrays() -> None:
    """The fast path of steps without prompts."""
    batch = TokenBatch.of([Row(1, 3, (4,), output=True), Row(2, 0, (0,), output=False)])

    assert batch.tokens.tolist() == [4, 0]
    assert batch.positions.tolist() == [3, 0]
    assert batch.slots.tolist() == [1, 2]
    assert batch.outputs.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([Row(0, 0, range(9), output=True)], "9 tokens"),
        ([Row(i, 0, (1,), output=True) for i in range(3)], "3 outputs"),
        ([Row(0, 0, (100,), output=True)], "token"),
        ([Row(0, 0, (-1,), output=True)], "token"),
        ([Row(4, 0, (1,), output=True)], "slot"),
        ([Row(0, 15, (1, 2), output=True)], "position"),
        ([Row(1, 0, (1,), output=True), Row(0, 0, (1,), output=True)], "ascending"),
        ([Row(0, 0, (1,), output=False), Row(0, 2, (1,), output=True)], "not consecutive"),
    ],
)
def test_a_batch_over_a_native_limit_is_refused(rows: Sequence[Row], message: str) -> None:
    """Each of these would end the engine process."""
    with pytest.raises(BatchLimitExceeded, match=message):
        check_native_limits(TokenBatch.of(rows), LIMITS)


def test_a_batch_at_the_limits_passes() -> None:
    """The limits themselves are allowed."""
    rows = [Row(0, 9, tuple(range(7)), output=True), Row(3, 15, (99,), output=True)]

    check_native_limits(TokenBatch.of(rows), LIMITS)
