"""Conversion of turns to requests of the inference service."""

from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest
from corral.inference.v1 import chat_pb2 as chat
from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as pb

from control_svc.inference import turn_client, turns
from control_svc.inference.generation_options import OPTIONS
from dialects.shared.media import MAX_MEDIA_BYTES, StoredFile
from svc_kit.errors import GrammarInvalid, InvalidField, SchemaInvalid, TooLong

PNG = b"\x89PNG\r\n\x1a\n"
PNG_URL = f"data:image/png;base64,{b64encode(PNG).decode()}"
PDF = b"%PDF-1.7"
FILES = {"file-1": StoredFile("a.pdf", PDF), "file-2": StoredFile("cat.png", PNG)}


def chat_request(request: turns.TurnRequest) -> pb.ChatRequest:
    return turn_client.chat_request(request, FILES)


HELLO = turns.TurnMessage(turns.TurnRole.USER, (turns.TextPart("Hello"),))


def test_messages_and_tools_are_converted_unchanged() -> None:
    """Every kind of part, tool calls and results, the tool choice and template values."""
    request = chat_request(
        turns.TurnRequest(
            project="p",
            model="m",
            seed=1,
            messages=(
                turns.TurnMessage(turns.TurnRole.DEVELOPER, (turns.TextPart("Be kind."),)),
                turns.TurnMessage(
                    turns.TurnRole.USER,
                    (turns.TextPart("?"), turns.ImagePart("field", PNG_URL, detail="low")),
                ),
                turns.TurnMessage(
                    turns.TurnRole.ASSISTANT,
                    (turns.RefusalPart("No."),),
                    calls=(turns.TurnCall("call_1", "look", "{}"),),
                    reasoning="Hm.",
                ),
                turns.TurnMessage(
                    turns.TurnRole.TOOL, (turns.TextPart("42"),), call_id="call_1", name="look"
                ),
            ),
            tools=(turns.TurnTool("look", "Looks", "{}", strict=True), turns.TurnTool("wait")),
            choice=turns.TurnChoice(turns.ChoiceMode.REQUIRED, ("look",), parallel=False),
            enable_thinking=False,
            effort="low",
        )
    )
    expected = chat.ChatMessage(
        role=chat.ROLE_ASSISTANT,
        parts=[chat.ContentPart(refusal="No.")],
        tool_calls=[chat.ToolCall(id="call_1", name="look", arguments_json="{}")],
        reasoning="Hm.",
    )
    developer, user, assistant, tool = request.conversation.messages

    assert developer.role == chat.ROLE_DEVELOPER
    assert user.parts[1].image == chat.Media(data=PNG, media_type="image/png", detail="low")
    assert assistant == expected
    assert (tool.role, tool.tool_call_id, tool.name) == (chat.ROLE_TOOL, "call_1", "look")
    assert [each.HasField("strict") for each in request.conversation.tools] == [True, False]
    choice = request.conversation.tool_choice
    assert (choice.mode, choice.parallel) == (chat.ToolChoice.MODE_REQUIRED, False)
    assert list(choice.allowed_names) == ["look"]
    assert request.conversation.template.reasoning_effort == chat.REASONING_EFFORT_LOW
    assert not request.conversation.template.enable_thinking
    assert request.conversation.template.HasField("enable_thinking")


def test_unset_options_stay_unset() -> None:
    """Only the seed and the request for token ids are set."""
    request = chat_request(turns.TurnRequest(project="p", model="", messages=(HELLO,), seed=3))

    assert not request.conversation.template.HasField("enable_thinking")
    assert request.conversation.tool_choice == chat.ToolChoice()
    options = generation.GenerationOptions()
    options.sampling.seed = 3
    options.output.token_ids = True
    assert request.options == options


def test_settings_of_a_turn_override_the_options_of_the_caller() -> None:
    """Seed, token limit and resumed tokens; all other options are passed on."""
    caller_options = generation.GenerationOptions(num_choices=4, deterministic=True)
    caller_options.sampling.temperature = 0.5
    caller_options.sampling.seed = 9
    caller_options.stopping.max_tokens = 100
    caller_options.stopping.stop.append("END")
    caller_options.resume.add(output_token_ids=[1])
    options = chat_request(
        turns.TurnRequest(
            project="p",
            model="",
            messages=(HELLO,),
            options=OPTIONS.from_message(caller_options),
            seed=3,
            max_tokens=20,
            token_ids=(5, 6),
            label="run_1",
        )
    ).options

    assert (options.sampling.temperature, options.sampling.seed) == (0.5, 3)
    assert (options.stopping.max_tokens, list(options.stopping.stop)) == (20, ["END"])
    assert [list(each.output_token_ids) for each in options.resume] == [[5, 6]]
    assert (options.deterministic, options.label) == (True, "run_1")
    assert not options.HasField("num_choices")


@pytest.mark.parametrize(
    ("caller_options", "expected"),
    [
        (generation.GenerationOptions(), "thread_1"),
        (generation.GenerationOptions(cache={"keep_for": "another's"}), "thread_1"),
        (generation.GenerationOptions(cache={"reuse": True, "salt": "s"}), "thread_1"),
        (generation.GenerationOptions(cache={"reuse": False, "keep_for": "another's"}), ""),
        (generation.GenerationOptions(deterministic=True), ""),
    ],
    ids=["none", "another's", "reusable", "not reusable", "deterministic"],
)
def test_keep_for_is_set_by_the_control_service_only(
    caller_options: generation.GenerationOptions, expected: str
) -> None:
    """The caller's value is not passed on. Without reuse it is unset, since the inference service
    would refuse it."""
    turn = turns.TurnRequest(
        project="p", model="", messages=(HELLO,), seed=1, keep_for="thread_1",
        options=OPTIONS.from_message(caller_options),
    )  # fmt: skip
    cache = chat_request(turn).options.cache
    without_keep_for = chat_request(replace(turn, keep_for="")).options

    assert (cache.keep_for, cache.salt) == (expected, caller_options.cache.salt)
    assert without_keep_for.cache.keep_for == ""
    assert without_keep_for.HasField("cache") == caller_options.HasField("cache")


@pytest.mark.parametrize(
    ("turn_format", "expected"),
    [
        (None, generation.Constraint(regex="a+")),
        (turns.JsonObject(), generation.Constraint(json_object=True)),
        (turns.JsonSchema("{}"), generation.Constraint(json_schema="{}")),
    ],
)
def test_a_format_replaces_the_constraint_of_the_options(
    turn_format: turns.TurnFormat | None, expected: generation.Constraint
) -> None:
    """Without a format the constraint of the options stays."""
    caller_options = generation.GenerationOptions(constraint=generation.Constraint(regex="a+"))
    request = turns.TurnRequest(
        project="p", model="", messages=(HELLO,), seed=1, format=turn_format,
        options=OPTIONS.from_message(caller_options),
    )  # fmt: skip

    assert chat_request(request).options.constraint == expected


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (turns.ImagePart("f", "https://host/x.png"), {"image": {"url": "https://host/x.png"}}),
        (
            turns.ImagePart("f", file_id="file-2", detail="low"),
            {"image": {"data": PNG, "detail": "low"}},
        ),
        (turns.ImagePart("f", file_id="file-1"), {"image": {"data": PDF}}),
        (
            turns.DocumentPart("f", file_id="file-1"),
            {"document": {"data": PDF, "filename": "a.pdf"}},
        ),
        (
            turns.DocumentPart("f", file_id="file-1", filename="b"),
            {"document": {"data": PDF, "filename": "b"}},
        ),
        (turns.DocumentPart("f", file_id="file-2"), {"image": {"data": PNG}}),
        (
            turns.DocumentPart("f", "data:text/plain;base64,aGk=", filename="b"),
            {"document": {"data": b"hi", "media_type": "text/plain", "filename": "b"}},
        ),
        (
            turns.DocumentPart("f", "https://host/a.pdf", filename="b"),
            {"document": {"url": "https://host/a.pdf", "filename": "b"}},
        ),
        (turns.DocumentPart("f", "aGk="), {"document": {"data": b"hi"}}),
    ],
)
def test_pictures_and_documents_are_sent_as_bytes_or_addresses(
    part: turns.TurnPart, expected: Any
) -> None:
    message = turns.TurnMessage(turns.TurnRole.USER, (part,))
    request = chat_request(turns.TurnRequest(project="p", model="", messages=(message,), seed=1))

    assert list(request.conversation.messages[0].parts) == [chat.ContentPart(**expected)]


def test_the_pictures_of_a_turn_are_bounded_together() -> None:
    """The error has the field of the first one that is too much, also over several messages."""
    files = {"file-1": StoredFile("x", bytes(MAX_MEDIA_BYTES // 2))}
    messages = [
        turns.TurnMessage(
            turns.TurnRole.USER,
            (turns.TextPart("?"), turns.ImagePart(f"input[{index}]", file_id="file-1")),
        )
        for index in range(3)
    ]
    turn = turns.TurnRequest(project="p", model="", messages=tuple(messages), seed=1)

    with pytest.raises(TooLong) as caught:
        turn_client.chat_request(turn, files)
    assert caught.value.field == "input[2]"


def test_ids_that_an_engine_does_not_have_are_not_named_as_ignored() -> None:
    """Callers did not ask for them."""
    accepted = generation.Accepted(ignored_options=["output.token_ids", "enable_thinking"])
    started = turn_client._started(accepted, generation.Started(), ())
    assert started.ignored == ("enable_thinking",)


def test_tools_are_named_by_their_places_in_the_request() -> None:
    """Those of a turn have other places, because hosted tools are not among them."""
    tools = (
        turns.TurnTool("f", field="tools[1]"),
        turns.TurnTool("g", field="tools[3]"),
        turns.TurnTool("search"),
    )
    accepted = generation.Accepted(
        ignored_options=["tools[1].parameters_json", "constraint.json_schema", "reasoning_effort"]
    )
    started = turn_client._started(accepted, generation.Started(), tools)

    assert started.ignored == (
        "tools[3].function.parameters",
        "response_format",
        "reasoning_effort",
    )
    with pytest.raises(InvalidField) as raised, turn_client._tool_names(tools):
        raise InvalidField(field="tools[0].function.parameters", problem="it is unsupported")
    assert raised.value.field == "tools[1].function.parameters"


def test_the_grammar_of_a_custom_tool_is_named_as_the_caller_wrote_it() -> None:
    """Not the schema that enforces it."""
    tools = (turns.TurnTool("f", field="tools[2]", grammar_field="tools[2].format.definition"),)
    with pytest.raises(GrammarInvalid) as raised, turn_client._tool_names(tools):
        raise SchemaInvalid(
            field="tools[0].function.parameters", pointer="#/properties/input", problem="it is odd"
        )

    assert (raised.value.field, raised.value.problem) == ("tools[2].format.definition", "it is odd")
