"""Events of a message."""

import orjson
from corral.inference.v1 import inference_service_pb2 as pb

from dialects.anthropic.events import MessageEvents
from dialects.anthropic.message_request import parse_message
from dialects.anthropic.signatures import read_signature


def test_each_hidden_thought_is_in_its_own_signature() -> None:
    """A model can think again after a text."""
    thinking = {"type": "adaptive", "display": "omitted"}
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": "m", "max_tokens": 8, "messages": messages, "thinking": thinking}
    events = MessageEvents(parse_message(body))
    deltas = [pb.ChatDelta(reasoning="a"), pb.ChatDelta(content="b"), pb.ChatDelta(reasoning="c")]
    frames = [frame for delta in deltas for frame in events.frames(pb.ChatResponse(delta=delta))]
    frames += events.final_frames()

    data = [orjson.loads(frame.split(b"data: ")[1]) for frame in frames]
    signatures = {
        event["index"]: read_signature(event["delta"]["signature"])
        for event in data
        if event.get("delta", {}).get("type") == "signature_delta"
    }
    assert signatures == {0: "a", 2: "c"}
