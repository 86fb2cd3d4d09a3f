"""What the inference service sends for the output of a model."""

from collections.abc import Sequence

from corral.inference.v1.inference_service_pb2 import ChatResponse

from inference_svc.chat.parsers.parser import TurnParser
from inference_svc.engine.detokenizer import Detokenizer
from inference_svc.engine.events import Delta, Finished, FinishReason, Timings
from inference_svc.rpc.chat_turn import ChatTurn
from tests.support.wire_events import chat_accepted, done, finished

Batches = Sequence[Sequence[bytes]]
"""The bytes of the tokens of each batch."""
END = Finished(0, FinishReason.STOP, None, None, 1, Timings(0.0, 0.0, 0.0))


def serve(parser: TurnParser, batches: Batches, max_calls: int | None = None) -> list[ChatResponse]:
    """The events of a turn whose tokens come in these batches, with the tokens of each batch in its
    last delta."""
    chat = ChatTurn(0, parser, token_ids=True, max_calls=max_calls)
    detokenizer, sent = Detokenizer(), [chat_accepted()]
    for batch in batches:
        tokens = range(len(batch))
        texts = tuple(map(detokenizer.push, batch))
        deltas = chat.delta(Delta(0, texts, tuple(tokens), ()))
        assert [each.delta.is_continued for each in deltas] == [True] * (len(deltas) - 1) + [False]
        assert [each.delta.num_tokens for each in deltas][:-1] == [0] * (len(deltas) - 1)
        assert list(deltas[-1].delta.token_ids) == list(tokens)
        sent += deltas
    return [*sent, *chat.finish(END), ChatResponse(finished=finished()), ChatResponse(done=done())]
