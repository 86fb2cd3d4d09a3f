"""Generations over replicas that are lost, refuse to go on, or would answer otherwise."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import grpc.aio
from corral.inference.v1 import inference_service_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from svc_kit.errors import (
    DomainError,
    Draining,
    EngineRestarting,
    FeatureUnsupported,
    GenerationLost,
    Unavailable,
)
from svc_kit.errors.status import from_rpc_error, to_rpc_error
from svc_kit.rpc.movable_stream import WHOLE_KEY, Candidates, MovableStream

NUM_TOKENS: Final = 4
TOKENS: Final = [*range(NUM_TOKENS)]
MAX_LOSSES: Final = 2


@dataclass(frozen=True)
class Attempt:
    """What the replica of an attempt does. It is lost before message number `num_messages`."""

    num_messages: int
    has_died: bool
    digest: str
    knows_ids: bool
    goes_on: bool
    """Else it refuses what has begun elsewhere."""

    def messages(self, request: pb.GenerateRequest) -> Iterator[pb.GenerateResponse]:
        """Those until it is lost. Raises DomainErrors."""
        resumed = [id for each in request.options.resume for id in each.output_token_ids]
        if resumed and not self.goes_on:
            raise FeatureUnsupported(feature="resume")
        ignored = [] if self.knows_ids else ["output.token_ids"]
        events: list[Any] = [
            {"accepted": {"seed": 1, "model_digest": self.digest, "ignored_options": ignored}},
            {"started": {}},
            *({"delta": self._delta(token)} for token in TOKENS[len(resumed) :]),
            {"finished": {}},
            {"done": {}},
        ]
        for number, event in enumerate(events):
            if number == self.num_messages:
                raise EngineRestarting(phase="running") if self.has_died else Draining()
            yield pb.GenerateResponse(sequence_number=number, **event)

    def _delta(self, token: int) -> dict[str, Any]:
        ids = {"token_ids": [token]} if self.knows_ids else {}
        return {"text": str(token), "num_tokens": 1, **ids}


@dataclass
class Call:
    """What grpc.aio's call of a stream is."""

    messages: Iterator[pb.GenerateResponse]
    errors: list[DomainError]
    """Those with which calls ended."""

    async def read(self) -> Any:
        try:
            return next(self.messages, grpc.aio.EOF)
        except DomainError as error:
            self.errors.append(error)
            raise to_rpc_error(error, "req_1") from None

    def cancel(self) -> bool:
        return True


LOST_AT: Final = NUM_TOKENS + 4
ATTEMPTS: Final = st.builds(
    Attempt,
    num_messages=st.integers(0, LOST_AT),
    has_died=st.booleans(),
    digest=st.sampled_from(["one", "other"]),
    knows_ids=st.booleans(),
    goes_on=st.booleans(),
)
GOOD: Final = Attempt(LOST_AT, has_died=False, digest="one", knows_ids=True, goes_on=True)


class Outcome(NamedTuple):
    messages: list[pb.GenerateResponse]
    error: DomainError | None
    losses: list[Unavailable]
    num_attempts: int


def deliver(attempts: list[Attempt], *metadata: tuple[str, str]) -> Outcome:
    """What a caller gets, and of which attempts."""
    ahead, errors, num_attempts = iter([*attempts, *[GOOD] * 9]), list[DomainError](), 0

    def start(request: pb.GenerateRequest, **options: Any) -> Call:
        nonlocal num_attempts
        num_attempts += 1
        return Call(next(ahead).messages(request), errors)

    async def read_all(stream: MovableStream) -> tuple[Any, Any]:
        messages = []
        try:
            async for message in stream:
                messages.append(message)
        except grpc.aio.AioRpcError as error:
            return messages, from_rpc_error(error)
        return messages, None

    async def find(*_: object) -> Candidates:
        """No error is of a missing model."""
        return Candidates([], None)

    stream = MovableStream(
        *(start, start, pb.GenerateRequest(text="t")),
        find=find,
        metadata=metadata,
        timeout=None,
        outlives_engines=True,
    )
    messages, error = asyncio.run(read_all(stream))
    losses = [each for each in errors if isinstance(each, Unavailable)]
    return Outcome(messages, error, losses, num_attempts)


def tokens_of(messages: list[Any]) -> list[int]:
    return [int(message.delta.text) for message in messages if message.HasField("delta")]


@given(st.lists(ATTEMPTS, max_size=5))
def test_tokens_that_are_shown_come_once_and_in_order(attempts: list[Attempt]) -> None:
    messages, error, *_ = deliver(attempts)

    assert tokens_of(messages) == TOKENS[: len(tokens_of(messages))]
    assert [each.sequence_number for each in messages] == [*range(len(messages))]
    if error is None:
        assert tokens_of(messages) == TOKENS


@given(st.lists(ATTEMPTS, max_size=5))
def test_an_answer_that_is_not_shown_is_whole_unless_too_many_replicas_are_lost(
    attempts: list[Attempt],
) -> None:
    """Whatever the others say: then it begins again."""
    messages, error, losses, num_attempts = deliver(attempts, (WHOLE_KEY, "1"))

    assert not isinstance(error, GenerationLost)
    assert tokens_of(messages) == ([] if error else TOKENS)
    assert [each.sequence_number for each in messages] == [*range(len(messages))]
    assert num_attempts <= 1 + 2 * len(losses)  # behind each, one that cannot go on
    num_died = sum(isinstance(each, EngineRestarting) for each in losses)
    if len(losses) <= MAX_LOSSES and num_died <= 1:
        assert error is None
