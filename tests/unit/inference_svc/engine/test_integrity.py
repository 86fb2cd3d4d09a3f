"""The comparison of slots with the cells of the backend."""

from array import array

import pytest

from inference_svc.engine.engine_parts import IntegrityError
from tests.support.fake_backend import FakeBackend
from tests.support.sequences import EngineBench, make_request

PROMPT = [65 + i % 26 for i in range(40)]


def test_a_slot_without_the_window_of_its_next_token_is_found() -> None:
    """Although it has as many tokens as the engine thinks."""
    bench = EngineBench(FakeBackend(window=8))
    bench.submit(make_request(0, PROMPT, max_tokens=1))
    bench.run()
    bench.engine.check_integrity()
    state = bench.backend.save(0)
    state[:4] = array("i", [len(PROMPT) - 2]).tobytes()
    bench.backend.restore(0, state)

    with pytest.raises(IntegrityError, match="lacks cells"):
        bench.engine.check_integrity()


def test_a_slot_of_another_length_is_found() -> None:
    """A cell that was removed is not one that can be reused."""
    bench = EngineBench(FakeBackend(window=8))
    bench.submit(make_request(0, PROMPT, max_tokens=1))
    bench.run()
    bench.backend.trim(0, len(PROMPT) - 1)

    with pytest.raises(IntegrityError, match="39 cells for 40 tokens"):
        bench.engine.check_integrity()
