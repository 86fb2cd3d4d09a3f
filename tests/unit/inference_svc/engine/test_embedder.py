"""The embedding loop: packing, turns, parts, failures, ends."""

from typing import Any

import pytest

from inference_svc.engine.embedder import finished_vector
from inference_svc.engine.events import Cancelled, Embedded, Failed
from svc_kit.errors import ContextLengthExceeded, DeadlineExpired, DecodeFailed, ModelTooLarge
from tests.support.embeddings import POISON, EmbeddingBench, FakeEmbedding, make_embedding

LONG = tuple(range(1, 41))


def failures(bench: EmbeddingBench) -> dict[int, type[Exception]]:
    """What each failed request failed with."""
    return {e.sequence_id: type(e.error) for e in bench.events if isinstance(e, Failed)}


def test_many_inputs_share_a_decode() -> None:
    """Four inputs of four tokens fill a batch of sixteen."""
    bench = EmbeddingBench()
    bench.submit(make_embedding(7, *[(i, i, i, i) for i in range(1, 5)]))
    events = bench.step()

    assert bench.backend.batches == [[4, 4, 4, 4]]
    assert bench.vectors(7) == [[i, i] for i in range(1, 5)]
    assert [e.is_last for e in events if isinstance(e, Embedded)] == [False, False, False, True]
    assert not bench.embedder.has_work


def test_an_input_of_an_encoder_is_not_split() -> None:
    """An input that does not fit waits for the next decode."""
    bench = EmbeddingBench()
    bench.submit(make_embedding(0, (1,) * 10, (2,) * 10, (3,) * 6))
    bench.run()

    assert bench.backend.batches == [[10], [10, 6]]


def test_an_input_longer_than_a_step_is_decoded_alone() -> None:
    """Short inputs share steps of the usual size."""
    bench = EmbeddingBench(pack_tokens=8)
    bench.submit(make_embedding(0, (1,) * 4, (2,) * 16, (3,) * 4, (4,) * 4, (5,) * 4))
    bench.run()

    assert bench.backend.batches == [[4], [16], [4, 4], [4]]


@pytest.mark.parametrize("averages", [False, True])
def test_a_causal_model_computes_a_long_input_in_parts(averages: bool) -> None:
    """Means of parts are weighted by size; otherwise the last token counts."""
    backend = FakeEmbedding(input_tokens=40, cells=48, splits=True, averages=averages)
    bench = EmbeddingBench(backend)
    bench.submit(make_embedding(0, LONG, (5, 7)))
    bench.run()
    long, short = bench.vectors(0)

    assert long[0] == pytest.approx(sum(LONG) / 40 if averages else sum(LONG[32:]) / 8)
    assert averages or long[1] == LONG[-1]
    assert short[0] == 6
    assert bench.backend.slot_tokens == {}


def test_projects_take_turns() -> None:
    """A short request is answered while another project's large one still runs."""
    bench = EmbeddingBench()
    bench.submit(make_embedding(0, *[(1,) * 8] * 100, project="large"))
    bench.step()
    bench.submit(make_embedding(1, (2,) * 8, project="small"))
    bench.step()

    assert bench.vectors(1) == [[2, 2]]
    assert len(bench.embedded(0)) == 3


def test_a_higher_priority_gets_twice_the_turns() -> None:
    """The lower priority does not starve."""
    bench = EmbeddingBench()
    bench.submit(make_embedding(0, *[(1,) * 4] * 200, project="p", priority=1))
    bench.submit(make_embedding(1, *[(1,) * 4] * 200, project="p", priority=2))
    for _ in range(30):
        bench.step()

    assert len(bench.embedded(0)) + len(bench.embedded(1)) == 120
    assert 75 <= len(bench.embedded(1)) <= 85


def test_a_failed_decode_fails_only_its_own_request() -> None:
    """Each input of the batch is retried alone."""
    bench = EmbeddingBench()
    bench.submit(
        make_embedding(0, (1, 2), (3, 4)), make_embedding(1, (5, POISON)), make_embedding(2, (6, 7))
    )
    bench.run()

    assert failures(bench) == {1: DecodeFailed}
    assert bench.vectors(0) == [[1.5, 2], [3.5, 4]]
    assert bench.vectors(2) == [[6.5, 7]]
    assert bench.backend.slot_tokens == {}


def test_an_input_with_a_failed_part_is_restarted() -> None:
    """Parts computed before the failure are discarded."""
    backend = FakeEmbedding(input_tokens=40, cells=64, splits=True, averages=True)
    bench = EmbeddingBench(backend)
    bench.submit(make_embedding(0, LONG))
    bench.step()
    bench.submit(make_embedding(1, (POISON,)))
    bench.step()
    bench.step()
    bench.step()
    bench.run()

    assert failures(bench) == {1: DecodeFailed}
    assert bench.vectors(0)[0][0] == pytest.approx(sum(LONG) / 40)


def test_a_vector_with_nan_fails_the_request() -> None:
    """An embedding never contains NaN."""

    class Broken(FakeEmbedding):
        def embed(self, batch: Any) -> Any:
            return {slot: v * float("nan") for slot, v in super().embed(batch).items()}

    bench = EmbeddingBench(Broken())
    bench.submit(make_embedding(0, (1, 2), (3, 4)))
    bench.run()

    assert failures(bench) == {0: DecodeFailed}


def test_a_context_without_memory_fails_the_request() -> None:
    """The error of the backend is passed on."""

    class Full(FakeEmbedding):
        def embed(self, batch: Any) -> Any:
            raise ModelTooLarge(model="m", needed_bytes=2, available_bytes=1)

    bench = EmbeddingBench(Full())
    bench.submit(make_embedding(0))
    bench.run()

    assert failures(bench) == {0: ModelTooLarge}


def test_an_input_over_the_limit_fails_at_once() -> None:
    """The error has both sizes; other requests go on."""
    bench = EmbeddingBench()
    bench.submit(make_embedding(0, (1,), (2,) * 17), make_embedding(1, (3,)))
    bench.run()
    (failed,) = [event for event in bench.events if isinstance(event, Failed)]

    assert isinstance(failed.error, ContextLengthExceeded)
    assert (failed.error.field, failed.error.prompt_tokens) == ("inputs[1]", 17)
    assert failed.error.context_tokens == 16
    assert bench.vectors(1) == [[3, 3]]


def test_a_cancelled_request_frees_its_slots() -> None:
    """Other requests go on."""
    backend = FakeEmbedding(input_tokens=40, cells=64, splits=True)
    bench = EmbeddingBench(backend)
    bench.submit(make_embedding(0, LONG), make_embedding(1, LONG))
    bench.step()
    bench.embedder.cancel(0, arrived_in_step=1, step=2)
    bench.embedder.cancel(99, arrived_in_step=1, step=2)
    bench.run()

    assert [e for e in bench.events if isinstance(e, Cancelled)] == [Cancelled(0, "prefill", 1, 2)]
    assert bench.embedded(0) == []
    assert bench.vectors(1)[0][1] == LONG[-1]
    assert backend.slot_tokens == {}


def test_a_deadline_ends_queued_and_running_requests() -> None:
    """The error has the phase of the request; others go on."""
    bench = EmbeddingBench(pack_tokens=8)
    bench.submit(make_embedding(0, *[(1,) * 8] * 3, deadline=5.0), make_embedding(1, (2,) * 8))
    bench.step()
    bench.clock.now = 5.0
    bench.run()

    assert failures(bench) == {0: DeadlineExpired}
    assert bench.vectors(1) == [[2, 2]]


def test_vectors_are_truncated_then_normalized() -> None:
    """A zero vector is not changed."""
    import numpy as np

    vector = np.array([3, 4, 12], np.float32)

    assert finished_vector(vector, 2, normalize=True).tolist() == pytest.approx([0.6, 0.8])
    assert finished_vector(vector, None, normalize=False).tolist() == [3, 4, 12]
    assert finished_vector(vector * 0, None, normalize=True).tolist() == [0, 0, 0]
