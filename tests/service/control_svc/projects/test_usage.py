"""Usage: what services report is added up once, and operators read it by hour or day."""

import asyncio
import random
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from corral.control.v1 import usage_service_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from svc_kit.errors import DomainError, InvalidField, MissingField, OutOfRange, TooLong
from tests.support.control import RunningControl
from tests.support.examples import examples
from tests.support.operators import Operator, a_delta, stamp

HOURS, DAYS = pb.ListUsageRequest.PERIOD_HOUR, pb.ListUsageRequest.PERIOD_DAY
Sums = dict[tuple[str, str, datetime], tuple[int, int, int, int]]


@pytest.fixture
def service(running: RunningControl) -> Operator:
    """One of our own services; at noon, so that two hours are of one day."""
    running.clock.now = running.clock.now.replace(hour=12, minute=30)
    return Operator.of(running)


def sums_of(reply: pb.ListUsageResponse) -> Sums:
    """What a reply says, by project, model and time."""
    return {
        (each.project, each.model, each.start_time.ToDatetime(UTC)): (
            each.counts.requests,
            each.counts.prompt_tokens,
            each.counts.cached_tokens,
            each.counts.completion_tokens,
        )
        for each in reply.sums
    }


async def test_reports_are_added_up_by_hour_and_day(
    running: RunningControl, service: Operator
) -> None:
    """Oldest first; any time of an hour stands for it."""
    now = running.clock()
    noon = now.replace(minute=0, second=0, microsecond=0)
    midnight = noon.replace(hour=0)
    await service.report("one", a_delta(now, (1, 10, 4, 7)), a_delta(noon, (1, 1, 0, 1)))
    await service.report("two", a_delta(now - timedelta(hours=1), (2, 3, 0, 5)))
    await service.report("three", a_delta(now, (1, 1, 0, 0), project="blue", model="ü/%"))

    assert sums_of(await service.list_usage(period=HOURS)) == {
        ("red", "demo", noon - timedelta(hours=1)): (2, 3, 0, 5),
        ("blue", "ü/%", noon): (1, 1, 0, 0),
        ("red", "demo", noon): (2, 11, 4, 8),
    }
    assert sums_of(await service.list_usage()) == {
        ("blue", "ü/%", midnight): (1, 1, 0, 0),
        ("red", "demo", midnight): (4, 14, 4, 13),
    }


async def test_the_longest_names_are_added_up(running: RunningControl, service: Operator) -> None:
    """They are a key of the table, whose size is bounded: characters of the most bytes fit."""
    project, model = (
        "".join(chr(0x1F300 + random.randrange(700)) for _ in range(255)) for _ in "ab"
    )
    delta = a_delta(running.clock(), (1, 1, 0, 0), project=project, model=model)
    await service.report("one", delta)
    await service.report("two", delta)

    assert [place[:2] for place in sums_of(await service.list_usage())] == [(project, model)]
    assert len((await service.list_usage(project=project, model=model)).sums) == 1


async def test_a_report_is_added_once_however_often_it_comes(
    running: RunningControl, service: Operator
) -> None:
    """One after the other, and several at the same moment."""
    now = running.clock()
    reports = [("one", a_delta(now, (1, 10, 0, 1))), ("two", a_delta(now, (1, 5, 0, 1)))]
    await asyncio.gather(*(service.report(*each) for each in reports * 5))
    await service.report(*reports[0])

    assert list(sums_of(await service.list_usage()).values()) == [(2, 15, 0, 2)]


REPORTS = st.lists(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), min_size=1, max_size=3),
    min_size=1,
    max_size=4,
)
"""Of each report the models and their completion tokens."""


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(reports=REPORTS, data=st.data())
async def test_reports_in_any_order_and_number_add_up_to_each_once(
    running: RunningControl, service: Operator, reports: list[list[tuple[str, int]]], data: Any
) -> None:
    """Copies overtake one another, and come at the same moment; what nobody sent is not there."""
    project = uuid.uuid4().hex
    arrivals = data.draw(st.lists(st.integers(0, len(reports) - 1), max_size=10))
    at_once = data.draw(st.booleans())
    expected: dict[str, int] = {}
    for number in set(arrivals):
        for model, tokens in reports[number]:
            expected[model] = expected.get(model, 0) + tokens

    sending = [
        service.report(
            f"{project}-{number}",
            *(
                a_delta(running.clock(), (1, 0, 0, tokens), project=project, model=model)
                for model, tokens in reports[number]
            ),
        )
        for number in arrivals
    ]
    if at_once:
        await asyncio.gather(*sending)
    else:
        for each in sending:
            await each

    found = (await service.list_usage(project=project)).sums
    assert {each.model: each.counts.completion_tokens for each in found} == expected


async def test_pages_together_are_the_list(running: RunningControl, service: Operator) -> None:
    """Also where names have characters of their own; a token belongs to its filters."""
    now = running.clock()
    places = [(project, model) for project in ("a", "b/ü", "%2F") for model in ("m", "n o")]
    deltas = [a_delta(now, (1, 1, 0, 0), project=p, model=m) for p, m in places]
    await service.report("one", *deltas)
    seen: Counter[tuple[str, str]] = Counter()
    token = ""
    while True:
        page = await service.list_usage(page_size=4, page_token=token)
        seen.update((each.project, each.model) for each in page.sums)
        token = page.next_page_token
        if not token:
            break
        with pytest.raises(InvalidField, match="page_token"):
            await service.list_usage(page_token=token, project="a")

    assert seen == Counter(places)


async def test_sums_are_filtered(running: RunningControl, service: Operator) -> None:
    """By project, by model, from one hour up to another."""
    now = running.clock()
    noon = now.replace(minute=0, second=0, microsecond=0)
    for back in range(3):
        hour = now - timedelta(hours=back)
        await service.report(f"r{back}", a_delta(hour, (1, back, 0, 0)))
        await service.report(f"b{back}", a_delta(hour, (1, 9, 0, 0), project="blue", model="other"))

    async def ask(**filters: Any) -> list[tuple[str, int]]:
        reply = await service.list_usage(period=HOURS, **filters)
        return [(each.project, each.counts.prompt_tokens) for each in reply.sums]

    assert await ask(project="red") == [("red", 2), ("red", 1), ("red", 0)]
    assert await ask(model="other") == [("blue", 9)] * 3
    between = {
        "start_time": stamp(noon - timedelta(hours=1) + timedelta(minutes=59)),
        "end_time": stamp(noon + timedelta(minutes=1)),
    }
    assert await ask(project="red", **between) == [("red", 1)]
    assert await ask(project="nobody") == []


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("project", "", MissingField),
        ("project", "a\x00", InvalidField),
        ("model", "", MissingField),
        ("model", "m" * 256, TooLong),
        ("hour", stamp(datetime(2020, 1, 1, tzinfo=UTC)), InvalidField),
        ("hour", stamp(datetime(2120, 1, 1, tzinfo=UTC)), InvalidField),
        ("hour", Timestamp(seconds=2**60), InvalidField),
        ("counts", pb.UsageCounts(requests=-1), OutOfRange),
        ("counts", pb.UsageCounts(completion_tokens=2**60), OutOfRange),
    ],
    ids=str,
)
async def test_a_report_that_makes_no_sense_adds_nothing(
    running: RunningControl, service: Operator, field: str, value: Any, error: type[DomainError]
) -> None:
    """All of it or none: the good delta beside the bad one is not added either."""
    good, bad = (a_delta(running.clock(), (1, 1, 0, 0)) for _ in range(2))
    if isinstance(value, str):
        setattr(bad, field, value)
    else:
        getattr(bad, field).CopyFrom(value)

    with pytest.raises(error) as failure:
        await service.report("one", good, bad)
    assert (failure.value.field or "").startswith(f"deltas[1].{field}")
    assert sums_of(await service.list_usage()) == {}


async def test_reports_have_ids_and_bounds(running: RunningControl, service: Operator) -> None:
    """Neither none nor endless ones."""
    delta = a_delta(running.clock(), (1, 1, 0, 0))
    bad: list[tuple[type[DomainError], str, int]] = [
        (MissingField, "", 1),
        (TooLong, "r" * 65, 1),
        (MissingField, "one", 0),
        (TooLong, "one", 1001),
    ]
    for error, report_id, count in bad:
        with pytest.raises(error):
            await service.report(report_id, *[delta] * count)


async def test_questions_that_make_no_sense_are_refused(
    running: RunningControl, service: Operator
) -> None:
    """With the field that is at fault."""
    now = running.clock()
    backwards = {"start_time": stamp(now), "end_time": stamp(now - timedelta(hours=2))}
    bad: list[tuple[type[DomainError], dict[str, Any]]] = [
        (InvalidField, {"period": 99}),
        (InvalidField, {"project": "a\x00"}),
        (InvalidField, backwards),
        (InvalidField, {"start_time": Timestamp(seconds=2**60)}),
        (OutOfRange, {"page_size": -1}),
        (InvalidField, {"page_token": "x"}),
    ]
    for error, request in bad:
        with pytest.raises(error):
            await service.list_usage(**request)


async def test_an_old_report_is_refused_before_its_id_is_forgotten(
    running: RunningControl, service: Operator
) -> None:
    """So a copy that comes days late is never added a second time."""
    report = ("one", a_delta(running.clock(), (1, 10, 0, 1)))
    await service.report(*report)
    for _ in range(4):
        running.clock.advance(days=1)
        await running.control.sweeper.sweep()
        try:
            await service.report(*report)
        except InvalidField:
            continue

    assert list(sums_of(await service.list_usage()).values()) == [(1, 10, 0, 1)]
