"""UsageService on both databases: reports are added once, and sums listed by hour or day."""

import asyncio
import random
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from corral.control.v1 import usage_service_pb2 as pb
from corral.control.v1.limit_service_pb2 import LimitShareRequest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from svc_kit.errors import DomainError, InvalidField, MissingField, OutOfRange, TooLong
from tests.support.control import RunningControl
from tests.support.examples import UNRELIABLE_CHECKS, examples
from tests.support.operators import Operator, make_timestamp, make_usage_delta

HOURS, DAYS = pb.ListUsageRequest.PERIOD_HOUR, pb.ListUsageRequest.PERIOD_DAY
Sums = dict[tuple[str, str, datetime], tuple[int, int, int, int]]


@pytest.fixture
def service(running: RunningControl) -> Operator:
    """A service, at noon, so that the hours around it are in one day."""
    running.clock.now = running.clock.now.replace(hour=12, minute=30)
    return Operator.of(running)


def collect_sums(reply: pb.ListUsageResponse) -> Sums:
    return {
        (each.project, each.model, each.start_time.ToDatetime(UTC)): (
            each.counts.requests,
            each.counts.prompt_tokens,
            each.counts.cached_tokens,
            each.counts.completion_tokens,
        )
        for each in reply.sums
    }


async def test_reports_are_summed_by_hour_and_day(
    running: RunningControl, service: Operator
) -> None:
    """Times are rounded down to the hour."""
    now = running.clock()
    noon = now.replace(minute=0, second=0, microsecond=0)
    midnight = noon.replace(hour=0)
    await service.report(
        "one", make_usage_delta(now, (1, 10, 4, 7)), make_usage_delta(noon, (1, 1, 0, 1))
    )
    await service.report("two", make_usage_delta(now - timedelta(hours=1), (2, 3, 0, 5)))
    await service.report("three", make_usage_delta(now, (1, 1, 0, 0), project="blue", model="ü/%"))

    assert collect_sums(await service.list_usage(period=HOURS)) == {
        ("red", "demo", noon - timedelta(hours=1)): (2, 3, 0, 5),
        ("blue", "ü/%", noon): (1, 1, 0, 0),
        ("red", "demo", noon): (2, 11, 4, 8),
    }
    assert collect_sums(await service.list_usage()) == {
        ("blue", "ü/%", midnight): (1, 1, 0, 0),
        ("red", "demo", midnight): (4, 14, 4, 13),
    }


async def test_the_longest_names_are_accepted(running: RunningControl, service: Operator) -> None:
    """Keys of 255 four-byte characters fit into the index."""
    project, model = (
        "".join(chr(0x1F300 + random.randrange(700)) for _ in range(255)) for _ in "ab"
    )
    delta = make_usage_delta(running.clock(), (1, 1, 0, 0), project=project, model=model)
    await service.report("one", delta)
    await service.report("two", delta)

    assert [key[:2] for key in collect_sums(await service.list_usage())] == [(project, model)]
    assert len((await service.list_usage(project=project, model=model)).sums) == 1


async def test_a_repeated_report_is_added_once(running: RunningControl, service: Operator) -> None:
    """One after the other, and concurrently."""
    now = running.clock()
    reports = [
        ("one", make_usage_delta(now, (1, 10, 0, 1))),
        ("two", make_usage_delta(now, (1, 5, 0, 1))),
    ]
    await asyncio.gather(*(service.report(*each) for each in reports * 5))
    await service.report(*reports[0])

    assert list(collect_sums(await service.list_usage()).values()) == [(2, 15, 0, 2)]


REPORTS = st.lists(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), min_size=1, max_size=3),
    min_size=1,
    max_size=4,
)
"""Models and completion tokens of each report."""


@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[*UNRELIABLE_CHECKS, HealthCheck.function_scoped_fixture],
)
@given(reports=REPORTS, data=st.data())
async def test_each_report_is_added_once_in_any_order(
    running: RunningControl, service: Operator, reports: list[list[tuple[str, int]]], data: Any
) -> None:
    """With copies that arrive in any order or concurrently."""
    project = uuid.uuid4().hex
    arrivals = data.draw(st.lists(st.integers(0, len(reports) - 1), max_size=10))
    is_concurrent = data.draw(st.booleans())
    expected: dict[str, int] = {}
    for number in set(arrivals):
        for model, tokens in reports[number]:
            expected[model] = expected.get(model, 0) + tokens

    requests = [
        service.report(
            f"{project}-{number}",
            *(
                make_usage_delta(running.clock(), (1, 0, 0, tokens), project=project, model=model)
                for model, tokens in reports[number]
            ),
        )
        for number in arrivals
    ]
    if is_concurrent:
        await asyncio.gather(*requests)
    else:
        for each in requests:
            await each

    sums = (await service.list_usage(project=project)).sums
    assert {each.model: each.counts.completion_tokens for each in sums} == expected


async def test_pages_contain_all_sums(running: RunningControl, service: Operator) -> None:
    """With names that need encoding; a page token is valid for its filters only."""
    now = running.clock()
    keys = [(project, model) for project in ("a", "b/ü", "%2F") for model in ("m", "n o")]
    deltas = [make_usage_delta(now, (1, 1, 0, 0), project=p, model=m) for p, m in keys]
    await service.report("one", *deltas)
    listed: Counter[tuple[str, str]] = Counter()
    token = ""
    while True:
        page = await service.list_usage(page_size=4, page_token=token)
        listed.update((each.project, each.model) for each in page.sums)
        token = page.next_page_token
        if not token:
            break
        with pytest.raises(InvalidField, match="page_token"):
            await service.list_usage(page_token=token, project="a")

    assert listed == Counter(keys)


async def test_sums_are_filtered(running: RunningControl, service: Operator) -> None:
    now = running.clock()
    noon = now.replace(minute=0, second=0, microsecond=0)
    for back in range(3):
        hour = now - timedelta(hours=back)
        await service.report(f"r{back}", make_usage_delta(hour, (1, back, 0, 0)))
        await service.report(
            f"b{back}", make_usage_delta(hour, (1, 9, 0, 0), project="blue", model="other")
        )

    async def query(**filters: Any) -> list[tuple[str, int]]:
        reply = await service.list_usage(period=HOURS, **filters)
        return [(each.project, each.counts.prompt_tokens) for each in reply.sums]

    assert await query(project="red") == [("red", 2), ("red", 1), ("red", 0)]
    assert await query(model="other") == [("blue", 9)] * 3
    one_hour = {
        "start_time": make_timestamp(noon - timedelta(hours=1) + timedelta(minutes=59)),
        "end_time": make_timestamp(noon + timedelta(minutes=1)),
    }
    assert await query(project="red", **one_hour) == [("red", 1)]
    assert await query(project="nobody") == []


INVALID_DELTAS: list[tuple[str, Any, type[DomainError]]] = [
    ("project", "", MissingField),
    ("project", "a\x00", InvalidField),
    ("model", "", MissingField),
    ("model", "m" * 256, TooLong),
    ("hour", Timestamp(seconds=2**60), InvalidField),
    ("counts", pb.UsageCounts(requests=-1), OutOfRange),
    ("counts", pb.UsageCounts(completion_tokens=2**60), OutOfRange),
]


async def test_an_invalid_report_adds_nothing(
    running: RunningControl, service: Operator, subtests: pytest.Subtests
) -> None:
    """Not even its valid deltas."""
    for field, value, error in INVALID_DELTAS:
        valid, invalid = (make_usage_delta(running.clock(), (1, 1, 0, 0)) for _ in range(2))
        if isinstance(value, str):
            setattr(invalid, field, value)
        else:
            getattr(invalid, field).CopyFrom(value)
        with subtests.test(field=field, value=value):
            with pytest.raises(error) as raised:
                await service.report("one", valid, invalid)
            assert (raised.value.field or "").startswith(f"deltas[1].{field}")
    assert collect_sums(await service.list_usage()) == {}


async def test_the_size_of_reports_is_limited(running: RunningControl, service: Operator) -> None:
    """Ids and deltas are required, and their number is limited."""
    delta = make_usage_delta(running.clock(), (1, 1, 0, 0))
    cases: list[tuple[type[DomainError], str, int]] = [
        (MissingField, "", 1),
        (TooLong, "r" * 65, 1),
        (MissingField, "one", 0),
        (TooLong, "one", 1001),
    ]
    for error, report_id, count in cases:
        with pytest.raises(error):
            await service.report(report_id, *[delta] * count)


async def test_invalid_queries_are_refused(running: RunningControl, service: Operator) -> None:
    """Each with its error."""
    now = running.clock()
    backwards = {
        "start_time": make_timestamp(now),
        "end_time": make_timestamp(now - timedelta(hours=2)),
    }
    cases: list[tuple[type[DomainError], dict[str, Any]]] = [
        (InvalidField, {"period": 99}),
        (InvalidField, {"project": "a\x00"}),
        (InvalidField, backwards),
        (InvalidField, {"start_time": Timestamp(seconds=2**60)}),
        (OutOfRange, {"page_size": -1}),
        (InvalidField, {"page_token": "x"}),
    ]
    for error, request in cases:
        with pytest.raises(error):
            await service.list_usage(**request)


@pytest.mark.parametrize("days", [-400, -3, 3, 36500])
async def test_usage_is_kept_when_a_clock_jumps(
    running: RunningControl, service: Operator, days: int
) -> None:
    """That of the reporting service or of this one. What seems to be of the future is of now; a
    repetition within a week is not added again."""
    now = running.clock()
    report = ("one", make_usage_delta(now + timedelta(days=days), (1, 10, 0, 1)))
    await service.report(*report)
    running.clock.advance(days=6)
    await running.control.sweeper.sweep()
    await service.report(*report)
    sums = (await service.list_usage(period=pb.ListUsageRequest.PERIOD_HOUR)).sums

    hour = (now + timedelta(days=min(days, 0))).replace(minute=0, second=0, microsecond=0)
    assert [(each.counts.requests, each.start_time.ToDatetime(UTC)) for each in sums] == [(1, hour)]


async def test_limits_go_on_when_the_clock_is_set_back(
    running: RunningControl, service: Operator
) -> None:
    """A rate is refilled from then on, and a share of a holder that is gone becomes free."""
    running.clock.advance(hours=5)
    await service.create_limit("calls", "REQUESTS", 60)
    share = LimitShareRequest(limit_id="calls", required=40)
    await service.lease("gone", share)
    running.clock.advance(hours=-5)
    await service.lease("one", LimitShareRequest(limit_id="calls"))
    running.clock.advance(seconds=20)
    granted = (await service.lease("one", share)).shares[0].granted

    assert granted == 40
