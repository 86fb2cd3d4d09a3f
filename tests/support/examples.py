"""Examples of property tests: how many are tried, and how a state machine draws what exists."""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st

ValueT = TypeVar("ValueT")
TIMES: Final = int(os.environ.get("CORRAL_TEST_EXAMPLES", "1"))
# One depends on the load of the machine; the other counts mutations of nested lists whose choices
# end early as inputs that are too large, also if these are small.
UNRELIABLE_CHECKS: Final = (HealthCheck.too_slow, HealthCheck.data_too_large)


def examples(count: int) -> int:
    """Return `max_examples` for Hypothesis: a quarter of `count`, or a multiple in `make
    properties`."""
    return count * TIMES if TIMES > 1 else (count + 3) // 4


def every_nth(values: Iterable[ValueT], step: int, begin: int = 0) -> Iterator[ValueT]:
    """One of `step` values, the first at `begin`, or all of them in `make properties`."""
    return iter(values) if TIMES > 1 else islice(values, begin, None, step)


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
