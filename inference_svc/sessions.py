"""Remembers requests that have ended, as turns of sessions, and counts what broke their prefixes.

The record is in memory and has no texts of prompts and answers.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, Self

from corral.inference.v1 import session_pb2 as pb
from prometheus_client import Counter

from inference_svc.usage import UsageKey
from svc_kit.auth.authenticator import PROJECT_KEY
from svc_kit.rpc.message_mapper import encode_timestamp
from svc_kit.rpc.prefix_key import Generation, prefix_key

MAX_TURNS: Final = 4096
MAX_AGE: Final = timedelta(days=1)
Sessions = dict[tuple[int, str], pb.Session]
"""Sessions by the end of their last turn, newest first, and id."""


class SessionKey(NamedTuple):
    """The session of a request. It has a `name` if it is one that the caller names, or that of a
    stored object."""

    id: str
    name: str = ""

    @classmethod
    def of(cls, request: Generation, project: str) -> Self:
        """Requests with the same id are sent to the same replica, too."""
        cache = request.options.cache
        name = cache.keep_for or cache.affinity
        return cls(prefix_key(request, {PROJECT_KEY: project}), name)


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A request that has ended. `place` is the kind of place at which its prompt differs from what
    was cached, empty if it does not."""

    session: SessionKey
    usage_key: UsageKey
    priority: int
    turn: pb.SessionTurn
    place: str = ""


class SessionLog:
    """The last requests that have ended, at most `max_turns` of all projects together.

    When there are more, the project and priority with most of them loses its oldest one, so that
    neither another project nor a batch displaces what is watched.
    """

    def __init__(
        self,
        divergences: Counter,
        *,
        max_turns: int = MAX_TURNS,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`divergences` has the labels model and place."""
        self.started_at = clock()
        self._divergences = divergences
        self._max_turns = max_turns
        self._clock = clock
        self._num_turns = 0
        self._ended: dict[tuple[str, int], deque[EndedRequest]] = {}

    def add(self, ended: EndedRequest) -> None:
        """Record a request that has ended now."""
        if ended.place:
            self._divergences.labels(ended.usage_key.model, ended.place).inc()
        ended.turn.end_time.CopyFrom(encode_timestamp(self._clock()))
        owner = ended.usage_key.project, ended.priority
        self._ended.setdefault(owner, deque()).append(ended)
        self._num_turns += 1
        if self._num_turns > self._max_turns:
            self._drop_oldest(max(self._ended, key=lambda each: len(self._ended[each])))

    def requests(self, *, project: str | None, session_id: str = "") -> list[EndedRequest]:
        """The requests, only those of `project` and of a session if given."""
        self._drop_expired()
        return [each for each in self._of(project) if session_id in ("", each.session.id)]

    def _of(self, project: str | None) -> Iterable[EndedRequest]:
        for owner, requests in self._ended.items():
            if project in (None, owner[0]):
                yield from requests

    def _drop_expired(self) -> None:
        oldest = (self._clock() - MAX_AGE).timestamp()
        for owner in [*self._ended]:
            while owner in self._ended and self._ended[owner][0].turn.end_time.seconds < oldest:
                self._drop_oldest(owner)

    def _drop_oldest(self, owner: tuple[str, int]) -> None:
        self._ended[owner].popleft()
        self._num_turns -= 1
        if not self._ended[owner]:
            del self._ended[owner]


def to_sessions(requests: Iterable[EndedRequest], *, keep_turns: bool) -> Sessions:
    """The sessions of requests, without or with their turns."""
    sessions: dict[str, pb.Session] = {}
    for ended in requests:
        key = ended.session
        if key.id not in sessions:
            sessions[key.id] = pb.Session(
                session_id=key.id, name=key.name, project=ended.usage_key.project
            )
        _add_turn(sessions[key.id], ended, keep_turns=keep_turns)
    for each in sessions.values():
        each.turns.sort(key=lambda turn: turn.end_time.ToNanoseconds())
    return {(-each.end_time.ToNanoseconds(), each.session_id): each for each in sessions.values()}


def _add_turn(session: pb.Session, ended: EndedRequest, *, keep_turns: bool) -> None:
    turn, usage = ended.turn, ended.turn.usage
    session.num_turns += 1
    session.num_divergences += usage.HasField("divergence")
    session.prompt_tokens += usage.prompt_tokens
    session.cached_tokens += usage.cached_tokens
    session.completion_tokens += usage.completion_tokens
    if turn.end_time.ToNanoseconds() >= session.end_time.ToNanoseconds():
        session.model = ended.usage_key.model
        session.end_time.CopyFrom(turn.end_time)
    if keep_turns:
        session.turns.append(turn)
