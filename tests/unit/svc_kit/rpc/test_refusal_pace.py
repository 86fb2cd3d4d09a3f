"""Refusals beyond a rate are answered later."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from svc_kit.rpc.refusal_pace import MAX_DELAY_S, MAX_WAITING, RATE, RefusalPace


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 0.02)), min_size=150, max_size=200))
def test_a_project_gets_its_rate_and_what_it_did_not_use_in_a_second(
    refusals: list[tuple[str, float]],
) -> None:
    """In any window, but for the refusals that have waited as long as one may."""
    clock = [0.0]
    pace = RefusalPace(now=lambda: clock[0])
    answers: dict[str, list[float]] = {"a": [], "b": []}
    for project, later_s in refusals:
        clock[0] += later_s
        delay_s = pace.add(project)
        assert 0 <= delay_s <= MAX_DELAY_S
        if delay_s < MAX_DELAY_S - 1 / RATE:  # its turn was not brought forward
            answers[project].append(clock[0] + delay_s)

    for times in answers.values():
        for first, start in enumerate(times):
            within = sum(start <= each < start + 1 for each in times[first:])
            assert within <= 2 * RATE + 2  # both ends of the window, and rounding


def test_others_do_not_wait() -> None:
    """The flood of one project delays no refusal of another, and ends with its last second."""
    clock = [0.0]
    pace = RefusalPace(now=lambda: clock[0])
    delays = [pace.add("a") for _ in range(200)]
    other = pace.add("b")
    clock[0] = 1 + MAX_DELAY_S

    assert delays[:RATE] == [0.0] * RATE
    assert delays[-1] == MAX_DELAY_S
    assert other == 0.0
    assert pace.add("a") == 0.0


async def test_few_refusals_wait_and_none_beyond_its_deadline() -> None:
    """Whatever the number of callers: those that would wait too long are answered at once."""
    pace = RefusalPace(now=lambda: 0.0)
    for _ in range(100):
        pace.add("a")
    await pace.wait("a", time_remaining_s=0.05)
    waiting = [asyncio.create_task(pace.wait("a", None)) for _ in range(MAX_WAITING + 10)]
    done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in rest:
        each.cancel()

    assert len(done) == 10
