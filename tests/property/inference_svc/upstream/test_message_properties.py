"""Answers of engines in text mode: what is delivered is what was written, in its order."""

import json
from typing import Final

from corral.inference.v1 import inference_service_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from inference_svc.engine.events import CallPart, ChosenLogprob, Delta, Logprob, MessagePart
from inference_svc.rpc.chat_turn import MessageTurn
from inference_svc.upstream.faults import EngineFault
from inference_svc.upstream.openai import MessageReader


def flat(parts: list[MessagePart]) -> list[tuple[str, str]]:
    """The characters of an answer in order, each with what it belongs to."""
    found: list[tuple[str, str]] = []
    for part in parts:
        found += [("reasoning", each) for each in part.reasoning]
        found += [("content", each) for each in part.content]
        for call in part.calls:
            found += [(f"begin {call.position}", f"{call.id} {call.name}")] if call.id else []
            found += [(f"call {call.position}", each) for each in call.arguments]
    return found


def part_of(delta: pb.ChatDelta) -> MessagePart:
    calls = (
        CallPart(each.index, each.id, each.name, each.arguments_json) for each in delta.tool_calls
    )
    return MessagePart(delta.reasoning, delta.content, tuple(calls))


def delta_of(*parts: MessagePart) -> Delta:
    return Delta(0, (), (), (), 0.0, parts, len(parts))


def chosen(text: str) -> ChosenLogprob:
    return ChosenLogprob(Logprob(0, text.encode(), -0.5), (), text=text.encode())


CALLS: Final = st.builds(
    lambda position, is_new, text: CallPart(
        position, f"id{position}" if is_new else "", "f" if is_new else "", text
    ),
    st.integers(0, 2),
    st.booleans(),
    st.text("ef", max_size=3),
)
PARTS: Final = st.lists(
    st.builds(
        MessagePart,
        reasoning=st.sampled_from(["", "", "ab"]),
        content=st.sampled_from(["", "", "cd"]),
        calls=st.lists(CALLS, max_size=2).map(tuple),
        logprobs=st.just(()),
    ).map(lambda part: part._replace(logprobs=tuple(map(chosen, part.content)))),
    max_size=12,
)


@given(PARTS, st.lists(st.integers(0, 4), max_size=8))
def test_what_is_delivered_has_the_order_of_what_was_written(
    parts: list[MessagePart], sizes: list[int]
) -> None:
    """However events are joined on their way to the reader; tokens are counted once, and those with
    log probabilities are in the delta of their content."""
    turn, deltas, rest = MessageTurn(3), list[pb.ChatDelta](), parts
    for size in (*sizes, len(parts)):
        joined = delta_of()
        for part in rest[:size]:
            joined = joined.join(delta_of(part))
        rest = rest[size:]
        found = [each.delta for each in turn.delta(joined)]
        assert [each.is_continued for each in found] == [True] * (len(found) - 1) + [False]
        deltas += found
    assert flat([part_of(each) for each in deltas]) == flat(parts)
    for delta in deltas:
        assert b"".join(each.chosen.token for each in delta.logprobs) == delta.content.encode()
    assert {each.index for each in deltas} == {3}
    assert sum(each.num_tokens for each in deltas) == len(parts)


_NAMES: Final = (
    *("choices", "index", "delta", "finish_reason", "usage", "error", "content", "reasoning"),
    *("refusal", "tool_calls", "function", "name", "arguments", "id", "prompt_tokens"),
    *("completion_tokens", "completion_tokens_details", "reasoning_tokens", "code", "message"),
    *("logprobs", "top_logprobs", "token", "logprob", "bytes"),
)
VALUES: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.floats()
    | st.sampled_from(["", "stop", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=5)
    ),
    max_leaves=20,
)
TOKENS: Final = st.fixed_dictionaries(
    {"token": st.text("ab", max_size=2) | VALUES, "logprob": st.floats(max_value=9) | VALUES},
    optional={"bytes": st.lists(st.integers(-1, 256), max_size=3), "top_logprobs": VALUES},
)
LOGPROBS: Final = st.fixed_dictionaries({"content": st.lists(TOKENS, max_size=3)}) | VALUES
EVENTS: Final = st.builds(
    lambda delta, reason, usage, logprobs: {
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": logprobs}],
        "usage": usage,
    },
    VALUES | st.fixed_dictionaries({"content": st.text("ab", max_size=3)}),
    VALUES,
    VALUES,
    LOGPROBS,
)


@given(st.lists(EVENTS | VALUES, max_size=4), st.sampled_from([None, 0, 2]))
def test_whatever_an_engine_writes_is_read_or_is_its_fault(
    events: list[object], top_logprobs: int | None
) -> None:
    """Never another error, and what is read can be told to callers."""
    reader, turn = MessageReader(top_logprobs), MessageTurn(0)
    for value in events:
        try:
            event = reader.read(json.dumps(value).encode())
        except EngineFault:
            return
        if event.part is not None:
            turn.delta(delta_of(event.part))
