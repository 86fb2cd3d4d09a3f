"""Verification of keys by the control service: caching, limits, and unavailability."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from svc_kit.auth.control_keys import MAX_PENDING_LOOKUPS, ControlKeys, KeyLookupResult
from svc_kit.auth.keys import create_key, hash_key
from svc_kit.auth.principal import Principal
from svc_kit.errors import (
    ApiKeyExpired,
    ApiKeyInvalid,
    ApiKeyRevoked,
    DomainError,
    UpstreamUnavailable,
)

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
RED = Principal(project="red", scopes=frozenset({"inference"}), key_id="key_1")


class Control:
    """A fake control service that counts requests."""

    def __init__(self) -> None:
        self.answers: dict[str, KeyLookupResult] = {}
        self.asked: list[str] = []
        self.is_away = False
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def look_up(self, digest: str) -> KeyLookupResult:
        """Return the configured verdict once the gate is open."""
        self.asked.append(digest)
        self.entered.set()
        await self.gate.wait()
        if self.is_away:
            raise UpstreamUnavailable(service="control")
        return self.answers.get(digest, KeyLookupResult(ApiKeyInvalid()))

    def says(self, key: str, outcome: Principal | DomainError, end: datetime | None = None) -> None:
        """Set the verdict."""
        self.answers[hash_key(key)] = KeyLookupResult(outcome, end)


class Fixture:
    """A verifier with a controlled clock."""

    def __init__(self, cache_s: float = 30.0, max_cached_keys: int = 100) -> None:
        self.control = Control()
        self.passed_s = 0.0
        self.keys = ControlKeys(
            self.control.look_up,
            cache_s=cache_s,
            max_cached_keys=max_cached_keys,
            clock=lambda: self.passed_s,
            now=lambda: NOW + timedelta(seconds=self.passed_s),
        )


async def test_a_verdict_is_cached_for_thirty_seconds() -> None:
    """Only the hash of the key is sent."""
    bench, key = Fixture(), create_key()
    bench.control.says(key, RED)
    for second in (0.0, 1.0, 29.9):
        bench.passed_s = second
        assert await bench.keys.verify(key) is RED

    assert bench.control.asked == [hash_key(key)]


async def test_a_revoked_key_is_refused_within_thirty_seconds() -> None:
    """Counted from the request, also for a slow response."""
    bench, key = Fixture(), create_key()
    bench.control.says(key, RED)
    bench.control.gate.clear()
    asking = asyncio.create_task(bench.keys.verify(key))
    await bench.control.entered.wait()
    bench.passed_s = 4.0
    bench.control.gate.set()
    await asking
    bench.control.says(key, ApiKeyRevoked())

    bench.passed_s = 29.9
    assert await bench.keys.verify(key) is RED
    bench.passed_s = 30.0
    with pytest.raises(ApiKeyRevoked):
        await bench.keys.verify(key)


async def test_a_cached_key_expires_at_its_time() -> None:
    """Its expiry is cached too."""
    bench, key = Fixture(), create_key()
    bench.control.says(key, RED, NOW + timedelta(seconds=10))
    assert await bench.keys.verify(key) is RED

    bench.passed_s = 10.0
    with pytest.raises(ApiKeyExpired):
        await bench.keys.verify(key)


async def test_a_refusal_is_cached_briefly() -> None:
    """Many requests with a wrong key do not reach control; a corrected key works soon."""
    bench, key = Fixture(), create_key()
    for second in (0.0, 4.9):
        bench.passed_s = second
        with pytest.raises(ApiKeyInvalid):
            await bench.keys.verify(key)
    bench.control.says(key, RED)
    bench.passed_s = 5.0

    assert await bench.keys.verify(key) is RED
    assert len(bench.control.asked) == 2


async def test_cached_keys_are_accepted_while_control_is_unavailable() -> None:
    """Others fail as unavailable, not as invalid; so do cached ones after thirty seconds."""
    bench, known, other = Fixture(), create_key(), create_key()
    bench.control.says(known, RED)
    await bench.keys.verify(known)
    bench.control.is_away = True

    bench.passed_s = 29.0
    assert await bench.keys.verify(known) is RED
    with pytest.raises(UpstreamUnavailable) as failure:
        await bench.keys.verify(other)
    assert failure.value.retry_after is not None
    bench.passed_s = 30.0
    with pytest.raises(UpstreamUnavailable):
        await bench.keys.verify(known)
    bench.control.is_away = False
    assert await bench.keys.verify(known) is RED


async def test_concurrent_requests_share_one_verification() -> None:
    """As after a restart."""
    bench, key = Fixture(), create_key()
    bench.control.says(key, RED)
    bench.control.gate.clear()
    waiting = [asyncio.create_task(bench.keys.verify(key)) for _ in range(50)]
    await bench.control.entered.wait()
    waiting[0].cancel()
    bench.control.gate.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)

    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert outcomes[1:] == [RED] * 49
    assert len(bench.control.asked) == 1


async def test_malformed_keys_are_not_sent_to_control() -> None:
    """Such as random guesses."""
    bench = Fixture()
    for text in ("", "sk-other", f"{create_key()}x", create_key().upper(), "ключ"):
        with pytest.raises(ApiKeyInvalid):
            await bench.keys.verify(text)

    assert bench.control.asked == []


async def test_wrong_keys_do_not_evict_valid_keys() -> None:
    """Both caches are bounded separately."""
    bench, good = Fixture(max_cached_keys=3), create_key()
    bench.control.says(good, RED)
    await bench.keys.verify(good)
    for _ in range(10):
        with pytest.raises(ApiKeyInvalid):
            await bench.keys.verify(create_key())
    asked = len(bench.control.asked)

    assert await bench.keys.verify(good) is RED
    assert len(bench.control.asked) == asked


async def test_pending_verifications_are_bounded() -> None:
    """Further ones fail as unavailable; cached keys are accepted."""
    bench, good = Fixture(), create_key()
    bench.control.says(good, RED)
    await bench.keys.verify(good)
    bench.control.entered.clear()
    bench.control.gate.clear()
    guesses = [
        asyncio.create_task(bench.keys.verify(create_key())) for _ in range(MAX_PENDING_LOOKUPS)
    ]
    await bench.control.entered.wait()

    with pytest.raises(UpstreamUnavailable):
        await bench.keys.verify(create_key())
    assert await bench.keys.verify(good) is RED
    bench.control.gate.set()
    refused = await asyncio.gather(*guesses, return_exceptions=True)
    assert {type(error) for error in refused} == {ApiKeyInvalid}


async def test_the_oldest_verdict_is_evicted() -> None:
    """An evicted key is verified again."""
    bench, keys = Fixture(max_cached_keys=2), [create_key() for _ in range(3)]
    for key in keys:
        bench.control.says(key, RED)
        await bench.keys.verify(key)
    for key in (keys[2], keys[1], keys[0]):
        await bench.keys.verify(key)

    assert bench.control.asked == [hash_key(key) for key in (*keys, keys[0])]


async def test_a_cache_time_of_zero_disables_the_cache() -> None:
    """A revoked key is refused immediately."""
    bench, key = Fixture(cache_s=0), create_key()
    bench.control.says(key, RED)
    await bench.keys.verify(key)
    bench.control.says(key, ApiKeyRevoked())

    with pytest.raises(ApiKeyRevoked):
        await bench.keys.verify(key)
