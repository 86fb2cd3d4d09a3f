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
    """Four inputs of four tokens fill one batch of sixteen."""
    bench = EmbeddingBench()
    bench.submit(make_embedding(7, *[(i, i, i, i) for i in range(1, 5)]))
    events = bench.step()

    assert bench.backend.batches == [[4, 4, 4, 4]]
    assert bench.vectors(7) == [[i, i] for i in range(1, 5)]
    assert [e.is_last for e in events if isinstance(e, Embedded)] == [False, False, False, True]
    assert not bench.embedder.has_work


def test_an_input_that_must_be_whole_waits_for_room() -> None:
    """Encoders take an input in one decode: what does not fit comes with the next one."""
    bench = EmbeddingBench()
    bench.submit(make_embedding(0, (1,) * 10, (2,) * 10, (3,) * 6))
    bench.run()

    assert bench.backend.batches == [[10], [10, 6]]


def test_an_input_over_the_usual_step_goes_alone() -> None:
    """A long input gets a decode of its own; short ones keep to the size of a step."""
    bench = EmbeddingBench(pack_tokens=8)
    bench.submit(make_embedding(0, (1,) * 4, (2,) * 16, (3,) * 4, (4,) * 4, (5,) * 4))
    bench.run()

    assert bench.backend.batches == [[4], [16], [4, 4], [4]]


@pytest.mark.parametrize("averages", [False, True])
def test_a_causal_model_takes_a_long_input_in_parts(averages: bool) -> None:
    """Means of parts are weighed by their sizes; of last tokens the last one counts."""
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


def test_a_higher_class_gets_twice_the_turns() -> None:
    """Nobody starves, and the higher class has more."""
    bench = EmbeddingBench()
    bench.submit(make_embedding(0, *[(1,) * 4] * 200, project="p", priority=1))
    bench.submit(make_embedding(1, *[(1,) * 4] * 200, project="p", priority=2))
    for _ in range(30):
        bench.step()

    assert len(bench.embedded(0)) + len(bench.embedded(1)) == 120
    assert 75 <= len(bench.embedded(1)) <= 85


def test_a_failed_decode_spoils_its_own_request_only() -> None:
    """Each input of the batch is tried again alone; the others have their vectors."""
    bench = EmbeddingBench()
    bench.submit(
        make_embedding(0, (1, 2), (3, 4)), make_embedding(1, (5, POISON)), make_embedding(2, (6, 7))
    )
    bench.run()

    assert failures(bench) == {1: DecodeFailed}
    assert bench.vectors(0) == [[1.5, 2], [3.5, 4]]
    assert bench.vectors(2) == [[6.5, 7]]
    assert bench.backend.slot_tokens == {}


def test_a_failed_part_begins_the_input_again() -> None:
    """An input that was half computed when its batch failed is not taken up in the middle."""
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


def test_a_vector_that_is_no_number_is_a_failure() -> None:
    """A caller must never get NaN for an embedding."""

    class Broken(FakeEmbedding):
        def embed(self, batch: Any) -> Any:
            return {slot: v * float("nan") for slot, v in super().embed(batch).items()}

    bench = EmbeddingBench(Broken())
    bench.submit(make_embedding(0, (1, 2), (3, 4)))
    bench.run()

    assert failures(bench) == {0: DecodeFailed}


def test_no_memory_for_a_context_is_the_requests_own_error() -> None:
    """What the backend refuses with reaches the caller as it is."""

    class Full(FakeEmbedding):
        def embed(self, batch: Any) -> Any:
            raise ModelTooLarge(model="m", needed_bytes=2, available_bytes=1)

    bench = EmbeddingBench(Full())
    bench.submit(make_embedding(0))
    bench.run()

    assert failures(bench) == {0: ModelTooLarge}


def test_an_input_that_can_never_fit_fails_alone_and_at_once() -> None:
    """With both sizes, and without keeping others from their vectors."""
    bench = EmbeddingBench()
    bench.submit(make_embedding(0, (1,), (2,) * 17), make_embedding(1, (3,)))
    bench.run()
    (failed,) = [event for event in bench.events if isinstance(event, Failed)]

    assert isinstance(failed.error, ContextLengthExceeded)
    assert (failed.error.field, failed.error.prompt_tokens) == ("inputs[1]", 17)
    assert failed.error.context_tokens == 16
    assert bench.vectors(1) == [[3, 3]]


def test_a_cancelled_request_leaves_nothing_behind() -> None:
    """Its slots are free at once, and what others asked for goes on."""
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


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    """Queued or under way, it fails with the phase; the rest goes on."""
    bench = EmbeddingBench(pack_tokens=8)
    bench.submit(make_embedding(0, *[(1,) * 8] * 3, deadline=5.0), make_embedding(1, (2,) * 8))
    bench.step()
    bench.clock.now = 5.0
    bench.run()

    assert failures(bench) == {0: DeadlineExpired}
    assert bench.vectors(1) == [[2, 2]]


def test_vectors_are_cut_and_then_scaled() -> None:
    """The first components, of length 1; a vector of zeros stays what it is."""
    import numpy as np

    vector = np.array([3, 4, 12], np.float32)

    assert finished_vector(vector, 2, normalize=True).tolist() == pytest.approx([0.6, 0.8])
    assert finished_vector(vector, None, normalize=False).tolist() == [3, 4, 12]
    assert finished_vector(vector * 0, None, normalize=True).tolist() == [0, 0, 0]
