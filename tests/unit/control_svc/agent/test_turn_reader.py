"""What is recorded of a turn while it is read."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import Any

from corral.inference.v1.chat_pb2 import ToolCallDelta
from corral.inference.v1.generation_pb2 import ChosenLogprob
from corral.inference.v1.inference_service_pb2 import ChatDelta

from control_svc.agent.drafts import DraftEvent, TextDelta, TurnDraft
from control_svc.agent.model import TurnResult
from control_svc.agent.recorder import NullSink, TurnRecorder
from control_svc.agent.turn import TurnReader
from control_svc.event_log.model import NOTHING_HELD, Held
from control_svc.inference.turns import FinishReason, TurnEvent
from control_svc.items.model import Item


class Recorder(TurnRecorder):
    """Keeps the texts and the tokens of each call of `record`."""

    def __init__(self) -> None:
        super().__init__(NullSink(self._send))
        self.recorded: list[tuple[list[str], tuple[int, ...]]] = []
        self.held: list[Held] = []

    async def record(
        self,
        turn: int,
        changes: Sequence[DraftEvent],
        token_ids: Sequence[int],
        held: Held = NOTHING_HELD,
    ) -> None:
        """Keep what is recorded together."""
        texts = [change.text for change in changes if isinstance(change, TextDelta)]
        self.recorded.append((texts, tuple(token_ids)))
        self.held.append(held)

    async def turn_ended(self, turn: TurnResult, *, awaits_client: bool) -> None:
        """Nothing."""

    async def call_started(self, item: Item) -> None:
        """Nothing."""

    async def call_ended(self, item: Item) -> None:
        """Nothing."""

    def _translate(self, changes: Sequence[DraftEvent]) -> Sequence[Any]:
        return ()

    async def _send(self, _events: Sequence[bytes]) -> None:
        """Nothing."""


def _logprob(token: int) -> ChosenLogprob:
    return ChosenLogprob(chosen={"token_id": token})


async def test_the_output_of_some_tokens_is_recorded_with_them() -> None:
    """Whatever the number of deltas, since the next attempt continues after the tokens."""
    call = ToolCallDelta(id="call_1", name="f", arguments_json="{}")
    events: list[TurnEvent] = [
        ChatDelta(content="a", token_ids=[1], held_logprobs=[_logprob(1)], num_held=1),
        ChatDelta(content="b", tool_calls=[call], is_continued=True),
        ChatDelta(content="c", is_continued=True),
        ChatDelta(reasoning="d", token_ids=[2, 3], held_logprobs=[_logprob(3)], num_held=2),
        ChatDelta(content="e", token_ids=[4]),
        FinishReason.STOP,
    ]

    async def stream() -> AsyncGenerator[TurnEvent, None]:
        for event in events:
            yield event

    draft = TurnDraft([], {}, lambda prefix: prefix, lambda: datetime(2026, 1, 1, tzinfo=UTC))
    recorder = Recorder()
    await TurnReader(0, draft, recorder, asyncio.Event()).run(stream(), None)

    expected = [(["a"], (1,)), (["b", "{}", "c", "d"], (2, 3)), (["e"], (4,)), ([], ())]
    assert recorder.recorded == expected
    first, second = (_logprob(token).SerializeToString() for token in (1, 3))
    held = [Held((first,), 1), Held((second,), 2), NOTHING_HELD, NOTHING_HELD]
    assert recorder.held == held
