"""Verifies keys of the control service in other services, with results cached for up to 30 s."""

import asyncio
import copy
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import grpc
from corral.control.v1 import key_service_pb2 as pb
from corral.control.v1.key_service_pb2_grpc import KeyServiceStub

from svc_kit.auth.keys import has_key_form, hash_key
from svc_kit.auth.principal import Principal, Priority, Restrictions
from svc_kit.errors import (
    ApiKeyExpired,
    ApiKeyInvalid,
    ApiKeyRevoked,
    DomainError,
    ProjectArchived,
    Unavailable,
    UpstreamUnavailable,
)
from svc_kit.rpc.client import translate_errors

_log = logging.getLogger(__name__)
MAX_CACHE_S: Final = 30.0
_MAX_REFUSAL_CACHE_S: Final = 5.0
MAX_CACHED_KEYS: Final = 10_000
_MAX_CONCURRENT_LOOKUPS: Final = 32
MAX_PENDING_LOOKUPS: Final = 1000
"""Keys being looked up or waiting for a lookup; more are rejected while control is slow."""
_TIMEOUT_S: Final = 5.0
_SERVICE: Final = "control"
_SCOPE: Final = "KEY_SCOPE_"


@dataclass(frozen=True)
class KeyLookupResult:
    """The principal of a key, or the error with which it is rejected."""

    outcome: Principal | DomainError
    expires_at: datetime | None = None


KeyLookup = Callable[[str], Awaitable[KeyLookupResult]]
"""Looks up a key by its hash. Raises UpstreamUnavailable if control does not answer."""


class _ResultCache:
    """Lookup results by key hash; the oldest is evicted first."""

    def __init__(self, size: int, cache_s: float, clock: Callable[[], float]) -> None:
        self._size = size
        self._cache_s = cache_s
        self._clock = clock
        self._results: dict[str, tuple[float, KeyLookupResult]] = {}

    def get(self, digest: str) -> KeyLookupResult | None:
        """Returns None if the hash is not cached or its result has expired."""
        started_at, result = self._results.get(digest, (0.0, None))
        is_fresh = self._clock() - started_at < self._cache_s
        return result if is_fresh else None

    def put(self, digest: str, result: KeyLookupResult, started_at: float) -> None:
        """Cache a result; its age counts from the start of the lookup."""
        self._results.pop(digest, None)
        self._results[digest] = (started_at, result)
        if len(self._results) > self._size:
            del self._results[next(iter(self._results))]

    def drop(self, digest: str) -> None:
        """Remove a result."""
        self._results.pop(digest, None)


class ControlKeys:
    """Verifies keys by looking them up in the control service.

    Concurrent calls with the same key share one lookup.
    """

    def __init__(
        self,
        look_up: KeyLookup,
        *,
        cache_s: float = MAX_CACHE_S,
        max_cached_keys: int = MAX_CACHED_KEYS,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Results are cached for `cache_s`, rejections for at most 5 s; `clock` is in seconds.

        Valid keys and rejections have a cache of `max_cached_keys` each, so that guessed keys do
        not evict valid ones.
        """
        self._look_up = look_up
        self._clock = clock
        self._now = now
        self._valid = _ResultCache(max_cached_keys, cache_s, clock)
        self._rejected = _ResultCache(max_cached_keys, min(cache_s, _MAX_REFUSAL_CACHE_S), clock)
        self._lookups: dict[str, asyncio.Task[KeyLookupResult]] = {}
        self._semaphore = asyncio.Semaphore(_MAX_CONCURRENT_LOOKUPS)

    async def verify(self, key: str) -> Principal:
        """Raises ApiKeyInvalid, ApiKeyExpired, ApiKeyRevoked, ProjectArchived, or
        UpstreamUnavailable if control does not answer."""
        if not has_key_form(key):
            raise ApiKeyInvalid()
        digest = hash_key(key)
        result = self._valid.get(digest) or self._rejected.get(digest)
        if result is None:
            result = await self._shared_lookup(digest)
        if isinstance(result.outcome, DomainError):
            raise copy.copy(result.outcome)  # a cached one would collect the callers' tracebacks
        if result.expires_at is not None and result.expires_at <= self._now():
            raise ApiKeyExpired()
        return result.outcome

    async def _shared_lookup(self, digest: str) -> KeyLookupResult:
        lookup = self._lookups.get(digest)
        if lookup is None:
            if len(self._lookups) >= MAX_PENDING_LOOKUPS:
                raise UpstreamUnavailable(service=_SERVICE)
            lookup = asyncio.create_task(self._look_up_and_cache(digest))
            self._lookups[digest] = lookup
            lookup.add_done_callback(lambda task: self._lookup_done(digest, task))
        # A caller that disconnects must not cancel the lookup for the others.
        return await asyncio.shield(lookup)

    async def _look_up_and_cache(self, digest: str) -> KeyLookupResult:
        async with self._semaphore:
            started_at = self._clock()
            result = await self._look_up(digest)
        self._valid.drop(digest)
        cache = self._rejected if isinstance(result.outcome, DomainError) else self._valid
        cache.put(digest, result, started_at)
        return result

    def _lookup_done(self, digest: str, task: "asyncio.Task[KeyLookupResult]") -> None:
        del self._lookups[digest]
        if not task.cancelled():
            task.exception()  # all waiting callers may have been cancelled


def control_key_lookup(channel: grpc.aio.Channel) -> KeyLookup:
    """Look up keys through a channel that sends the service token."""
    stub = KeyServiceStub(channel)

    async def look_up(digest: str) -> KeyLookupResult:
        request = pb.VerifyKeyRequest(sha256=digest)
        try:
            with translate_errors(_SERVICE):
                reply = await stub.VerifyKey(request, timeout=_TIMEOUT_S)
        except DomainError as error:
            if not isinstance(error, Unavailable):
                # For example a wrong service token, which the caller cannot correct.
                _log.error("the control service cannot verify keys: %s", error)
            raise UpstreamUnavailable(service=_SERVICE) from error
        return _result(reply)

    return look_up


def _result(reply: pb.VerifyKeyResponse) -> KeyLookupResult:
    key = reply.key
    errors: dict[int, DomainError] = {
        pb.VerifyKeyResponse.VERDICT_UNKNOWN: ApiKeyInvalid(),
        pb.VerifyKeyResponse.VERDICT_EXPIRED: ApiKeyExpired(),
        pb.VerifyKeyResponse.VERDICT_REVOKED: ApiKeyRevoked(),
        pb.VerifyKeyResponse.VERDICT_PROJECT_ARCHIVED: ProjectArchived(project=key.project),
    }
    if reply.verdict != pb.VerifyKeyResponse.VERDICT_VALID:
        return KeyLookupResult(errors.get(reply.verdict) or ApiKeyInvalid())
    principal = Principal(
        project=key.project,
        scopes=frozenset(
            pb.KeyScope.Name(scope).removeprefix(_SCOPE).lower()
            for scope in key.scopes
            if scope in pb.KeyScope.values()  # a newer control service may know more scopes
        ),
        priority=Priority(key.priority),
        key_id=key.id,
        restrictions=Restrictions.of(key.models, key.networks),
    )
    expires = key.HasField("expire_time")
    return KeyLookupResult(principal, key.expire_time.ToDatetime(UTC) if expires else None)
