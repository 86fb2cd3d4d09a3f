"""API key verification through the control service: cache, limits and outages."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from svc_kit.auth.control_keys import (
    MAX_PENDING_LOOKUPS,
    ControlKeys,
    ControlProjects,
    KeyLookupResult,
    ProjectLookupResult,
)
from svc_kit.auth.keys import create_key, hash_key
from svc_kit.auth.principal import Principal
from svc_kit.errors import (
    ApiKeyExpired,
    ApiKeyInvalid,
    ApiKeyRevoked,
    DomainError,
    ProjectArchived,
    UpstreamUnavailable,
)

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
RED = Principal(project="red", scopes=frozenset({"inference"}), key_id="key_1")


class FakeControl:
    """A fake control service that records the digests it is asked for."""

    def __init__(self) -> None:
        self.results: dict[str, KeyLookupResult] = {}
        self.digests: list[str] = []
        self.is_unavailable = False
        self.started = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def look_up(self, digest: str) -> KeyLookupResult:
        self.digests.append(digest)
        self.started.set()
        await self.gate.wait()
        if self.is_unavailable:
            raise UpstreamUnavailable(service="control")
        return self.results.get(digest, KeyLookupResult(ApiKeyInvalid()))

    def set_result(
        self, key: str, outcome: Principal | DomainError, expires_at: datetime | None = None
    ) -> None:
        self.results[hash_key(key)] = KeyLookupResult(outcome, expires_at)


class KeysFixture:
    """ControlKeys with a fake control service and a manual clock."""

    def __init__(self, cache_s: float = 30.0, max_cached_keys: int = 100) -> None:
        self.control = FakeControl()
        self.clock_s = 0.0
        self.keys = ControlKeys(
            self.control.look_up,
            cache_s=cache_s,
            max_cached_keys=max_cached_keys,
            clock=lambda: 1000.0 + self.clock_s,
            now=lambda: NOW + timedelta(seconds=self.clock_s),
        )


async def test_a_valid_key_is_cached_for_thirty_seconds() -> None:
    """One lookup is made, with only the hash of the key."""
    fixture, key = KeysFixture(), create_key()
    fixture.control.set_result(key, RED)
    for second in (0.0, 1.0, 29.9):
        fixture.clock_s = second
        assert await fixture.keys.verify(key) is RED

    assert fixture.control.digests == [hash_key(key)]


async def test_a_revoked_key_is_refused_thirty_seconds_after_its_lookup_began() -> None:
    """The time a slow lookup takes counts."""
    fixture, key = KeysFixture(), create_key()
    fixture.control.set_result(key, RED)
    fixture.control.gate.clear()
    verification = asyncio.create_task(fixture.keys.verify(key))
    await fixture.control.started.wait()
    fixture.clock_s = 4.0
    fixture.control.gate.set()
    await verification
    fixture.control.set_result(key, ApiKeyRevoked())

    fixture.clock_s = 29.9
    assert await fixture.keys.verify(key) is RED
    fixture.clock_s = 30.0
    with pytest.raises(ApiKeyRevoked):
        await fixture.keys.verify(key)


async def test_a_cached_key_is_refused_after_its_expiry() -> None:
    fixture, key = KeysFixture(), create_key()
    fixture.control.set_result(key, RED, NOW + timedelta(seconds=10))
    assert await fixture.keys.verify(key) is RED

    fixture.clock_s = 10.0
    with pytest.raises(ApiKeyExpired):
        await fixture.keys.verify(key)


async def test_a_refused_key_is_cached_for_five_seconds() -> None:
    """After that it is looked up again."""
    fixture, key = KeysFixture(), create_key()
    for second in (0.0, 4.9):
        fixture.clock_s = second
        with pytest.raises(ApiKeyInvalid):
            await fixture.keys.verify(key)
    fixture.control.set_result(key, RED)
    fixture.clock_s = 5.0

    assert await fixture.keys.verify(key) is RED
    assert len(fixture.control.digests) == 2


async def test_cached_keys_are_accepted_while_control_is_unavailable() -> None:
    """Keys that are not cached, or no longer, fail with UpstreamUnavailable and a retry time."""
    fixture, known, other = KeysFixture(), create_key(), create_key()
    fixture.control.set_result(known, RED)
    await fixture.keys.verify(known)
    fixture.control.is_unavailable = True

    fixture.clock_s = 29.0
    assert await fixture.keys.verify(known) is RED
    with pytest.raises(UpstreamUnavailable) as failure:
        await fixture.keys.verify(other)
    assert failure.value.retry_after is not None
    fixture.clock_s = 30.0
    with pytest.raises(UpstreamUnavailable):
        await fixture.keys.verify(known)
    fixture.control.is_unavailable = False
    assert await fixture.keys.verify(known) is RED


async def test_concurrent_requests_for_a_key_share_one_lookup() -> None:
    """Cancelling the first of them does not cancel the lookup."""
    fixture, key = KeysFixture(), create_key()
    fixture.control.set_result(key, RED)
    fixture.control.gate.clear()
    waiting = [asyncio.create_task(fixture.keys.verify(key)) for _ in range(50)]
    await fixture.control.started.wait()
    waiting[0].cancel()
    fixture.control.gate.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)

    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert outcomes[1:] == [RED] * 49
    assert len(fixture.control.digests) == 1


async def test_malformed_keys_are_not_sent_to_control() -> None:
    """They are refused as ApiKeyInvalid without a lookup."""
    fixture = KeysFixture()
    for text in ("", "sk-other", f"{create_key()}x", create_key().upper(), "ключ"):
        with pytest.raises(ApiKeyInvalid):
            await fixture.keys.verify(text)

    assert fixture.control.digests == []


async def test_wrong_keys_do_not_evict_valid_keys() -> None:
    """The caches of valid and of refused keys are bounded separately."""
    fixture, good = KeysFixture(max_cached_keys=3), create_key()
    fixture.control.set_result(good, RED)
    await fixture.keys.verify(good)
    for _ in range(10):
        with pytest.raises(ApiKeyInvalid):
            await fixture.keys.verify(create_key())
    num_lookups = len(fixture.control.digests)

    assert await fixture.keys.verify(good) is RED
    assert len(fixture.control.digests) == num_lookups


async def test_lookups_above_the_pending_limit_fail_as_unavailable() -> None:
    """Cached keys are still accepted."""
    fixture, good = KeysFixture(), create_key()
    fixture.control.set_result(good, RED)
    await fixture.keys.verify(good)
    fixture.control.started.clear()
    fixture.control.gate.clear()
    lookups = [
        asyncio.create_task(fixture.keys.verify(create_key())) for _ in range(MAX_PENDING_LOOKUPS)
    ]
    await fixture.control.started.wait()

    with pytest.raises(UpstreamUnavailable):
        await fixture.keys.verify(create_key())
    assert await fixture.keys.verify(good) is RED
    fixture.control.gate.set()
    refused = await asyncio.gather(*lookups, return_exceptions=True)
    assert {type(error) for error in refused} == {ApiKeyInvalid}


async def test_the_oldest_cached_key_is_evicted() -> None:
    """It is looked up again."""
    fixture, keys = KeysFixture(max_cached_keys=2), [create_key() for _ in range(3)]
    for key in keys:
        fixture.control.set_result(key, RED)
        await fixture.keys.verify(key)
    for key in (keys[2], keys[1], keys[0]):
        await fixture.keys.verify(key)

    assert fixture.control.digests == [hash_key(key) for key in (*keys, keys[0])]


async def test_a_cache_time_of_zero_disables_the_cache() -> None:
    """A revoked key is refused at once."""
    fixture, key = KeysFixture(cache_s=0), create_key()
    fixture.control.set_result(key, RED)
    await fixture.keys.verify(key)
    fixture.control.set_result(key, ApiKeyRevoked())

    with pytest.raises(ApiKeyRevoked):
        await fixture.keys.verify(key)


async def test_the_state_of_a_project_is_cached_for_thirty_seconds() -> None:
    """Then an archived one is refused; while control does not answer, nobody of an unknown
    project is accepted."""
    now, archived, asked = [0.0], [False], []

    async def look_up(project: str) -> ProjectLookupResult:
        asked.append(project)
        if project == "away":
            raise UpstreamUnavailable(service="control")
        return ProjectLookupResult(ProjectArchived(project=project) if archived[0] else None)

    projects = ControlProjects(look_up, clock=lambda: 1000.0 + now[0])
    await projects.check("red")
    archived[0], now[0] = True, 29.9
    await projects.check("red")
    now[0] = 30.0
    for _ in range(2):
        with pytest.raises(ProjectArchived):
            await projects.check("red")
    with pytest.raises(UpstreamUnavailable):
        await projects.check("away")

    assert asked == ["red", "red", "away"]
