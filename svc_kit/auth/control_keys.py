"""Verifies keys and projects of the control service in other services, with results cached for up
to 30 s."""

import asyncio
import copy
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import grpc
from corral.control.v1 import key_service_pb2 as pb
from corral.control.v1.key_service_pb2_grpc import KeyServiceStub
from corral.control.v1.project_service_pb2 import Project, VerifyProjectRequest
from corral.control.v1.project_service_pb2_grpc import ProjectServiceStub
from google.protobuf.message import Message

from svc_kit.auth.keys import has_key_form, hash_key
from svc_kit.auth.principal import Principal, Priority, Restrictions
from svc_kit.errors import (
    ApiKeyExpired,
    ApiKeyInvalid,
    ApiKeyRevoked,
    DeadlineExceeded,
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

    @property
    def refusal(self) -> DomainError | None:
        """The error, if the key is rejected."""
        return self.outcome if isinstance(self.outcome, DomainError) else None


class ProjectLookupResult(NamedTuple):
    """The error with which callers of a project are rejected; None if they are accepted."""

    refusal: DomainError | None


class _Result(Protocol):
    @property
    def refusal(self) -> DomainError | None: ...


ResultT = TypeVar("ResultT", bound=_Result)
ReplyT = TypeVar("ReplyT")
KeyLookup = Callable[[str], Awaitable[KeyLookupResult]]
"""Looks up a key by its hash. Raises UpstreamUnavailable if control does not answer."""
ProjectLookup = Callable[[str], Awaitable[ProjectLookupResult]]
"""Looks up a project by its id. Raises UpstreamUnavailable if control does not answer."""


class _ResultCache(Generic[ResultT]):
    """Lookup results by name; the oldest is evicted first."""

    def __init__(self, size: int, cache_s: float, clock: Callable[[], float]) -> None:
        self._size = size
        self._cache_s = cache_s
        self._clock = clock
        self._results: dict[str, tuple[float, ResultT]] = {}

    def get(self, name: str) -> ResultT | None:
        """Returns None if the name is not cached or its result has expired."""
        started_at, result = self._results.get(name, (0.0, None))
        is_fresh = self._clock() - started_at < self._cache_s
        return result if is_fresh else None

    def put(self, name: str, result: ResultT, started_at: float) -> None:
        """Cache a result; its age counts from the start of the lookup."""
        self._results.pop(name, None)
        self._results[name] = (started_at, result)
        if len(self._results) > self._size:
            del self._results[next(iter(self._results))]

    def drop(self, name: str) -> None:
        self._results.pop(name, None)


class _Lookups(Generic[ResultT]):
    """Looks up names in the control service and caches the results.

    Concurrent calls with the same name share one lookup.
    """

    def __init__(
        self,
        look_up: Callable[[str], Awaitable[ResultT]],
        cache_s: float,
        max_cached: int,
        clock: Callable[[], float],
    ) -> None:
        """Results are cached for `cache_s`, rejections for at most 5 s, `max_cached` of each."""
        self._look_up = look_up
        self._clock = clock
        rejected_s = min(cache_s, _MAX_REFUSAL_CACHE_S)
        self._valid = _ResultCache[ResultT](max_cached, cache_s, clock)
        self._rejected = _ResultCache[ResultT](max_cached, rejected_s, clock)
        self._lookups: dict[str, asyncio.Task[ResultT]] = {}
        self._semaphore = asyncio.Semaphore(_MAX_CONCURRENT_LOOKUPS)

    async def find(self, name: str) -> ResultT:
        """Raises the error of a rejection, or UpstreamUnavailable if control does not answer."""
        result = self._valid.get(name) or self._rejected.get(name)
        if result is None:
            result = await self._shared_lookup(name)
        if (refusal := result.refusal) is not None:
            raise copy.copy(refusal)  # a cached one would collect the callers' tracebacks
        return result

    async def _shared_lookup(self, name: str) -> ResultT:
        lookup = self._lookups.get(name)
        if lookup is None:
            if len(self._lookups) >= MAX_PENDING_LOOKUPS:
                raise UpstreamUnavailable(service=_SERVICE)
            lookup = asyncio.create_task(self._look_up_and_cache(name))
            self._lookups[name] = lookup
            lookup.add_done_callback(lambda task: self._lookup_done(name, task))
        # A caller that disconnects must not cancel the lookup for the others.
        return await asyncio.shield(lookup)

    async def _look_up_and_cache(self, name: str) -> ResultT:
        async with self._semaphore:
            started_at = self._clock()
            result = await self._look_up(name)
        self._valid.drop(name)
        cache = self._valid if result.refusal is None else self._rejected
        cache.put(name, result, started_at)
        return result

    def _lookup_done(self, name: str, task: "asyncio.Task[ResultT]") -> None:
        del self._lookups[name]
        if not task.cancelled():
            task.exception()  # all waiting callers may have been cancelled


class ControlKeys:
    """Verifies keys by looking them up in the control service."""

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
        self._lookups = _Lookups[KeyLookupResult](look_up, cache_s, max_cached_keys, clock)
        self._now = now

    async def verify(self, key: str) -> Principal:
        """Raises ApiKeyInvalid, ApiKeyExpired, ApiKeyRevoked, ProjectArchived, or
        UpstreamUnavailable if control does not answer."""
        if not has_key_form(key):
            raise ApiKeyInvalid()
        result = await self._lookups.find(hash_key(key))
        if result.expires_at is not None and result.expires_at <= self._now():
            raise ApiKeyExpired()
        if isinstance(result.outcome, DomainError):
            raise result.outcome
        return result.outcome


class ControlProjects:
    """Checks whether the projects of access tokens are archived, as `ControlKeys` does for keys."""

    def __init__(
        self,
        look_up: ProjectLookup,
        *,
        cache_s: float = MAX_CACHE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Results are cached for `cache_s`; `clock` is in seconds."""
        self._lookups = _Lookups[ProjectLookupResult](look_up, cache_s, MAX_CACHED_KEYS, clock)

    async def check(self, project: str) -> None:
        """Raises ProjectArchived, or UpstreamUnavailable if control does not answer."""
        await self._lookups.find(project)


def control_key_lookup(channel: grpc.aio.Channel) -> KeyLookup:
    """Look up keys through a channel that sends the service token."""
    stub, control = KeyServiceStub(channel), _Control()

    async def look_up(digest: str) -> KeyLookupResult:
        return _result(await control.ask(stub.VerifyKey, pb.VerifyKeyRequest(sha256=digest)))

    return look_up


def control_project_lookup(channel: grpc.aio.Channel) -> ProjectLookup:
    """Look up projects through a channel that sends the service token."""
    stub, control = ProjectServiceStub(channel), _Control()

    async def look_up(project: str) -> ProjectLookupResult:
        reply = await control.ask(stub.VerifyProject, VerifyProjectRequest(project_id=project))
        is_archived = reply.state == Project.STATE_ARCHIVED
        return ProjectLookupResult(ProjectArchived(project=project) if is_archived else None)

    return look_up


class _Control:
    """Calls the control service, and logs once that it refuses, until it answers again."""

    def __init__(self) -> None:
        self._is_refused = False

    async def ask(self, method: Callable[..., Awaitable[ReplyT]], request: Message) -> ReplyT:
        """Raises UpstreamUnavailable."""
        try:
            with translate_errors(_SERVICE):
                reply = await method(request, timeout=_TIMEOUT_S)
        except DomainError as error:
            # An outage, also of a process that hangs, is the caller's error and no line in the log.
            # Others are, such as a wrong service token, which the caller cannot correct.
            if not isinstance(error, Unavailable | DeadlineExceeded):
                if not self._is_refused:
                    _log.error("the control service cannot verify callers: %s", error)
                self._is_refused = True
            raise UpstreamUnavailable(service=_SERVICE) from error
        self._is_refused = False
        return reply


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
