"""Conversion of turns to requests of the inference service."""

from dataclasses import replace

import pytest
from corral.inference.v1 import chat_pb2 as chat
from corral.inference.v1 import generation_pb2 as generation

from control_svc.inference.generation_options import OPTIONS
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


def test_messages_and_tools_are_converted_unchanged() -> None:
    """Every kind of part, tool calls and results, the tool choice and template values."""
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
    """Only the seed and the request for token ids are set."""
    request = chat_request(TurnRequest(project="p", model="", messages=(HELLO,), seed=3))

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
        TurnRequest(
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
    turn = TurnRequest(
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
        (JsonObject(), generation.Constraint(json_object=True)),
        (JsonSchema("{}"), generation.Constraint(json_schema="{}")),
    ],
)
def test_a_format_replaces_the_constraint_of_the_options(
    turn_format: TurnFormat | None, expected: generation.Constraint
) -> None:
    """Without a format the constraint of the options stays."""
    caller_options = generation.GenerationOptions(constraint=generation.Constraint(regex="a+"))
    request = TurnRequest(
        project="p", model="", messages=(HELLO,), seed=1, format=turn_format,
        options=OPTIONS.from_message(caller_options),
    )  # fmt: skip

    assert chat_request(request).options.constraint == expected
