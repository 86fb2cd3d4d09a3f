"""Refused calls in the audit log."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from svc_kit.errors import UpstreamUnavailable
from svc_kit.rpc.admin_call import REFUSAL_INTERVAL_S, RecentRefusals


async def hang() -> None:
    """A database that does not answer."""
    await asyncio.Event().wait()


async def fail() -> None:
    raise UpstreamUnavailable(service="database")


@pytest.mark.parametrize("away", [hang, fail])
async def test_a_refusal_that_could_not_be_recorded_is_recorded_next_time(
    away: Callable[[], Awaitable[None]],
) -> None:
    """Its call does not wait for the database. Later ones are not recorded for a while."""
    recorded: list[float] = []
    now = 0.0

    async def record() -> None:
        recorded.append(now)

    refusals = RecentRefusals(lambda: now)
    with pytest.raises((TimeoutError, UpstreamUnavailable)):
        await refusals.record("key", "method", away, timeout_s=0.01)
    for now in (1.0, 2.0, REFUSAL_INTERVAL_S, 1.0 + REFUSAL_INTERVAL_S):  # noqa: B007
        await refusals.record("key", "method", record)

    assert recorded == [1.0, 1.0 + REFUSAL_INTERVAL_S]
