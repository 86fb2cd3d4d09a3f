"""One decode and what follows from it, where it succeeds and where it fails."""

from pathlib import Path

import pytest

from inference_svc.engine.batch import TokenBatch
from inference_svc.engine.events import FinishReason
from inference_svc.engine.request import AppliedAdapter
from svc_kit.errors import DecodeFailed, InvalidField
from tests.support.fake_backend import (
    FAILING_SEED,
    FakeBackend,
)
from tests.support.sequences import EngineBench, expected_tokens, make_request


def test_two_sequences_share_decode_steps() -> None:
    """Both have a row in the same call (continuous batching)."""
    bench = EngineBench()
    bench.submit(make_request(0, max_tokens=6), make_request(1, prompt=[70, 71], max_tokens=6))
    bench.run()

    shared = [batch for batch in bench.backend.batches if set(batch.slots) == {0, 1}]
    assert len(shared) >= 5
    assert bench.tokens(1) == expected_tokens([70, 71], 6)


def test_max_tokens_0_computes_only_the_prompt() -> None:
    """The sequence ends without output."""
    bench = EngineBench()
    bench.submit(make_request(max_tokens=0))
    bench.run()

    assert (bench.tokens(0), bench.finished(0).reason) == ([], FinishReason.LENGTH)


def test_holes_between_slots_are_filled_and_cleaned() -> None:
    """A filler row joins two slots into one batch; its cell is removed afterwards."""
    bench = EngineBench(step_times={1: 10.0, 2: 11.0, 3: 12.0, 4: 13.0})
    bench.submit(
        make_request(0, max_tokens=9), make_request(1, max_tokens=2), make_request(2, max_tokens=9)
    )
    bench.run()

    assert any(
        (batch.slots.tolist(), batch.outputs.tolist(), batch.tokens[1]) == ([0, 1, 2], [1, 1, 1], 0)
        for batch in bench.backend.batches
    )
    assert bench.tokens(2) == expected_tokens([65, 66, 67], 9)


@pytest.mark.parametrize("code", [1, -1, -2])
def test_one_failing_row_fails_alone(code: int) -> None:
    """A failed batch is undone and retried in halves until the bad row is alone."""

    def fails(batch: TokenBatch) -> int:
        return code if 200 in batch.tokens else 0

    bench = EngineBench(FakeBackend(fails=fails))
    bench.submit(
        make_request(0, max_tokens=6),
        make_request(1, prompt=[65, 200, 66], request_id="req_1"),
        make_request(2, max_tokens=6),
    )
    bench.run()

    assert bench.failures()[1].error == DecodeFailed(request_id="req_1")
    assert bench.tokens(0) == bench.tokens(2) == expected_tokens([65, 66, 67], 6)


def test_a_failing_sampler_fails_only_its_own_sequence() -> None:
    """Other sequences of the batch are not affected."""
    bench = EngineBench()
    adapted = make_request(2, seed=FAILING_SEED, adapters=(AppliedAdapter("a", 1.0),))
    bench.engine.adapters.load("a", Path("a.gguf"))
    bench.submit(make_request(0, seed=FAILING_SEED), make_request(1, max_tokens=4), adapted)
    bench.run()

    assert bench.failures().keys() == {0, 2}
    assert isinstance(bench.failures()[0].error, DecodeFailed)
    assert isinstance(bench.failures()[2].error, InvalidField)  # the adapter is the caller's
    assert len(bench.tokens(1)) == 4


@pytest.mark.parametrize(
    ("chunk_cap", "fails"), [(16, True), (1, False)], ids=["failed", "without output"]
)
def test_only_rows_with_output_update_the_cost_model(chunk_cap: int, fails: bool) -> None:
    """Failed calls and prompt rows without logits take less time; such an estimate would never be
    corrected."""

    def decode(batch: TokenBatch) -> int:
        is_quick = not batch.outputs.any() or (fails and len(batch.tokens) == 1)
        bench.clock.now += 0.1 if is_quick else 20.0
        return int(is_quick and fails)

    times = {1: 10.0, 2: 11.0, 3: 12.0, 4: 13.0}
    backend = FakeBackend(fails=decode)
    bench = EngineBench(backend, step_times=times, measured=times, chunk_cap=chunk_cap)
    bench.submit(make_request(0, max_tokens=3))
    bench.run()

    assert bool(bench.failures()) is fails
    assert bench.engine._state.layout.seconds([0]) == 10.0
    assert bench.engine._state.step_time.prompt_tokens_within(13.0 / 4 + 10.0, num_decoding=1) == 1
