"""What Corral answered in one dialect can be sent in another one: the prompt is the same."""

import asyncio
import itertools
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.chat.control_tokens import ControlTexts
from inference_svc.chat.conversation import Conversation, ConversationLimits
from inference_svc.chat.json_values import json_or_none
from inference_svc.chat.parsers.parser import TurnParser
from inference_svc.chat.templates import ChatTemplates, ModelTemplate
from inference_svc.chat.tool_turns import pair_results
from inference_svc.rpc.prompts import to_conversation
from tests.support.examples import examples, timeout
from tests.support.golden_turns import GOLDEN
from tests.support.random_turns import random_turns
from tests.support.replaying_clients import CLIENTS, HELLO, Client, Json, Piece
from tests.support.sandbox_jobs import InlineJobs
from tests.support.served_turns import serve

TEMPLATE = ModelTemplate(
    "{% for message in messages %}<{{ message.role }}>{{ message.reasoning_content or '' }}|"
    "{{ message.content or '' }}{% for call in message.tool_calls or [] %}[{{ call.id }}"
    " {{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor %}"
    "{{ message.tool_call_id or '' }}\n{% endfor %}{{ tools or '' }}",
    "gguf",
    bos_text="",
    eos_text="",
    control_texts=ControlTexts([]),
)
"""A template that shows all that a conversation has."""
TEMPLATES = ChatTemplates(InlineJobs())


def prompt(client: Client, entries: list[Json], template: ModelTemplate = TEMPLATE) -> str:
    """The text of the prompt that a request gives. Raises DomainErrors."""
    conversation = to_conversation(client.send(entries), allows_templates=False)
    conversation.check(ConversationLimits())
    paired = pair_results(conversation)
    return asyncio.run(TEMPLATES.render(template, with_plain_arguments(paired))).text


def with_plain_arguments(conversation: Conversation) -> Conversation:
    """The conversation without the spaces that models write in arguments."""
    messages = tuple(
        replace(
            message,
            tool_calls=tuple(
                replace(call, arguments_json=json.dumps(json.loads(call.arguments_json)))
                for call in message.tool_calls
            ),
        )
        for message in conversation.messages
    )
    return replace(conversation, messages=messages)


@timeout(60)
@pytest.mark.parametrize(("first", "second"), [*itertools.permutations(CLIENTS, 2)])
@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_another_dialect_continues_a_conversation_with_the_same_prompt(
    first: str, second: str, data: st.DataObject
) -> None:
    """With the ids of the first dialect, and results anywhere after their calls."""
    writer, reader, numbers = CLIENTS[first](), CLIENTS[second](), itertools.count()
    entries, translated = [HELLO], [HELLO]
    ids: list[str] = []
    for _ in range(data.draw(st.integers(1, 3))):
        turn = data.draw(st.sampled_from(sorted(GOLDEN)).flatmap(random_turns))
        parser = TurnParser(
            turn.turn_format,
            tools=turn.tools,
            opens_in_reasoning=turn.opens_in_reasoning,
            new_call_id=lambda: f"call_{next(numbers)}",
            used_ids=[writer.written(each) for each in ids],
        )
        answer = writer.answer(serve(parser, [[turn.text.encode()]]))
        pieces = [piece for entry in answer for piece in writer.read(entry)]
        if not any(piece.kind != "reasoning" and piece.text for piece in pieces):
            continue  # nothing that a client would keep
        calls = [piece for piece in pieces if piece.kind == "call"]
        if not all(isinstance(json_or_none(call.text), dict) for call in calls):
            continue  # calls that were cut off are nothing that some clients can write
        ids += [call.call_id for call in calls]
        entries += answer
        translated += reader.write(pieces)
        results = [(call.call_id, f"result {next(numbers)}.") for call in calls]
        for call_id, text in data.draw(st.permutations(results)):
            if data.draw(st.booleans()):
                entries.append(writer.user("assistant", f"between {next(numbers)}."))
                translated.append(entries[-1])
            entries.append(writer.result(call_id, text))
            translated.append(reader.result(call_id, text))
        entries.append(writer.user("user", f"more {next(numbers)}."))
        translated.append(entries[-1])

    assert prompt(reader, translated) == prompt(writer, entries)


@pytest.mark.parametrize(("first", "second"), [*itertools.permutations(CLIENTS, 2)])
def test_a_thought_at_the_end_of_a_turn_is_in_the_same_prompt(first: str, second: str) -> None:
    """Of a turn that was cut off."""
    writer, reader = CLIENTS[first](), CLIENTS[second]()
    turn = GOLDEN["muse"][0]
    thought, text = (
        " to=self<|message|>One.<|eom|>",
        "<|start|>assistant to=user<|message|>A.<|eom|>",
    )
    parser = TurnParser(turn.turn_format, tools=turn.tools)
    answer = writer.answer(
        serve(parser, [[f"{thought}{text}<|start|>assistant{thought}".encode()]])
    )
    pieces = [piece for entry in answer for piece in writer.read(entry)]
    question = writer.user("user", "more")

    translated = prompt(reader, [HELLO, *reader.write(pieces), question])
    assert translated == prompt(writer, [HELLO, *answer, question])
    assert translated.count("One.") == 2


@pytest.mark.parametrize(("first", "second"), [*itertools.permutations(CLIENTS, 2)])
def test_a_name_with_a_dot_is_in_the_same_prompt(first: str, second: str) -> None:
    """Of a tool that nobody offered. In Responses what is before the dot is the namespace."""
    writer, reader = CLIENTS[first](), CLIENTS[second]()
    (turn,) = (each for each in GOLDEN["kimi"] if each.label == "a tool that nobody offered")
    answer = writer.answer(serve(turn.parser(), [[turn.text.encode()]]))
    pieces = [piece for entry in answer for piece in writer.read(entry)]
    (call_id,) = (piece.call_id for piece in pieces)

    translated = prompt(reader, [HELLO, *reader.write(pieces), reader.result(call_id, "sun")])
    assert translated == prompt(writer, [HELLO, *answer, writer.result(call_id, "sun")])
    assert " a.b {}" in translated


@pytest.mark.parametrize(("first", "second"), [*itertools.permutations(CLIENTS, 2)])
def test_a_long_number_of_arguments_is_in_the_same_prompt(first: str, second: str) -> None:
    """With all digits."""
    writer, reader = CLIENTS[first](), CLIENTS[second]()
    arguments = '{"n": 18446744073709551616}'
    turn = GOLDEN["functionary"][0]._replace(text=f"get_time\n{arguments}")
    answer = writer.answer(serve(turn.parser(), [[turn.text.encode()]]))
    pieces = [piece for entry in answer for piece in writer.read(entry)]
    (call_id,) = (piece.call_id for piece in pieces)

    translated = prompt(reader, [HELLO, *reader.write(pieces), reader.result(call_id, "sun")])
    assert translated == prompt(writer, [HELLO, *answer, writer.result(call_id, "sun")])
    assert f" get_time {arguments}]" in translated


@pytest.mark.parametrize("dialect", CLIENTS)
def test_calls_of_any_model_are_sent_to_one_whose_ids_are_short(dialect: str) -> None:
    """As those of Mistral. Ids may be OpenAI's, Anthropic's, a model's own, or those of the older
    `function_call`; stored calls keep them, in every dialect."""
    client, refusal = CLIENTS[dialect](), "{{ raise_exception('nine letters!') }}"
    strict = replace(
        TEMPLATE,
        source=TEMPLATE.source.replace(
            "{{ call.id }}", "{% if call.id | length != 9 %}" + refusal + "{% endif %}{{ call.id }}"
        ),
    )
    ids = ["call_0123456789abcdef01234567", "toolu_01A", "functions.f:0", "call00001", "aB3dE6gH9"]
    entries = [HELLO]
    for call_id in ids:
        entries += client.write([Piece("call", "{}", call_id, "f")])
        entries.append(client.result(call_id, "sun"))

    text = prompt(client, entries, strict)
    calls, results = re.findall(r"\[(\S+) f", text), re.findall(r"sun(\S+)", text)

    assert calls == results
    assert [len(each) for each in calls] == [9] * len(ids)
    assert calls[3:] == ids[3:]
    assert len({*calls}) == len(ids)
