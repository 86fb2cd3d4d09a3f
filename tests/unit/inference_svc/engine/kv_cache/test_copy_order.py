"""Errors of saves, restores and copies of slots with a queued copy."""

from collections.abc import Callable

import pytest

from inference_svc.engine.backend import DecodeError
from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.kv_cache.copies import CacheCopier, CopyCosts, CopyOrderError
from tests.support.fake_backend import FakeBackend


def _make_copier(
    costs: CopyCosts | None = None, fails: Callable[[TokenBatch], int] = lambda _: 0
) -> tuple[CacheCopier, FakeBackend]:
    fake = FakeBackend(fails=fails)
    fake.decode(TokenBatch.of([Row(0, 0, (65, 66, 67, 68), output=False)]))
    return CacheCopier(fake, costs or CopyCosts()), fake


def _one_row(slot: int, start: int) -> TokenBatch:
    return TokenBatch.of([Row(slot, start, (70,), output=True)])


def test_a_copy_is_executed_by_the_next_decode() -> None:
    """The target has its length at once, and its contents after the decode."""
    copier, fake = _make_copier()
    copier.copy(0, 1, 3)

    assert (fake.slot_length(0), fake.slot_length(1)) == (4, 3)
    copier.decode(_one_row(1, 3))
    assert fake.save(1) == fake.save(0)[:12] + bytes([70, 0, 0, 0])


def test_one_slot_can_be_copied_to_several_slots() -> None:
    """One decode executes all copies."""
    copier, fake = _make_copier()
    for target in (1, 2, 3):
        copier.copy(0, target, 4)
    copier.decode(_one_row(3, 4))

    assert fake.save(1) == fake.save(2) == fake.save(0)


@pytest.mark.parametrize(
    "name", ["save", "restore target", "restore source", "copy target", "copy to target"]
)
def test_operations_on_slots_of_a_queued_copy_fail_until_the_decode(name: str) -> None:
    """Each would mix the contents of two slots."""
    copier, fake = _make_copier()
    state = fake.save(0)
    operations: dict[str, Callable[[], object]] = {
        "save": lambda: copier.save(1),
        "restore target": lambda: copier.restore(1, state),
        "restore source": lambda: copier.restore(0, state),
        "copy target": lambda: copier.copy(1, 2, 2),
        "copy to target": lambda: copier.copy(2, 1, 0),
    }
    operation = operations[name]
    copier.copy(0, 1, 4)

    with pytest.raises(CopyOrderError):
        operation()
    copier.decode(_one_row(1, 4))
    operation()


@pytest.mark.parametrize(("code", "settled"), [(-1, False), (1, True), (-2, True)])
def test_a_failed_decode_may_leave_copies_queued(code: int, settled: bool) -> None:
    """Only a batch that is rejected as invalid (code -1) does."""
    copier, _ = _make_copier(fails=lambda batch: code if 70 in batch.tokens else 0)
    copier.copy(0, 1, 4)
    with pytest.raises(DecodeError):
        copier.decode(_one_row(1, 4))

    assert copier.is_settled(1) is settled


def test_a_short_prefix_is_copied_as_a_state() -> None:
    """The cheaper method by the measured costs is used."""
    copier, fake = _make_copier(CopyCosts(stream_s=1.0, state_s=0.1, state_token_s=0.3))
    copier.copy(0, 1, 2)
    assert (fake.num_copies, copier.is_settled(1), fake.slot_length(1)) == (0, True, 2)

    copier.copy(0, 2, 4)
    assert (fake.num_copies, copier.is_settled(2)) == (1, False)
