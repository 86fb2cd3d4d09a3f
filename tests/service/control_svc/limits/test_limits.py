"""LimitService on both databases: limits, and the shares of holders."""

import asyncio
from typing import Any

import pytest
from corral.control.v1 import limit_service_pb2 as pb

from svc_kit import errors
from tests.support.control import RunningControl
from tests.support.operators import Operator, make_limit, make_usage_delta

SHADOW = pb.Limit.MODE_SHADOW


@pytest.fixture
def operator(running: RunningControl) -> Operator:
    return Operator.of(running)


def share(limit_id: str, **fields: Any) -> pb.LimitShareRequest:
    return pb.LimitShareRequest(limit_id=limit_id, **fields)


async def granted(operator: Operator, holder: str, *shares: pb.LimitShareRequest) -> list[int]:
    return [each.granted for each in (await operator.lease(holder, *shares)).shares]


async def test_a_limit_is_created_listed_changed_and_deleted(operator: Operator) -> None:
    """An update changes amount and mode alone; every service gets the same limits."""
    created = await operator.create_limit(
        "calls", "REQUESTS", 60, project="red", per=["SUBJECT_KEY"]
    )
    await operator.create_limit("at-once", "CONCURRENT_REQUESTS", 4, "")
    update = pb.UpdateLimitRequest(limit=pb.Limit(id="calls", amount=90, mode=SHADOW))
    updated = (await operator.call(operator.limits.UpdateLimit, update)).limit
    listed = (await operator.call(operator.limits.ListLimits, pb.ListLimitsRequest())).limits
    leased = (await operator.lease("one")).limits
    delete = pb.DeleteLimitRequest(limit_id="calls")
    await operator.call(operator.limits.DeleteLimit, delete)

    created.amount, created.mode = 90, SHADOW
    assert updated == created
    assert [limit.id for limit in listed] == ["at-once", "calls"]
    assert list(leased) == list(listed)
    with pytest.raises(errors.LimitNotFound):
        await operator.call(operator.limits.DeleteLimit, delete)


@pytest.mark.parametrize(
    ("limit", "error", "field"),
    [
        (make_limit("", "TOKENS", 1), errors.MissingField, "limit.id"),
        (make_limit("Calls", "TOKENS", 1), errors.InvalidField, "limit.id"),
        (make_limit("a", "UNSPECIFIED", 1), errors.MissingField, "limit.unit"),
        (make_limit("a", "TOKENS", 0), errors.OutOfRange, "limit.amount"),
        (make_limit("a", "TOKENS", 10**15 + 1), errors.OutOfRange, "limit.amount"),
        (make_limit("a", "TOKENS", 1, ""), errors.InvalidField, "limit.period"),
        (make_limit("a", "CONCURRENT_REQUESTS", 1), errors.InvalidField, "limit.period"),
        (make_limit("a", "TOKENS", 1, per=[2, 2]), errors.InvalidField, "limit.per"),
        (make_limit("a", "TOKENS", 1, key="a\nb"), errors.InvalidField, "limit.key"),
        (make_limit("a", "TOKENS", 1, model="m" * 256), errors.TooLong, "limit.model"),
    ],
    ids=map(str, range(10)),
)
async def test_an_invalid_limit_is_refused(
    operator: Operator, limit: pb.Limit, error: type[errors.DomainError], field: str
) -> None:
    with pytest.raises(error) as refusal:
        await operator.call(operator.limits.CreateLimit, pb.CreateLimitRequest(limit=limit))

    assert refusal.value.field == field


async def test_an_id_is_used_once(operator: Operator) -> None:
    """A second limit needs another id."""
    await operator.create_limit("calls", "REQUESTS", 60)
    with pytest.raises(errors.LimitExists):
        await operator.create_limit("calls", "TOKENS", 7)


async def test_only_services_lease_shares(running: RunningControl, operator: Operator) -> None:
    """Not even a key with the scope admin."""
    created = await operator.create_key(scopes=["KEY_SCOPE_ADMIN"])
    with pytest.raises(errors.ScopeMissing):
        await Operator.of(running, created.secret).lease("one")


async def test_holders_share_a_rate_that_is_refilled(
    running: RunningControl, operator: Operator
) -> None:
    """What one has, the other cannot get, until time has passed or it is returned."""
    await operator.create_limit("tokens", "TOKENS", 600)
    first = (await operator.lease("one", share("tokens", required=100, desired=400))).shares[0]
    assert (first.granted, first.remaining) == (350, 250)
    assert await granted(operator, "two", share("tokens", required=300)) == [0]
    assert await granted(operator, "two", share("tokens", required=250)) == [250]
    running.clock.advance(seconds=5)
    # "two" has used what it had, perhaps just now: a full bucket was not refilled until then.
    assert await granted(operator, "two", share("tokens", required=1)) == [0]
    running.clock.advance(seconds=5)
    # 50 of 600 are refilled.
    assert await granted(operator, "two", share("tokens", required=51)) == [0]
    assert await granted(operator, "two", share("tokens", required=50)) == [50]
    assert await granted(operator, "one", share("tokens", held=50, returned=300)) == [0]
    assert await granted(operator, "two", share("tokens", required=300)) == [300]
    running.clock.advance(minutes=2)
    # A full bucket does not have what "one" holds.
    assert await granted(operator, "one", share("tokens", held=50)) == [0]
    assert await granted(operator, "two", share("tokens", required=551)) == [0]
    assert await granted(operator, "two", share("tokens", required=550)) == [550]


async def test_what_was_used_beyond_a_share_is_owed(
    running: RunningControl, operator: Operator
) -> None:
    """Nothing is granted until time has refilled it."""
    await operator.create_limit("tokens", "TOKENS", 60)
    assert await granted(operator, "one", share("tokens", required=60)) == [60]
    assert await granted(operator, "one", share("tokens", returned=-30)) == [0]
    running.clock.advance(seconds=30)
    assert await granted(operator, "one", share("tokens", required=1)) == [0]
    running.clock.advance(seconds=1)
    assert await granted(operator, "one", share("tokens", required=1)) == [1]


async def test_what_a_call_says_is_counted_once_whichever_answer_was_lost(
    running: RunningControl, operator: Operator
) -> None:
    """What was returned follows from totals, and a call that arrives after a later one changes
    nothing. What was used after the lease is owed up to one amount."""
    await operator.create_limit("tokens", "TOKENS", 60)

    async def call(number: int, **fields: Any) -> int:
        asked = pb.LeaseLimitsRequest(
            holder="one", number=number, shares=[share("tokens", **fields)]
        )
        return (await operator.call(operator.limits.LeaseLimits, asked)).shares[0].granted

    assert await call(1, required=40) == 40
    assert await call(2, held=0, required=50) == 50  # the first answer was lost
    assert await call(3, held=20, used=30) == 0
    assert await call(2, held=0, required=5) == 0
    assert await granted(operator, "two", share("tokens", required=11)) == [0]
    assert await granted(operator, "two", share("tokens", required=10)) == [10]
    assert await call(4, held=0, used=30) == 0  # gives back 20
    assert await call(5, held=0, used=30) == 0
    assert await granted(operator, "two", share("tokens", held=10, required=21)) == [0]
    assert await granted(operator, "two", share("tokens", held=10, required=20)) == [20]
    running.clock.advance(minutes=10)
    assert await call(6, held=0, used=10_000) == 0
    running.clock.advance(seconds=2)
    assert await granted(operator, "two", share("tokens", required=1)) == [1]


async def test_a_share_of_a_holder_that_is_gone_becomes_free(
    running: RunningControl, operator: Operator
) -> None:
    """After the lease, which each call renews."""
    await operator.create_limit("at-once", "CONCURRENT_REQUESTS", 2, "")
    assert await granted(operator, "one", share("at-once", required=2)) == [2]
    running.clock.advance(seconds=10)
    assert await granted(operator, "one", share("at-once", held=2)) == [0]
    running.clock.advance(seconds=10)
    assert await granted(operator, "two", share("at-once", required=1)) == [0]
    running.clock.advance(seconds=6)
    assert await granted(operator, "two", share("at-once", required=1)) == [1]


async def test_a_budget_is_what_usage_has_left(running: RunningControl, operator: Operator) -> None:
    """Of the project, key and model in the day or month; it begins again with the next."""
    running.clock.now = running.clock.now.replace(hour=12)
    await operator.create_limit("daily", "TOKENS", 100, "DAY", per=["SUBJECT_KEY"], project="red")
    now = running.clock.now
    await operator.report("a", make_usage_delta(now, (1, 50, 0, 20), key="k1"))
    await operator.report("b", make_usage_delta(now, (1, 9, 0, 9), key="k1", project="blue"))

    mine = share("daily", key="k1", required=30)
    assert await granted(operator, "one", mine, share("daily", key="k2", required=101)) == [30, 0]
    mine.held = 30
    assert await granted(operator, "one", mine) == [0]
    mine.held = 0
    leased = (await operator.lease("one", mine)).shares[0]
    assert leased.granted == 30
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    assert (leased.reset_time.ToDatetime() - midnight.replace(tzinfo=None)).total_seconds() == 86400
    running.clock.advance(days=1)
    mine.required = 100
    assert await granted(operator, "one", mine) == [100]


async def test_an_operator_sees_what_is_left(running: RunningControl, operator: Operator) -> None:
    """Of a limit that nobody used, of each amount of a limit per key, and of a budget; what
    holders have leased is not left."""
    running.clock.now = running.clock.now.replace(hour=12)
    await operator.create_limit("calls", "REQUESTS", 60)
    await operator.create_limit("daily", "TOKENS", 100, "DAY", per=["SUBJECT_KEY"], project="red")
    await operator.report("a", make_usage_delta(running.clock.now, (1, 20, 0, 10), key="k/1"))
    daily = [share("daily", key=key, required=5) for key in ("k/1", "k2")]
    await operator.lease("one", *daily)
    unused = await operator.limit_buckets("calls")
    await operator.lease("one", share("calls", required=40))
    running.clock.advance(seconds=10)
    after = await operator.limit_buckets("calls")
    budgets = await operator.limit_buckets("daily", page_size=1)
    page = await operator.limit_buckets("daily", page_size=1, page_token=budgets.next_page_token)

    assert [*unused.buckets] == [pb.LimitBucket(limit_id="calls", amount=60, remaining=60)]
    assert [*after.buckets] == [pb.LimitBucket(limit_id="calls", amount=60, held=40, remaining=20)]
    (first,), (second,) = budgets.buckets, page.buckets
    assert not page.next_page_token
    assert (first.key, first.used, first.held, first.remaining) == ("k/1", 30, 5, 65)
    assert (second.key, second.used, second.held, second.remaining) == ("k2", 0, 5, 95)
    assert first.reset_time.ToDatetime().hour == 0
    with pytest.raises(errors.LimitNotFound):
        await operator.limit_buckets("gone")


async def test_parallel_holders_never_get_more_than_there_is(operator: Operator) -> None:
    """Transactions on the same bucket wait for each other, also the one that creates it."""
    await operator.create_limit("at-once", "CONCURRENT_REQUESTS", 25, "")

    async def take(holder: str) -> int:
        asked = share("at-once", required=7)
        return sum(await granted(operator, holder, asked))

    assert sum(await asyncio.gather(*(take(f"h{number}") for number in range(8)))) == 21


async def test_an_unknown_limit_grants_nothing(operator: Operator) -> None:
    """It may have been deleted a moment ago; malformed requests are refused."""
    assert await granted(operator, "one", share("gone", required=1)) == [0]
    for holder, asked in (("", share("a")), ("h" * 65, share("a")), ("one", share("a", held=-1))):
        with pytest.raises((errors.MissingField, errors.TooLong, errors.OutOfRange)):
            await operator.lease(holder, asked)
