"""The order of a drain."""

import asyncio
from typing import Any, cast

import pytest

from inference_svc.app import Inference, drain

GRACE_S = 2.0


class FakeServer:
    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    async def announce_drain(self) -> None:
        self._calls.append("announce")

    async def drain(self, grace_s: float) -> None:
        self._calls.append("end")


class FakePool:
    """Its requests end at the start, while prefixes are archived, or never."""

    def __init__(self, calls: list[str], requests_end: str) -> None:
        self.archive_s = 0.0
        self._calls = calls
        self._idle = asyncio.Event()
        self._requests_end = requests_end
        if requests_end == "at once":
            self._idle.set()

    def drain(self) -> None:
        self._calls.append("refuse")

    async def wait_idle(self) -> None:
        await self._idle.wait()
        self._calls.append("idle")

    async def archive_prefixes(self, timeout_s: float) -> None:
        self.archive_s = timeout_s
        self._calls.append("archive")
        if self._requests_end == "late":
            self._idle.set()


@pytest.mark.parametrize(
    ("requests_end", "expected", "archive_s"),
    [
        ("at once", ["idle", "archive"], GRACE_S),
        ("late", ["archive", "idle"], GRACE_S / 4),
        ("never", ["archive"], GRACE_S / 4),
    ],
)
async def test_prefixes_are_archived_within_the_grace(
    requests_end: str, expected: list[str], archive_s: float
) -> None:
    """When all requests have ended, else also those that still run before it is over."""
    calls: list[str] = []
    pool = FakePool(calls, requests_end)
    await drain(Inference(cast(Any, FakeServer(calls)), cast(Any, pool), None), GRACE_S)

    assert calls == ["announce", "refuse", *expected, "end"]
    assert 0 < pool.archive_s <= archive_s
