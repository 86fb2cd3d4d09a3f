"""Conversion of turns to requests of the inference service."""

from dataclasses import replace

import pytest
from corral.inference.v1 import chat_pb2 as chat
from corral.inference.v1 import generation_pb2 as generation

from control_svc.inference.turn_client import chat_request
from control_svc.inference.turns import (
    ChoiceMode,
    ImagePart,
    JsonObject,
    JsonSchema,
    RefusalPart,
    TextPart,
    TurnCall,
    TurnChoice,
    TurnFormat,
    TurnMessage,
    TurnRequest,
    TurnRole,
    TurnTool,
)

HELLO = TurnMessage(TurnRole.USER, (TextPart("Hello"),))


def test_messages_and_tools_arrive_as_they_are() -> None:
    """Every kind of part, calls and their results, and which calls are wanted."""
    request = chat_request(
        TurnRequest(
            project="p",
            model="m",
            seed=1,
            messages=(
                TurnMessage(TurnRole.DEVELOPER, (TextPart("Be kind."),)),
                TurnMessage(TurnRole.USER, (TextPart("?"), ImagePart(b"png", "image/png", "low"))),
                TurnMessage(
                    TurnRole.ASSISTANT,
                    (RefusalPart("No."),),
                    calls=(TurnCall("call_1", "look", "{}"),),
                    reasoning="Hm.",
                ),
                TurnMessage(TurnRole.TOOL, (TextPart("42"),), call_id="call_1", name="look"),
            ),
            tools=(TurnTool("look", "Looks", "{}", strict=True), TurnTool("wait")),
            choice=TurnChoice(ChoiceMode.REQUIRED, ("look",), parallel=False),
            enable_thinking=False,
            template_values='{"a": 1}',
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
    assert user.parts[1].image == chat.Media(data=b"png", media_type="image/png", detail="low")
    assert assistant == expected
    assert (tool.role, tool.tool_call_id, tool.name) == (chat.ROLE_TOOL, "call_1", "look")
    assert [each.HasField("strict") for each in request.conversation.tools] == [True, False]
    choice = request.conversation.tool_choice
    assert (choice.mode, choice.parallel) == (chat.ToolChoice.MODE_REQUIRED, False)
    assert list(choice.allowed_names) == ["look"]
    assert request.conversation.template.kwargs_json == '{"a": 1}'
    assert not request.conversation.template.enable_thinking
    assert request.conversation.template.HasField("enable_thinking")


def test_unset_options_stay_unset() -> None:
    """The inference service applies its defaults."""
    request = chat_request(TurnRequest(project="p", model="", messages=(HELLO,), seed=3))

    assert not request.conversation.template.HasField("enable_thinking")
    assert request.conversation.tool_choice == chat.ToolChoice()
    options = generation.GenerationOptions()
    options.sampling.seed = 3
    options.output.token_ids = True
    assert request.options == options


def test_settings_of_a_turn_override_the_options_of_the_caller() -> None:
    """Seed, token limit and resumed tokens; all other options are passed on."""
    asked = generation.GenerationOptions(num_choices=4, deterministic=True)
    asked.sampling.temperature = 0.5
    asked.sampling.seed = 9
    asked.stopping.max_tokens = 100
    asked.stopping.stop.append("END")
    asked.resume.add(output_token_ids=[1])
    options = chat_request(
        TurnRequest(
            project="p",
            model="",
            messages=(HELLO,),
            options=asked.SerializeToString(),
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
    ("asked", "expected"),
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
    asked: generation.GenerationOptions, expected: str
) -> None:
    """The caller's value is not passed on. Without reuse it is unset, since the inference service
    would refuse it."""
    turn = TurnRequest(
        project="p", model="", messages=(HELLO,), seed=1, options=asked.SerializeToString(),
        keep_for="thread_1",
    )  # fmt: skip
    cache = chat_request(turn).options.cache
    nameless = chat_request(replace(turn, keep_for="")).options

    assert (cache.keep_for, cache.salt) == (expected, asked.cache.salt)
    assert nameless.cache.keep_for == ""
    assert nameless.HasField("cache") == asked.HasField("cache")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, generation.Constraint(regex="a+")),
        (JsonObject(), generation.Constraint(json_object=True)),
        (JsonSchema("{}"), generation.Constraint(json_schema="{}")),
    ],
)
def test_a_format_replaces_the_options_constraint(
    wanted: TurnFormat | None, expected: generation.Constraint
) -> None:
    """Without one the options' stays."""
    asked = generation.GenerationOptions(constraint=generation.Constraint(regex="a+"))
    request = TurnRequest(
        project="p", model="", messages=(HELLO,), seed=1, format=wanted,
        options=asked.SerializeToString(),
    )  # fmt: skip

    assert chat_request(request).options.constraint == expected
