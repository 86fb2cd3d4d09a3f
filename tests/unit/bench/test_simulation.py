"""The simulation of replicas, against formulas that are not ours, and what no policy can break."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.paths import REPOSITORY
from bench.plots import line_chart
from bench.simulation.balancers import (
    least_load,
    ring_hash,
    round_robin,
    stride_weights,
    weighted_round_robin,
)
from bench.simulation.calibration import measured
from bench.simulation.replica import ReplicaShape
from bench.simulation.simulator import Failure, Outcome, Policy, simulate
from bench.simulation.study import CORRAL, POLICIES
from bench.simulation.traces import (
    Conversation,
    TraceShape,
    Turn,
    make_trace,
    perfect_hit_rate,
)
from bench.simulation.xxhash import xxh64
from bench.step_times import StepTimes

TIMES = StepTimes(0.01, 0.001, 0.001)
SMALL = TraceShape("small", system_tokens=100, text_tokens=30, long_tokens=300, output_tokens=20)
STEP_S = 0.001


def small_trace(num_replicas: int, seed: int, load: float = 0.7) -> list[Conversation]:
    return make_trace(
        SMALL, TIMES, num_replicas=num_replicas, slots=4, load=load, seconds=4, seed=seed
    )


def run(trace: list[Conversation], policy: Policy, count: int, **more: object) -> Outcome:
    shape = ReplicaShape(TIMES, slots=4, cache_tokens=4000)
    return simulate(trace, policy, shape, num_replicas=count, **more)  # type: ignore[arg-type]


@given(
    st.sampled_from(POLICIES),
    st.integers(1, 3),
    st.integers(0, 10**6),
    st.lists(st.tuples(st.integers(0, 2), st.floats(0.1, 8), st.floats(0.01, 10)), max_size=4),
)
def test_each_turn_ends_exactly_once_whatever_fails(
    policy: Policy, count: int, seed: int, outages: list[tuple[int, float, float]]
) -> None:
    """Unless no replica is up; and no policy finds more than a perfect router."""
    trace = small_trace(count, seed)
    failures = [
        Failure(number, at, at + length)
        for number, at, length in {each[0]: each for each in outages}.values()
        if number < count
    ]
    outcome = run(trace, policy, count, failures=failures)
    ended = Counter((each.conversation.number, each.turn) for each in outcome.ended)
    cut = {each.conversation.number: each.turn for each in outcome.failed}
    expected = {
        (each.number, turn)
        for each in trace
        for turn in range(cut.get(each.number, len(each.turns)))
    }

    assert ended == dict.fromkeys(expected, 1)
    assert len(failures) == count or not cut
    assert all(each.num_output == each.output_tokens for each in outcome.ended)
    if not cut:
        assert outcome.hit_rate <= perfect_hit_rate(trace)


def test_all_policies_are_equal_on_one_replica_but_for_refusals() -> None:
    trace = small_trace(1, seed=3)
    waits = [run(trace, policy, 1).waits_s for policy in POLICIES]

    assert all(each == waits[0] for each in waits)


def test_an_unlimited_cache_of_one_replica_is_perfect() -> None:
    trace = small_trace(1, seed=5)
    outcome = simulate(trace, CORRAL, ReplicaShape(TIMES, cache_tokens=10**9), num_replicas=1)

    assert outcome.hit_rate == pytest.approx(perfect_hit_rate(trace))


def test_a_seed_determines_the_outcome() -> None:
    figures = [run(small_trace(4, seed=8), CORRAL, 4).figures() for _ in range(2)]

    assert figures[0] == figures[1]


def erlang_c(servers: int, offered: float) -> float:
    """The probability that an arrival waits."""
    below = sum(offered**k / math.factorial(k) for k in range(servers))
    full = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return full / (below + full)


@pytest.mark.parametrize(("slots", "utilization"), [(1, 0.5), (1, 0.7), (4, 0.8)])
def test_waits_are_those_of_the_formula_for_exponential_times(
    slots: int, utilization: float
) -> None:
    """Of M/M/c: Poisson arrivals, answers of exponential length, rows that slow nobody down."""
    rng, now, trace = random.Random(11), 0.0, []
    for number in range(20_000):
        now += rng.expovariate(utilization * slots)
        output_tokens = 1 + round(rng.expovariate(STEP_S))
        turn = Turn(1, output_tokens, 0.0)
        trace.append(Conversation(number, str(number), number, 0, now, (turn,)))
    shape = ReplicaShape(StepTimes(STEP_S), slots, cache_tokens=1)
    waits_s = simulate(trace, CORRAL._replace(full_at=None), shape, num_replicas=1).waits_s
    expected_s = erlang_c(slots, utilization * slots) / (slots - slots * utilization)

    assert sum(waits_s) / len(waits_s) == pytest.approx(expected_s, rel=0.1)


def test_a_lone_request_takes_the_time_of_its_steps() -> None:
    turn = Turn(600, 10, 0.0)
    outcome = run([Conversation(0, "k", 0, 100, 2.0, (turn,))], CORRAL, 2)

    assert outcome.waits_s == [pytest.approx(2 * 0.01 + 700 * 0.001)]
    assert sum(outcome.busy_s) == pytest.approx(0.72 + 9 * 0.011)


def test_a_full_home_passes_calls_on_once() -> None:
    turn = Turn(50, 30, 0.0)
    trace = [Conversation(number, "crowd", 0, 10, 0.0, (turn,)) for number in range(30)]
    outcome = run(trace, CORRAL, 2)

    assert sum(each.num_refusals for each in outcome.ended) == 30 - 8
    assert min(outcome.busy_s) > 0
    assert run(trace, Policy("no spill", CORRAL.tries[:1]), 2).busy_s.count(0.0) == 1


def test_what_a_failed_replica_had_is_computed_elsewhere() -> None:
    """The tokens that were sent are part of the new prompt, and are not sent again."""
    trace = [Conversation(0, "k", 0, 100, 0.0, (Turn(100, 50, 0.0),))]
    policy = Policy("turns", (round_robin,))
    (request,) = run(trace, policy, 2, failures=[Failure(0, 0.4, 9.0)]).ended

    assert request.num_moves == 1
    assert request.num_computed == 200 + (200 + 18)
    assert request.first_token_at == pytest.approx(0.21)


def test_what_waited_at_a_failed_replica_ends_once() -> None:
    """Also when that replica is back."""
    trace = [Conversation(n, str(n), 0, 10, 0.1 * n, (Turn(50, 90, 0.0),)) for n in range(40)]
    policy = Policy("turns", (round_robin,))
    ended = run(trace, policy, 2, failures=[Failure(0, 3.0, 3.5)]).ended

    assert sorted(each.conversation.number for each in ended) == [*range(40)]
    assert sum(each.num_moves for each in ended) > 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [(b"", 0xEF46DB3751D8E999), (b"a", 0xD24EC4F1A98C6E5B), (b"abc", 0x44BC2CF5AD770999)],
)
def test_hashes_are_those_of_the_published_vectors(text: bytes, expected: int) -> None:
    assert xxh64(text) == expected


def test_weights_stay_within_ten_times_of_their_mean() -> None:
    """As gRPC scales them into 16 bits."""
    assert stride_weights([1.0, 1.0]) == [65535, 65535]
    assert stride_weights([1.0, 0.5]) == [65535, 32768]
    assert stride_weights([50.0, *[0.01] * 99])[1] == 656


@pytest.mark.parametrize("make", [ring_hash(64), round_robin, least_load, weighted_round_robin])
def test_balancers_leave_out_replicas_that_are_away(make: object) -> None:
    trace = small_trace(3, seed=1)
    policy = Policy("one", (make,))  # type: ignore[arg-type]
    outcome = run(trace, policy, 3, failures=[Failure(1, 0.0, 1e6)])

    assert not outcome.failed
    assert outcome.busy_s[1] == 0.0
    assert outcome.busy_s[0] > 0 < outcome.busy_s[2]


def test_step_times_are_read_from_the_committed_results() -> None:
    times = measured(REPOSITORY / "bench/results/gpu")

    assert 0.001 < times.decode_s(1) < times.decode_s(16) < 0.02
    assert 0 < times.token_s < times.call_s


def test_a_line_has_a_point_for_each_value() -> None:
    chart = line_chart({"a": [("2", 1.0), ("4", 0.5)], "b": [("2", 0.1), ("4", 0.2)]}, "legend")

    assert chart.count("<circle") == 4
    assert all(f">{text}<" in chart for text in ("a", "b", "2", "4", "legend", "1"))
