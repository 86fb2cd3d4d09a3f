"""Connections parse what they received in turns of the event loop."""

import asyncio
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gateway.http.parser_scheduler import ALLOWANCE_S, REQUEST_S, TURN_S, ParserScheduler

MAX_SLICE_S = 0.002


class CpuTime:
    """A clock of processor time that parsers advance."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class FakeParser:
    """A connection with slices of these costs. It records when they are parsed, in `order`."""

    clock: CpuTime
    order: list[str]
    slices: list[float]
    peer: str = "192.0.2.1"
    name: str = ""
    busy_until: float = 0.0
    is_queued: bool = False
    is_aborted: bool = False
    turns: list[float] = field(default_factory=list)

    def parse_slice(self) -> bool:
        """Take as long as the next slice costs."""
        cost = self.slices.pop(0)
        if cost < 0:
            raise ValueError
        self.clock.seconds += cost
        self.order.append(self.name)
        return bool(self.slices)

    def abort(self) -> None:
        self.is_aborted = True


async def wait_until_parsed(clock: CpuTime, parsers: list[FakeParser]) -> list[float]:
    """Return the processor time of each turn of the loop until nothing is left to parse."""
    turns, before = [clock.seconds], clock.seconds
    while any(parser.slices for parser in parsers):
        await asyncio.sleep(0)
        turns.append(clock.seconds - before)
        before = clock.seconds
    return turns


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["192.0.2.1", "192.0.2.2"]),
            st.lists(st.floats(1e-5, MAX_SLICE_S), min_size=1, max_size=8),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_a_turn_is_bounded_and_everything_is_parsed(
    connections: list[tuple[str, list[float]]],
) -> None:
    """However many connections there are, a turn has TURN_S and what the last slice exceeds it."""

    async def run() -> list[float]:
        clock = CpuTime()
        scheduler = ParserScheduler(cpu_time=clock)
        parsers = [FakeParser(clock, [], slices, peer) for peer, slices in connections]
        for parser in parsers:
            scheduler.parse(parser)
        return await wait_until_parsed(clock, parsers)

    # `sleep(0)` may come before or after the scheduler's turn: two of them are in one at most.
    assert max(asyncio.run(run())) <= 2 * (TURN_S + MAX_SLICE_S)


async def test_an_address_that_used_much_waits_for_the_others() -> None:
    """Also with new connections, and although it was there first."""
    clock, order = CpuTime(), list[str]()
    scheduler = ParserScheduler(cpu_time=clock)
    first = FakeParser(clock, order, [2 * ALLOWANCE_S], name="first")
    scheduler.parse(first)
    heavy = [FakeParser(clock, order, [1e-4], name="heavy") for _ in range(3)]
    light = [FakeParser(clock, order, [1e-4], "192.0.2.2", "light") for _ in range(3)]
    for parser in (*heavy, *light):
        scheduler.parse(parser)
    await wait_until_parsed(clock, [*heavy, *light])

    assert order == ["first", *["light"] * 3, *["heavy"] * 3]


async def test_few_requests_begin_in_a_turn() -> None:
    """Their work follows in later turns, in which nothing else would be done."""
    clock, order = CpuTime(), list[str]()
    scheduler = ParserScheduler(cpu_time=clock)

    class Request(FakeParser):
        def parse_slice(self) -> bool:
            scheduler.charge_request(self)
            return super().parse_slice()

    requests = [Request(clock, order, [1e-6], f"192.0.2.{number}") for number in range(10)]
    for request in requests:
        scheduler.parse(request)

    assert len(order) == TURN_S / REQUEST_S
    await wait_until_parsed(clock, list(requests))
    assert len(order) == 10


async def test_a_parser_that_fails_stops_no_other() -> None:
    """Its connection is closed, and the next one goes on."""
    clock, order, errors = CpuTime(), list[str](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    scheduler = ParserScheduler(cpu_time=clock)
    failing = FakeParser(clock, order, [-1.0])
    other = FakeParser(clock, order, [1e-4], "192.0.2.2", "other")
    scheduler.queue(failing)
    scheduler.queue(other)
    await wait_until_parsed(clock, [other])

    assert failing.is_aborted
    assert order == ["other"]
    assert len(errors) == 1
