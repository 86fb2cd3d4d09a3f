"""Examples of property tests: how many are tried, and how a state machine draws what exists."""

import os
from collections.abc import Sequence
from typing import Final, TypeVar

import pytest
from hypothesis import strategies as st

ValueT = TypeVar("ValueT")
TIMES: Final = int(os.environ.get("CORRAL_TEST_EXAMPLES", "1"))


def examples(count: int) -> int:
    """Return `max_examples` for Hypothesis: `count`, multiplied in `make properties`."""
    return count * TIMES


def timeout(seconds: float) -> pytest.MarkDecorator:
    """The mark of a test that may take longer than others, also with the examples of `TIMES`."""
    return pytest.mark.timeout(seconds * TIMES)


def draw_one(data: st.DataObject, values: Sequence[ValueT]) -> ValueT | None:
    """Draw one of the values, or None if there is none.

    What Hypothesis draws does not depend on the values: with tasks and leases they may differ
    between a run and its replay, which Hypothesis would report as inconsistent data generation.
    """
    index = data.draw(st.integers(0, 255))
    return values[index % len(values)] if values else None
