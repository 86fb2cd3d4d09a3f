"""What Corral answered can be sent back, with results of tools anywhere after their calls, by every
dialect; and templates get it in their order, with nothing lost.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from corral.inference.v1.inference_service_pb2 import ChatResponse
from corral.inference.v1.inference_service_pb2 import Conversation as ConversationProto
from hypothesis import given, settings
from hypothesis import strategies as st

from control_svc.agent.drafts import TurnDraft
from control_svc.agent.prompt import turn_messages
from control_svc.inference.turn_client import chat_request as turn_chat_request
from control_svc.inference.turns import TurnRequest
from control_svc.items.model import Item, ItemStatus
from control_svc.items.proto import ITEM, input_item
from control_svc.responses.compaction import check_calls
from dialects.anthropic.message_request import message_request, parse_message
from dialects.anthropic.objects import CollectedMessage
from dialects.ollama import requests as ollama
from dialects.ollama.events import ChatAnswer
from dialects.openai.chat.chat_request import chat_request, parse_chat
from dialects.openai.chat.objects import ChatCompletion
from dialects.openai.responses.input_items import item_to_proto
from dialects.openai.responses.output_items import item_object
from inference_svc.chat.conversation import ConversationLimits, Message, Role
from inference_svc.chat.parsers.parser import TurnParser
from inference_svc.chat.tool_turns import pair_results
from inference_svc.rpc.chat_messages import to_conversation
from svc_kit.errors import DomainError
from tests.support.examples import examples, timeout
from tests.support.golden_turns import GOLDEN
from tests.support.random_turns import random_turns
from tests.support.served_turns import serve
from tests.support.turns import Golden
from tests.support.wire_events import chat_body, make_envelope

Json = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HELLO: Json = {"role": "user", "content": "hello"}


class Client(ABC):
    """Builds the body of the next request as clients do, from answers and results."""

    def user(self, role: str, text: str) -> Json:
        """A message of the user, of the assistant, or instructions."""
        return {"role": role, "content": text}

    @abstractmethod
    def answer(self, sent: Sequence[ChatResponse]) -> list[Json]:
        """The entries of an answer."""

    def written(self, call_id: str) -> str:
        """The id that the model wrote for what the client received."""
        return call_id

    @abstractmethod
    def calls(self, entry: Json) -> list[str]:
        """The ids of the calls of an entry."""

    @abstractmethod
    def result(self, call_id: str, text: str) -> Json:
        """The result of a call."""

    @abstractmethod
    def send(self, entries: Sequence[Json]) -> ConversationProto:
        """The conversation that the inference service gets. Raises DomainErrors."""


class Chat(Client):
    """Chat completions."""

    def answer(self, sent: Sequence[ChatResponse]) -> list[Json]:
        completion = ChatCompletion(make_envelope(), chat_body())
        for each in sent:
            completion.add(each)
        answer: Any = completion.as_object()
        return [answer["choices"][0]["message"]]

    def calls(self, entry: Json) -> list[str]:
        return [call["id"] for call in entry.get("tool_calls") or ()]

    def result(self, call_id: str, text: str) -> Json:
        return {"role": "tool", "tool_call_id": call_id, "content": text}

    def send(self, entries: Sequence[Json]) -> ConversationProto:
        return chat_request(parse_chat({"model": "m", "messages": list(entries)})).conversation


class Messages(Client):
    """Anthropic's messages."""

    def answer(self, sent: Sequence[ChatResponse]) -> list[Json]:
        message = CollectedMessage(parse_message(self._body([HELLO])))
        for each in sent:
            message.add(each)
        return [{"role": "assistant", "content": message.as_object()["content"]}]

    def calls(self, entry: Json) -> list[str]:
        blocks = entry["content"] if isinstance(entry["content"], list) else ()
        return [block["id"] for block in blocks if block["type"] == "tool_use"]

    def written(self, call_id: str) -> str:
        return call_id.removeprefix("toolu_")

    def result(self, call_id: str, text: str) -> Json:
        block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
        return {"role": "user", "content": [block]}

    def send(self, entries: Sequence[Json]) -> ConversationProto:
        return message_request(parse_message(self._body(entries))).proto.conversation

    def _body(self, entries: Sequence[Json]) -> Json:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        body = {"model": "m", "max_tokens": 2048, "thinking": thinking}
        return body | {"messages": list(entries)}


class Ollama(Client):
    """Ollama's chats."""

    def answer(self, sent: Sequence[ChatResponse]) -> list[Json]:
        answer = ChatAnswer("m")
        for each in sent:
            answer.add(each)
        message: Json = answer.as_object()["message"]
        return [message]

    def calls(self, entry: Json) -> list[str]:
        return [call["id"] for call in entry.get("tool_calls") or ()]

    def result(self, call_id: str, text: str) -> Json:
        return {"role": "tool", "tool_call_id": call_id, "content": text}

    def send(self, entries: Sequence[Json]) -> ConversationProto:
        body = ollama.parse_chat({"model": "m", "messages": list(entries)})
        return ollama.chat_request(body).conversation


class Responses(Client):
    """Responses, conversations and threads: their items are the same."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def answer(self, sent: Sequence[ChatResponse]) -> list[Json]:
        draft = TurnDraft([], {}, lambda prefix: f"{prefix}{next(self._numbers)}", lambda: NOW)
        for each in sent:
            if each.HasField("delta"):
                list(draft.apply(each.delta))
        items = (each.item(ItemStatus.COMPLETED) for each in draft.drafts)
        return [item_object(ITEM.to_message(item)) for item in items]

    def calls(self, entry: Json) -> list[str]:
        return [entry["call_id"]] if entry.get("type") == "function_call" else []

    def result(self, call_id: str, text: str) -> Json:
        return {"type": "function_call_output", "call_id": call_id, "output": text}

    def send(self, entries: Sequence[Json]) -> ConversationProto:
        items = [self._item(index, entry) for index, entry in enumerate(entries)]
        for num_stored in range(len(items)):  # those of a previous response or a conversation
            check_calls(items[:num_stored], items[num_stored:])
        request = TurnRequest(project="p", model="m", messages=turn_messages("", items), seed=0)
        return turn_chat_request(request, {}).conversation

    def _item(self, index: int, entry: Json) -> Item:
        given = input_item(item_to_proto(entry, f"input[{index}]"), f"input[{index}]")
        given.check(f"input[{index}]")
        assert given.content is not None
        return Item(id=f"i{index}", status=given.status, created_at=NOW, content=given.content)


CLIENTS: dict[str, Callable[[], Client]] = {
    "chat": Chat,
    "messages": Messages,
    "ollama": Ollama,
    "responses": Responses,
}


def parse(turn: Golden, numbers: Iterable[int], used_ids: Sequence[str]) -> TurnParser:
    """A parser of a turn of a conversation, where ids are new."""
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
@pytest.mark.parametrize("dialect", CLIENTS)
@pytest.mark.parametrize("family", GOLDEN)
@settings(max_examples=examples(16), deadline=None)
@given(st.data())
def test_an_answer_can_be_sent_back_with_results_anywhere_after_their_calls(
    dialect: str, family: str, data: st.DataObject
) -> None:
    """With messages of anybody between them, over several turns. Templates get all texts, calls and
    results, the results directly after their calls."""
    client, numbers = CLIENTS[dialect](), itertools.count()
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
    function = {"name": "f", "arguments": "{}"}
    calls: dict[str, Json] = {
        "chat": {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        "messages": {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {}}],
        },
        "responses": CALL,
    }
    written = [calls[dialect], client.result("c1", "sun")]

    with pytest.raises(DomainError) as caught:
        received(client.send([HELLO, *(written[number] for number in entries)]))
    assert words in caught.value.message
