"""Brings the results of tools to where chat templates need them: directly after the turn with their
calls, in the order of these, since many templates show no ids. Callers may send them anywhere after
it; calls and results are paired by id.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from inference_svc.chat.conversation import Conversation, MediaPart, Message, Part, Role
from svc_kit.errors import InvalidField

_TOOL_USE_PREFIX = "toolu_"
"""What Messages puts before the ids of calls. Clients send them in other dialects too."""


@dataclass(slots=True)
class _Turn:
    """The messages that become one, and the results of its calls. Further messages of the assistant
    are joined to its turn until all calls have results or another role writes."""

    parts: list[Message]
    results: list[tuple[int, Message]] = field(default_factory=list)
    """Each with the number of its call in the turn."""
    num_calls: int = 0
    num_open: int = 0
    """Number of calls without a result."""


def pair_results(conversation: Conversation) -> Conversation:
    """Return the conversation in the order that templates need.

    Messages keep their order, except that results follow their calls. What the assistant writes
    between a call and its result is of one turn, and thus of one message. Ids are those that models
    wrote, whatever Messages has put before them. Raises `InvalidField`, with OpenAI's messages, for
    calls without results, results without calls, and ids that two calls without results or two
    results have.
    """
    turns: list[_Turn] = []
    open_turns: dict[str, tuple[_Turn, int]] = {}
    answered: set[str] = set()
    for index, message in enumerate(_with_paths(conversation.messages)):
        if message.role is Role.TOOL:
            turn, number = open_turns.pop(message.tool_call_id, (None, 0))
            if turn is None:
                is_second = message.tool_call_id in answered
                raise _without_call(index, message.tool_call_id, is_second=is_second)
            answered.add(message.tool_call_id)
            turn.num_open -= 1
            turn.results.append((number, message))
            continue
        if turns and turns[-1].num_open and message.role is Role.ASSISTANT:
            turns[-1].parts.append(message)
        else:
            turns.append(_Turn([message]))
        _open_calls(index, message, turns[-1], open_turns)
    if open_turns:
        raise _without_results(open_turns)
    messages = [each for turn in turns for each in _messages(turn)]
    return _reordered(conversation, tuple(_with_written_ids(messages)))


def _with_written_ids(messages: Sequence[Message]) -> Iterator[Message]:
    """The messages with the ids that models wrote, so that they do not write them again, unless two
    calls would have the same."""
    ids = {call.id for message in messages for call in message.tool_calls}

    def written(call_id: str) -> str:
        shortened = call_id.removeprefix(_TOOL_USE_PREFIX)
        return call_id if shortened in ids else shortened or call_id

    for message in messages:
        if message.tool_call_id.startswith(_TOOL_USE_PREFIX):
            yield replace(message, tool_call_id=written(message.tool_call_id))
        elif any(call.id.startswith(_TOOL_USE_PREFIX) for call in message.tool_calls):
            calls = (replace(call, id=written(call.id)) for call in message.tool_calls)
            yield replace(message, tool_calls=tuple(calls))
        else:
            yield message


def _messages(turn: _Turn) -> Iterator[Message]:
    yield _joined(turn.parts)
    for _, result in sorted(turn.results, key=itemgetter(0)):
        yield result


def _open_calls(
    index: int, message: Message, turn: _Turn, open_turns: dict[str, tuple[_Turn, int]]
) -> None:
    for number, call in enumerate(message.tool_calls):
        if call.id in open_turns:
            raise InvalidField(
                field=f"messages[{index}].tool_calls[{number}].id",
                problem=f"an earlier call without a tool message has the id '{call.id}' too",
            )
        open_turns[call.id] = turn, turn.num_calls
        turn.num_calls += 1
        turn.num_open += 1


def _joined(messages: Sequence[Message]) -> Message:
    if len(messages) == 1:
        return messages[0]
    return replace(
        messages[0],
        parts=tuple(part for each in messages for part in each.parts),
        tool_calls=tuple(call for each in messages for call in each.tool_calls),
        reasoning="".join(each.reasoning for each in messages),
    )


def _reordered(conversation: Conversation, messages: tuple[Message, ...]) -> Conversation:
    """The conversation with these messages. An answer that was not the last message is not
    continued."""
    options, last = conversation.options, conversation.messages[-1]
    if messages[-1].role is Role.ASSISTANT and last.role is not Role.ASSISTANT:
        options = replace(options, continue_final_message=False)
    return replace(conversation, messages=messages, options=options)


def _with_paths(messages: Sequence[Message]) -> Iterator[Message]:
    """The messages whose pictures, sounds and documents know where they are in the request."""
    for index, message in enumerate(messages):
        if any(isinstance(part, MediaPart) and not part.path for part in message.parts):
            parts = (_with_path(index, *numbered) for numbered in enumerate(message.parts))
            yield replace(message, parts=tuple(parts))
        else:
            yield message


def _with_path(index: int, number: int, part: Part) -> Part:
    if not isinstance(part, MediaPart) or part.path:
        return part
    return replace(part, path=f"messages[{index}].content[{number}].{part.kind}")


def _without_call(index: int, call_id: str, *, is_second: bool) -> InvalidField:
    if is_second:
        return InvalidField(
            field=f"messages[{index}].tool_call_id",
            problem=f"an earlier tool message is the response to '{call_id}'",
        )
    return InvalidField(
        field=f"messages[{index}].role",
        problem="messages with role 'tool' must be a response to a preceding message with "
        f"'tool_calls'. No call has the tool_call_id '{call_id}'.",
    )


def _without_results(call_ids: Iterable[str]) -> InvalidField:
    return InvalidField(
        field="messages",
        problem="An assistant message with 'tool_calls' must be followed by tool messages "
        "responding to each 'tool_call_id'. The following tool_call_ids did not have response "
        f"messages: {', '.join(call_ids)}",
    )
