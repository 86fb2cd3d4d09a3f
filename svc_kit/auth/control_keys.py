"""Verifies keys of the control service for the other services, with answers cached for at most 30
seconds.
"""

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
from svc_kit.auth.principal import Principal, Priority
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
LONGEST_FRESH_S: Final = 30.0
_REFUSED_FRESH_S: Final = 5.0
MOST_ANSWERS: Final = 10_000
_MOST_QUESTIONS: Final = 32
MOST_WAITING: Final = 1000
"""Keys that are asked for, or wait for it: guesses come faster than a slow control answers."""
_PATIENCE_S: Final = 5.0
_SERVICE: Final = "control"
_SCOPE: Final = "KEY_SCOPE_"


@dataclass(frozen=True)
class KeyAnswer:
    """The control service's answer about a key."""

    outcome: Principal | DomainError
    expires_at: datetime | None = None


KeyLookup = Callable[[str], Awaitable[KeyAnswer]]
"""Asks control for a key by its hash. Raises UpstreamUnavailable where it does not answer."""


class _Answers:
    """Answers by hash, each for a while; the oldest make room."""

    def __init__(self, most: int, fresh_s: float, clock: Callable[[], float]) -> None:
        self._most = most
        self._fresh_s = fresh_s
        self._clock = clock
        self._kept: dict[str, tuple[float, KeyAnswer]] = {}

    def get(self, digest: str) -> KeyAnswer | None:
        """None where there is none, or it has become too old."""
        asked_at, answer = self._kept.get(digest, (0.0, None))
        is_fresh = answer is not None and self._clock() - asked_at < self._fresh_s
        return answer if is_fresh else None

    def put(self, digest: str, answer: KeyAnswer, asked_at: float) -> None:
        """Keep an answer; its time runs from when it was asked for."""
        self._kept.pop(digest, None)
        self._kept[digest] = (asked_at, answer)
        if len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]

    def drop(self, digest: str) -> None:
        """Forget an answer."""
        self._kept.pop(digest, None)


class ControlKeys:
    """Verifies keys by asking control; however many callers show a key at once, it is asked for
    once."""

    def __init__(
        self,
        look_up: KeyLookup,
        *,
        fresh_s: float = LONGEST_FRESH_S,
        most_answers: int = MOST_ANSWERS,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Answers count for `fresh_s`, refusals for 5 s at most; `clock` is monotonic seconds.

        `most_answers` are kept, and as many refusals, so that guesses push no good key out.
        """
        self._look_up = look_up
        self._clock = clock
        self._now = now
        self._usable = _Answers(most_answers, fresh_s, clock)
        self._refused = _Answers(most_answers, min(fresh_s, _REFUSED_FRESH_S), clock)
        self._asking: dict[str, asyncio.Task[KeyAnswer]] = {}
        self._turns = asyncio.Semaphore(_MOST_QUESTIONS)

    async def verify(self, key: str) -> Principal:
        """Raises ApiKeyInvalid, ApiKeyExpired, ApiKeyRevoked, ProjectArchived, or
        UpstreamUnavailable where control does not answer."""
        if not has_key_form(key):
            raise ApiKeyInvalid()
        digest = hash_key(key)
        answer = self._usable.get(digest) or self._refused.get(digest)
        if answer is None:
            answer = await self._ask(digest)
        if isinstance(answer.outcome, DomainError):
            raise copy.copy(answer.outcome)  # a kept one would gather the traces of all its callers
        if answer.expires_at is not None and answer.expires_at <= self._now():
            raise ApiKeyExpired()
        return answer.outcome

    async def _ask(self, digest: str) -> KeyAnswer:
        asking = self._asking.get(digest)
        if asking is None:
            if len(self._asking) >= MOST_WAITING:
                raise UpstreamUnavailable(service=_SERVICE)
            asking = asyncio.create_task(self._ask_control(digest))
            self._asking[digest] = asking
            asking.add_done_callback(lambda task: self._answered(digest, task))
        # A caller that goes away must not end the question of the others.
        return await asyncio.shield(asking)

    async def _ask_control(self, digest: str) -> KeyAnswer:
        async with self._turns:
            asked_at = self._clock()
            answer = await self._look_up(digest)
        self._usable.drop(digest)
        kept = self._refused if isinstance(answer.outcome, DomainError) else self._usable
        kept.put(digest, answer, asked_at)
        return answer

    def _answered(self, digest: str, task: "asyncio.Task[KeyAnswer]") -> None:
        del self._asking[digest]
        if not task.cancelled():
            task.exception()  # retrieved here too: all who waited may be gone


def key_look_up(channel: grpc.aio.Channel) -> KeyLookup:
    """Asks the control service behind a channel, which shows the installation's service token."""
    stub = KeyServiceStub(channel)

    async def look_up(digest: str) -> KeyAnswer:
        request = pb.VerifyKeyRequest(sha256=digest)
        try:
            with translate_errors(_SERVICE):
                reply = await stub.VerifyKey(request, timeout=_PATIENCE_S)
        except DomainError as error:
            if not isinstance(error, Unavailable):
                # Another token than control's, say: nothing that the key's owner could mend.
                _log.error("control does not verify keys: %s", error)
            raise UpstreamUnavailable(service=_SERVICE) from error
        return _answer(reply)

    return look_up


def _answer(reply: pb.VerifyKeyResponse) -> KeyAnswer:
    key = reply.key
    refusals: dict[int, DomainError] = {
        pb.VerifyKeyResponse.VERDICT_UNKNOWN: ApiKeyInvalid(),
        pb.VerifyKeyResponse.VERDICT_EXPIRED: ApiKeyExpired(),
        pb.VerifyKeyResponse.VERDICT_REVOKED: ApiKeyRevoked(),
        pb.VerifyKeyResponse.VERDICT_PROJECT_ARCHIVED: ProjectArchived(project=key.project),
    }
    if reply.verdict != pb.VerifyKeyResponse.VERDICT_VALID:
        return KeyAnswer(refusals.get(reply.verdict) or ApiKeyInvalid())
    principal = Principal(
        project=key.project,
        scopes=frozenset(
            pb.KeyScope.Name(scope).removeprefix(_SCOPE).lower()
            for scope in key.scopes
            if scope in pb.KeyScope.values()  # a later release of control may grant others
        ),
        priority=Priority(key.priority),
        key_id=key.id,
    )
    has_end = key.HasField("expire_time")
    return KeyAnswer(principal, key.expire_time.ToDatetime(UTC) if has_end else None)
