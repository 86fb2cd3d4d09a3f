"""What Corral answered can be sent back, with results of tools anywhere after their calls, by every
dialect; and templates get it in their order, with nothing lost.
"""

import itertools
import re
from collections.abc import Iterable, Sequence

import pytest
from corral.inference.v1.inference_service_pb2 import Conversation as ConversationProto
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.chat.conversation import ConversationLimits, Message, Role
from inference_svc.chat.parsers.parser import TurnParser
from inference_svc.chat.tool_turns import pair_results
from inference_svc.rpc.prompts import to_conversation
from svc_kit.errors import DomainError, InvalidField, MissingField, TooShort
from tests.support.examples import examples, timeout
from tests.support.golden_turns import GOLDEN
from tests.support.random_turns import random_turns
from tests.support.replaying_clients import CLIENTS, HELLO, FrugalChat, Json, Responses
from tests.support.served_turns import serve
from tests.support.turns import Golden

REPLAYING = {**CLIENTS, "chat without empty fields": FrugalChat}


def parse(turn: Golden, numbers: Iterable[int], used_ids: Sequence[str]) -> TurnParser:
    ids = iter(numbers)
    return TurnParser(
        turn.turn_format,
        tools=turn.tools,
        opens_in_reasoning=turn.opens_in_reasoning,
        inline_reasoning=turn.inline_reasoning,
        new_call_id=lambda: f"call_{next(ids)}",
        used_ids=used_ids,
    )


def received(proto: ConversationProto) -> tuple[Message, ...]:
    """The messages for the template. Raises DomainErrors."""
    conversation = to_conversation(proto, allows_templates=False)
    conversation.check(ConversationLimits())
    return pair_results(conversation).messages


def check_template_order(messages: Sequence[Message]) -> None:
    """Results follow the message with their calls, one for each, in the order of these."""
    waiting: list[str] = []
    for message in messages:
        if message.role is Role.TOOL:
            assert message.tool_call_id == waiting.pop(0)
        else:
            assert not waiting
            waiting = [call.id for call in message.tool_calls]
            assert len({*waiting}) == len(waiting)
    assert not waiting


@timeout(60)
@pytest.mark.parametrize("dialect", REPLAYING)
@pytest.mark.parametrize("family", GOLDEN)
@settings(max_examples=examples(16), deadline=None)
@given(st.data())
def test_an_answer_can_be_sent_back_with_results_anywhere_after_their_calls(
    dialect: str, family: str, data: st.DataObject
) -> None:
    """With messages of anybody between them, over several turns. Templates get all texts, calls and
    results, the results directly after their calls."""
    client, numbers = REPLAYING[dialect](), itertools.count()
    entries, texts = [HELLO], ["hello"]
    for _ in range(data.draw(st.integers(1, 3))):
        turn = data.draw(random_turns(family))
        used = [client.written(each) for entry in entries for each in client.calls(entry)]
        sent = serve(parse(turn, numbers, used), [[turn.text.encode()]])
        entries += client.answer(sent)
        roles = data.draw(st.lists(st.sampled_from(["user", "assistant", "system"]), max_size=2))
        texts += [f"filler {next(numbers)}." for _ in roles]
        entries += map(client.user, roles, texts[-len(roles) :] if roles else ())
    ids = [call_id for entry in entries for call_id in client.calls(entry)]
    for call_id in ids:
        at = next(n for n, entry in enumerate(entries) if call_id in client.calls(entry))
        place = data.draw(st.integers(at + 1, len(entries)))
        texts.append(f"result {next(numbers)}.")
        entries.insert(place, client.result(call_id, texts[-1]))

    messages = received(client.send(entries))

    check_template_order(messages)
    assert [call.id for message in messages for call in message.tool_calls] == [
        client.written(call_id) for call_id in ids
    ]
    written = "\n".join(message.text for message in messages)
    assert [text for text in texts if text not in written] == []


CALL: Json = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OTHER = CALL | {"call_id": "c2"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "c1", "output": "sun"}
OTHER_OUTPUT = OUTPUT | {"call_id": "c2"}
THOUGHT: Json = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}


@pytest.mark.parametrize(
    ("items", "roles"),
    [
        ([CALL, {"role": "developer", "content": "d"}, OUTPUT], "assistant tool developer"),
        ([CALL, {"role": "user", "content": "u"}, OUTPUT], "assistant tool user"),
        ([CALL, {"role": "assistant", "content": "a"}, OUTPUT], "assistant tool"),
        ([CALL, THOUGHT, OTHER, OUTPUT, OTHER_OUTPUT], "assistant tool tool"),
        ([CALL, OTHER, OUTPUT, {"role": "user", "content": "u"}, OTHER_OUTPUT],
         "assistant tool tool user"),
        ([CALL, OTHER, OUTPUT, {"role": "assistant", "content": "a"}, OTHER_OUTPUT],
         "assistant tool tool"),
    ],
)  # fmt: skip
def test_items_between_calls_and_outputs_are_accepted(items: list[Json], roles: str) -> None:
    """Outputs are found by their `call_id`, as OpenAI does; nothing is dropped."""
    messages = received(Responses().send([HELLO, *items]))

    assert [str(message.role) for message in messages] == ["user", *roles.split()]
    written = str(messages)
    assert all(text in written for text in ("sun", *("hm" for item in items if item is THOUGHT)))


def call_of(dialect: str, **name: str) -> Json:
    """An entry with a call as clients send it back."""
    match dialect:
        case "chat":
            function = {**name, "arguments": "{}"}
            calls = [{"id": "c1", "type": "function", "function": function}]
            return {"role": "assistant", "tool_calls": calls}
        case "messages":
            block = {"type": "tool_use", "id": "c1", "input": {}, **name}
            return {"role": "assistant", "content": [block]}
    return {"type": "function_call", "call_id": "c1", "arguments": "{}", **name}


@pytest.mark.parametrize(
    ("dialect", "field"),
    [
        ("chat", "messages[1].tool_calls[0].function.name"),
        ("messages", "messages[1].content[0].name"),
        ("responses", "input[1].name"),
    ],
)
def test_a_call_without_a_name_is_refused_with_its_path(dialect: str, field: str) -> None:
    """Whether its name is missing or empty."""
    client = CLIENTS[dialect]()
    with pytest.raises(MissingField) as missing:
        client.send([HELLO, call_of(dialect)])
    with pytest.raises(TooShort) as short:
        client.send([HELLO, call_of(dialect, name="")])

    assert (missing.value.field, short.value.field) == (field, field)


@pytest.mark.parametrize(
    ("dialect", "field", "roles"),
    [
        ("chat", "messages[1].role", "developer system user assistant tool function"),
        ("messages", "messages[1].role", "user assistant system"),
        ("responses", "input[1].role", "user assistant system developer"),
        ("ollama", "messages[1].role", "system developer user assistant tool"),
    ],
)
def test_an_unknown_role_is_refused_with_all_roles(dialect: str, field: str, roles: str) -> None:
    with pytest.raises(InvalidField) as caught:
        CLIENTS[dialect]().send([HELLO, {"role": "bob", "content": "x"}])

    assert caught.value.field == field
    assert re.findall(r"'(\w+)'", caught.value.problem) == roles.split()


@pytest.mark.parametrize(
    ("dialect", "entries", "words"),
    [
        ("chat", [0], "The following tool_call_ids did not have response messages: c1"),
        ("chat", [1], "No call has the tool_call_id 'c1'"),
        ("chat", [0, 0, 1], "an earlier call without a tool message has the id 'c1' too"),
        ("chat", [0, 1, 1], "an earlier tool message is the response to 'c1'"),
        ("messages", [0], "`tool_use` ids were found without `tool_result` blocks: c1."),
        ("messages", [1], "unexpected `tool_use_id` found in `tool_result` blocks: c1."),
        ("messages", [0, 0, 1], "`tool_use` ids must be unique"),
        ("messages", [0, 1, 1], "each tool_use must have a single result."),
        ("responses", [0], "No tool output found for function call c1."),
        ("responses", [1], "No tool call found for function call output with call_id c1."),
        ("responses", [0, 0, 1], "two function calls without an output have the call_id 'c1'"),
        ("responses", [0, 1, 1], "No tool call found for function call output with call_id c1."),
    ],
)
def test_what_cannot_be_paired_is_refused_in_the_words_of_the_api(
    dialect: str, entries: list[int], words: str
) -> None:
    """A call without a result, a result without a call, and repeated ids."""
    client = CLIENTS[dialect]()
    written = [call_of(dialect, name="f"), client.result("c1", "sun")]

    with pytest.raises(DomainError) as caught:
        received(client.send([HELLO, *(written[number] for number in entries)]))
    assert words in caught.value.message
