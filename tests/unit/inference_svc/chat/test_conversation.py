"""Validation of conversations: the field of each error, and OpenAI's messages."""

from dataclasses import replace

import pytest

from inference_svc.chat.conversation import (
    Conversation,
    ConversationLimits,
    MediaPart,
    Message,
    RefusalPart,
    Role,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolMode,
    ToolSpec,
)
from inference_svc.chat.tool_turns import pair_results
from svc_kit.errors import (
    DomainError,
    InvalidField,
    InvalidJson,
    InvalidType,
    MissingField,
    TooLong,
)
from tests.support.conversations import (
    GET_WEATHER,
    assistant,
    call,
    conversation,
    refusal,
    result,
    system,
    user,
)

LIMITS = ConversationLimits()
TOOL_TEXT = GET_WEATHER.name + GET_WEATHER.description + GET_WEATHER.parameters_json


def check_error(invalid: Conversation, limits: ConversationLimits = LIMITS) -> DomainError:
    def check() -> None:
        invalid.check(limits)
        pair_results(invalid)

    with pytest.raises(DomainError) as raised:
        check()
    return raised.value


def test_all_kinds_of_turns_are_valid() -> None:
    """With tools, results, refusals and empty texts."""
    conversation(
        system("Be brief."),
        Message(Role.DEVELOPER, (TextPart("Be kind."),)),
        user("a", "b"),
        assistant("Let me look.", call("1"), call("2")),
        result("sun", "2"),
        result("rain", "1"),
        assistant(reasoning="hm"),
        refusal("No."),
        user(""),
        tools=(GET_WEATHER, ToolSpec("x" * 64)),
        choice=ToolChoice(ToolMode.REQUIRED, ("get_weather",)),
        kwargs_json='{"date": "today"}',
        enable_thinking=False,
    ).check(LIMITS)


@pytest.mark.parametrize(
    ("invalid", "limits", "error"),
    [
        (
            conversation(user("a"), user("b")),
            ConversationLimits(max_messages=1),
            TooLong(field="messages", length=2, limit=1),
        ),
        # The sum of all texts, including tools, in bytes of UTF-8.
        (
            conversation(user("äää"), tools=(GET_WEATHER,)),
            ConversationLimits(max_text_bytes=10),
            TooLong(field="messages", length=6 + len(TOOL_TEXT), limit=10, unit="bytes"),
        ),
    ],
    ids=["messages", "text"],
)
def test_sizes_are_limited(
    invalid: Conversation, limits: ConversationLimits, error: DomainError
) -> None:
    assert check_error(invalid, limits) == error


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ((), "messages"),
        ((Message(Role.USER),), "messages[0].content"),
        ((user("a"), assistant()), "messages[1].content"),
    ],
)
def test_messages_and_their_content_are_required(messages: tuple[Message, ...], field: str) -> None:
    """Only an assistant turn may have calls or reasoning instead of content."""
    assert check_error(conversation(*messages)) == MissingField(field=field)


def test_media_stand_between_the_texts_of_a_message() -> None:
    """There are line breaks between texts only, as in llama-server."""
    image, sound = MediaPart("image", b"png"), MediaPart("audio", b"wav")
    parts = (TextPart("a"), TextPart("b"), image, TextPart("c"), sound, image)

    content = Message(Role.USER, parts).content(iter("123"))

    assert content == "a\nb1c23"


def test_media_of_a_conversation_have_paths() -> None:
    """In the order of messages and parts."""
    image, sound = MediaPart("image", b"png"), MediaPart("audio", b"wav")
    turns = conversation(
        Message(Role.USER, (TextPart("a"), image)), assistant("b"), Message(Role.USER, (sound,))
    )

    assert turns.media == [
        ("messages[0].content[1].image", image),
        ("messages[2].content[0].audio", sound),
    ]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (Message(Role.USER, (RefusalPart("no"),)), "messages[0].content[0].refusal"),
        (Message(Role.USER, (TextPart("x"),), (call(),)), "messages[0].tool_calls"),
        (Message(Role.TOOL, (TextPart("x"),)), "messages[0].tool_call_id"),
        (assistant("", ToolCall("", "f", "{}")), "messages[0].tool_calls[0].id"),
        (assistant("", ToolCall("1", "", "{}")), "messages[0].tool_calls[0].function.name"),
    ],
)
def test_invalid_parts_of_a_message_are_refused(message: Message, field: str) -> None:
    """The error has the path of the part."""
    assert check_error(conversation(message)).field == field


@pytest.mark.parametrize(
    "following",
    [(), (user("never mind"),), (result("sun", "call_1"),), (user("x"), result("sun", "call_1"))],
)
def test_calls_without_results_are_refused(following: tuple[Message, ...]) -> None:
    """With OpenAI's message, which agents recognize."""
    error = check_error(
        conversation(user("q"), assistant("", call("call_1"), call("call_2")), *following)
    )

    assert error.field == "messages"
    assert (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to "
        "each 'tool_call_id'." in error.message
    )
    assert "call_2" in error.message


@pytest.mark.parametrize("preceding", [(user("q"),), (user("q"), assistant("a", call("2")))])
def test_results_without_a_call_are_refused(preceding: tuple[Message, ...]) -> None:
    """With the id that no call has."""
    error = check_error(conversation(*preceding, result("sun", "1")))

    assert error.field == f"messages[{len(preceding)}].role"
    assert "must be a response to a preceding message with 'tool_calls'" in error.message
    assert "'1'" in error.message


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ((assistant("", call("1"), call("1")), result("sun", "1")), "messages[0].tool_calls[1].id"),
        ((assistant("", call("1")), user("x"), assistant("", call("1"))),
         "messages[2].tool_calls[0].id"),
        ((assistant("", call("1")), result("sun", "1"), user("x"), result("rain", "1")),
         "messages[3].tool_call_id"),
    ],
)  # fmt: skip
def test_ids_of_two_open_calls_or_two_results_are_refused(
    messages: tuple[Message, ...], field: str
) -> None:
    """It would not be known which belongs to which. A call may have the id of an answered one."""
    assert check_error(conversation(*messages)).field == field

    again = (assistant("", call("1")), result("sun", "1"), user("x")) * 2
    assert pair_results(conversation(*again)).messages == again


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ((assistant("", call("1")), user("x"), result("sun", "1")),
         (assistant("", call("1")), result("sun", "1"), user("x"))),
        ((assistant("", call("1")), assistant("b"), result("sun", "1")),
         (assistant("b", call("1")), result("sun", "1"))),
        ((assistant("a", call("1")), assistant("b", call("2")), result("rain", "2"),
          system("s"), result("sun", "1"), user("y")),
         (replace(user("a", "b"), role=Role.ASSISTANT, tool_calls=(call("1"), call("2"))),
          result("sun", "1"), result("rain", "2"), system("s"), user("y"))),
        ((assistant("", call("1"), call("2")), result("sun", "1"), assistant("b"),
          result("rain", "2")),
         (assistant("b", call("1"), call("2")), result("sun", "1"), result("rain", "2"))),
        ((assistant("", call("1")), user("x"), assistant("", call("2")), result("rain", "2"),
          result("sun", "1")),
         (assistant("", call("1")), result("sun", "1"), user("x"), assistant("", call("2")),
          result("rain", "2"))),
    ],
)  # fmt: skip
def test_results_are_brought_to_their_calls(
    sent: tuple[Message, ...], expected: tuple[Message, ...]
) -> None:
    """What the assistant writes before the results is of the same turn; others come after them.
    Results stand in the order of the calls: templates without ids pair them by it."""
    assert pair_results(conversation(user("q"), *sent)).messages == (user("q"), *expected)


def test_an_answer_before_a_result_is_not_continued() -> None:
    """The last message that was sent is the result."""
    sent = (assistant("", call("1")), user("x"), assistant("b"), result("sun", "1"))

    assert not pair_results(conversation(*sent)).continues_final_message


def test_a_picture_in_a_result_keeps_its_path() -> None:
    picture = Message(Role.TOOL, (MediaPart("image", b"png"),), tool_call_id="1")
    paired = pair_results(conversation(assistant("", call("1")), user("x"), picture))

    assert [path for path, _ in paired.media] == ["messages[2].content[0].image"]


@pytest.mark.parametrize(
    ("tool", "error"),
    [
        (ToolSpec(""), MissingField),
        (GET_WEATHER, InvalidField),
        (ToolSpec("has space"), InvalidField),
        (ToolSpec("x" * 129), InvalidField),
        (ToolSpec("f", parameters_json="{"), InvalidJson),
        (ToolSpec("f", parameters_json="[]"), InvalidType),
        (ToolSpec("f", parameters_json='{"a": NaN}'), InvalidJson),
        (ToolSpec("f", parameters_json='{"a":' * 100_000), InvalidJson),
    ],
)
def test_invalid_tools_are_refused(tool: ToolSpec, error: type[DomainError]) -> None:
    """For their name, a duplicate name or their schema."""
    raised = check_error(conversation(user("q"), tools=(GET_WEATHER, tool)))

    assert type(raised) is error
    part = "parameters" if tool.name == "f" else "name"
    assert raised.field == f"tools[1].function.{part}"


@pytest.mark.parametrize(
    ("tools", "choice"),
    [((), ToolChoice(ToolMode.REQUIRED)), ((GET_WEATHER,), ToolChoice(allowed_names=("other",)))],
)
def test_an_impossible_tool_choice_is_refused(
    tools: tuple[ToolSpec, ...], choice: ToolChoice
) -> None:
    """A required call without tools, or an unknown tool."""
    invalid = conversation(user("q"), tools=tools, choice=choice)

    assert check_error(invalid).field == "tool_choice"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", "chat_template_kwargs"),
        ("[1]", "chat_template_kwargs"),
        ('{"messages": []}', "chat_template_kwargs.messages"),
        ('{"bos_token": "x"}', "chat_template_kwargs.bos_token"),
        ('{"enable_thinking": true}', "chat_template_kwargs.enable_thinking"),
    ],
)
def test_invalid_template_variables_are_refused(text: str, field: str) -> None:
    """They must be an object, and neither replace reserved variables nor contradict an option."""
    invalid = conversation(user("q"), kwargs_json=text, enable_thinking=False)

    assert check_error(invalid).field == field


def test_thinking_can_be_set_by_option_or_variable() -> None:
    """With the same result."""
    by_option = conversation(user("q"), enable_thinking=True)
    by_variable = conversation(user("q"), kwargs_json='{"enable_thinking": true}')

    assert by_option.template_variables() == by_variable.template_variables()
    assert conversation(user("q")).template_variables() == {}


def test_only_an_assistant_turn_can_be_continued() -> None:
    """It is continued by default if it is the last one."""
    assert conversation(user("q"), assistant("The")).continues_final_message
    assert not conversation(user("q")).continues_final_message
    disabled = conversation(user("q"), assistant("The"), continue_final_message=False)
    assert not disabled.continues_final_message
    error = check_error(conversation(user("q"), continue_final_message=True))
    assert error.field == "continue_final_message"


@pytest.mark.parametrize(
    "place", ["content", "reasoning", "arguments", "description", "kwargs", "tool_call_id"]
)
def test_lone_surrogates_are_refused_in_any_field(place: str) -> None:
    """They have no UTF-8 encoding and would terminate the process in llama.cpp."""
    surrogate = "x\ud800"
    invalid = conversation(
        user(surrogate if place == "content" else "q"),
        assistant("", call(arguments=surrogate if place == "arguments" else "{}")),
        replace(result("r"), tool_call_id=surrogate if place == "tool_call_id" else "call_1"),
        assistant("a", reasoning=surrogate if place == "reasoning" else ""),
        tools=(ToolSpec("f", surrogate if place == "description" else ""),),
        kwargs_json=surrogate if place == "kwargs" else "",
    )

    assert "lone surrogate" in check_error(invalid).message


def test_texts_of_a_turn_are_joined_by_line_breaks() -> None:
    """As in llama-server."""
    assert user("a", "b").text == "a\nb"
    assert refusal("No.").text == "No."


def test_tools_are_offered_unless_the_choice_is_none() -> None:
    """With `none`, the output is not parsed for calls."""
    none = ToolChoice(ToolMode.NONE)

    assert conversation(user("q"), tools=(GET_WEATHER,)).offers_tools
    assert not conversation(user("q"), tools=(GET_WEATHER,), choice=none).offers_tools
    assert not conversation(user("q")).offers_tools
