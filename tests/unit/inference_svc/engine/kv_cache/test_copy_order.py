"""The order of saves, restores and copies."""

from collections.abc import Callable

import pytest

from inference_svc.engine.backend import DecodeError
from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.kv_cache.copies import CacheCopier, CopyCosts, CopyOrderError
from tests.support.fake_backend import FakeBackend


def _cells(
    costs: CopyCosts | None = None, fails: Callable[[TokenBatch], int] = lambda _: 0
) -> tuple[CacheCopier, FakeBackend]:
    fake = FakeBackend(fails=fails)
    fake.decode(TokenBatch.of([Row(0, 0, (65, 66, 67, 68), output=False)]))
    return CacheCopier(fake, costs or CopyCosts()), fake


def _one_row(slot: int, start: int) -> TokenBatch:
    return TokenBatch.of([Row(slot, start, (70,), output=True)])


def test_a_copy_arrives_with_the_next_decode() -> None:
    """Shortened at once, filled later; the source goes on undisturbed."""
    cells, fake = _cells()
    cells.copy(0, 1, 3)

    assert (fake.slot_length(0), fake.slot_length(1)) == (4, 3)
    cells.decode(_one_row(1, 3))
    assert fake.save(1) == fake.save(0)[:12] + bytes([70, 0, 0, 0])


def test_one_slot_can_be_copied_to_many() -> None:
    """Followers of one prefix start in one step."""
    cells, fake = _cells()
    for target in (1, 2, 3):
        cells.copy(0, target, 4)
    cells.decode(_one_row(3, 4))

    assert fake.save(1) == fake.save(2) == fake.save(0)


@pytest.mark.parametrize("order", ["save", "restore target", "restore source", "chain", "twice"])
def test_wrong_orders_are_refused_until_the_decode(order: str) -> None:
    """Each would give one slot the cells of another; after the decode each is fine."""
    cells, fake = _cells()
    state = fake.save(0)
    wrong_orders: dict[str, Callable[[], object]] = {
        "save": lambda: cells.save(1),
        "restore target": lambda: cells.restore(1, state),
        "restore source": lambda: cells.restore(0, state),
        "chain": lambda: cells.copy(1, 2, 2),
        "twice": lambda: cells.copy(2, 1, 0),
    }
    wrong = wrong_orders[order]
    cells.copy(0, 1, 4)

    with pytest.raises(CopyOrderError):
        wrong()
    cells.decode(_one_row(1, 4))
    wrong()


@pytest.mark.parametrize(("code", "settled"), [(-1, False), (1, True), (-2, True)])
def test_a_failed_decode_may_leave_copies_queued(code: int, settled: bool) -> None:
    """Only a batch that was refused as such leaves them for the next one."""
    cells, _ = _cells(fails=lambda batch: code if 70 in batch.tokens else 0)
    cells.copy(0, 1, 4)
    with pytest.raises(DecodeError):
        cells.decode(_one_row(1, 4))

    assert cells.is_settled(1) is settled


def test_a_short_prefix_moves_as_a_state() -> None:
    """The cheaper way is taken, as measured."""
    cells, fake = _cells(CopyCosts(stream_s=1.0, state_s=0.1, state_token_s=0.3))
    cells.copy(0, 1, 2)
    assert (fake.num_copies, cells.is_settled(1), fake.slot_length(1)) == (0, True, 2)

    cells.copy(0, 2, 4)
    assert (fake.num_copies, cells.is_settled(2)) == (1, False)
