"""What is refused before a template sees it, with the field and OpenAI's words."""

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
from svc_kit.errors import (
    DomainError,
    InvalidField,
    InvalidJson,
    InvalidType,
    MissingField,
    TooLong,
    UnsupportedField,
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


def refused(talk: Conversation, limits: ConversationLimits = LIMITS) -> DomainError:
    with pytest.raises(DomainError) as raised:
        talk.check(limits)
    return raised.value


def test_ordinary_conversations_pass() -> None:
    """Roles, tools, results, refusals and empty texts are all fine."""
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


def test_no_messages_are_refused() -> None:
    """There must be something to answer."""
    assert refused(conversation()) == MissingField(field="messages")


def test_the_number_of_messages_is_bounded() -> None:
    """The limit is named."""
    error = refused(conversation(user("a"), user("b")), ConversationLimits(max_messages=1))

    assert error == TooLong(field="messages", length=2, limit=1)


def test_the_sum_of_all_texts_is_bounded() -> None:
    """Tools and arguments count, in bytes."""
    talk = conversation(user("äää"), tools=(GET_WEATHER,))

    tool = GET_WEATHER.name + GET_WEATHER.description + GET_WEATHER.parameters_json
    error = refused(talk, ConversationLimits(max_text_bytes=10))

    assert error == TooLong(field="messages", length=6 + len(tool), limit=10, unit="bytes")


def test_a_turn_needs_content() -> None:
    """Only an assistant's turn may have calls or reasoning instead."""
    assert refused(conversation(Message(Role.USER))) == MissingField(field="messages[0].content")
    error = refused(conversation(user("a"), assistant()))
    assert error == MissingField(field="messages[1].content")


def test_media_is_refused_with_its_place() -> None:
    """This release reads text only."""
    picture = MediaPart("image", "image/png", b"")
    talk = conversation(Message(Role.USER, (TextPart("What is it?"), picture)))

    assert refused(talk) == UnsupportedField(field="messages[0].content[1].image")


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
def test_parts_of_the_wrong_role_are_refused(message: Message, field: str) -> None:
    """Each mistake is named by its path."""
    assert refused(conversation(message)).field == field


@pytest.mark.parametrize(
    "after",
    [(), (user("never mind"),), (result("sun", "call_1"),), (result("sun", "call_1"), user("x"))],
)
def test_unanswered_calls_are_refused_in_openais_words(after: tuple[Message, ...]) -> None:
    """Agents recognise this sentence."""
    talk = conversation(user("q"), assistant("", call("call_1"), call("call_2")), *after)

    error = refused(talk)

    assert error.field == "messages"
    assert (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to "
        "each 'tool_call_id'." in error.message
    )
    assert "call_2" in error.message


@pytest.mark.parametrize("before", [(user("q"),), (user("q"), assistant("a"))])
def test_results_without_a_call_are_refused(before: tuple[Message, ...]) -> None:
    """Nothing before them asked."""
    error = refused(conversation(*before, result("sun")))

    assert error.field == f"messages[{len(before)}].role"
    assert "must be a response to a preceding message with 'tool_calls'" in error.message


def test_a_result_for_a_call_of_an_earlier_turn_is_refused() -> None:
    """It must follow the turn with its call."""
    talk = conversation(
        user("q"), assistant("", call("1")), result("sun", "1"), user("r"), result("late", "1")
    )

    assert refused(talk).field == "messages[4].role"


@pytest.mark.parametrize(
    ("tool", "error"),
    [
        (ToolSpec(""), MissingField(field="tools[1].function.name")),
        (GET_WEATHER, InvalidField),
        (ToolSpec("has space"), InvalidField),
        (ToolSpec("x" * 65), InvalidField),
        (ToolSpec("f", parameters_json="{"), InvalidJson),
        (ToolSpec("f", parameters_json="[]"), InvalidType),
        (ToolSpec("f", parameters_json='{"a": NaN}'), InvalidJson),
        (ToolSpec("f", parameters_json='{"a":' * 100_000), InvalidJson),
    ],
)
def test_impossible_tools_are_refused(
    tool: ToolSpec, error: DomainError | type[DomainError]
) -> None:
    """Names, duplicates and schemas are checked."""
    found = refused(conversation(user("q"), tools=(GET_WEATHER, tool)))

    assert found == error or type(found) is error
    assert str(found.field).startswith("tools[1].function")


def test_the_number_of_tools_is_bounded() -> None:
    """OpenAI's limit."""
    tools = tuple(ToolSpec(f"f{number}") for number in range(129))

    assert refused(conversation(user("q"), tools=tools)) == TooLong(
        field="tools", length=129, limit=128
    )


def test_a_tool_choice_must_be_possible() -> None:
    """Required without tools, or a tool that is not there."""
    required = ToolChoice(ToolMode.REQUIRED)
    unknown = ToolChoice(allowed_names=("other",))

    assert refused(conversation(user("q"), choice=required)).field == "tool_choice"
    assert refused(conversation(user("q"), tools=(GET_WEATHER,), choice=unknown)).field == (
        "tool_choice"
    )


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
def test_template_variables_are_checked(text: str, field: str) -> None:
    """They are an object, leave our own variables alone, and contradict no other option."""
    talk = conversation(user("q"), kwargs_json=text, enable_thinking=False)

    assert refused(talk).field == field


def test_thinking_may_be_set_either_way() -> None:
    """The option and the variable mean the same."""
    as_option = conversation(user("q"), enable_thinking=True)
    as_variable = conversation(user("q"), kwargs_json='{"enable_thinking": true}')

    assert as_option.template_variables() == as_variable.template_variables()
    assert conversation(user("q")).template_variables() == {}


def test_continuing_needs_an_assistants_text_to_continue() -> None:
    """It is the rule where the last turn is the assistant's, and an error elsewhere."""
    assert conversation(user("q"), assistant("The")).continues_final_message
    assert not conversation(user("q")).continues_final_message
    stopped = conversation(user("q"), assistant("The"), continue_final_message=False)
    assert not stopped.continues_final_message
    error = refused(conversation(user("q"), continue_final_message=True))
    assert error.field == "continue_final_message"


@pytest.mark.parametrize(
    "place", ["content", "reasoning", "arguments", "description", "kwargs", "tool_call_id"]
)
def test_lone_surrogates_are_refused_wherever_they_are(place: str) -> None:
    """They have no UTF-8 and would end the process in llama.cpp."""
    bad = "x\ud800"
    talk = conversation(
        user(bad if place == "content" else "q"),
        assistant("", call(arguments=bad if place == "arguments" else "{}")),
        replace(result("r"), tool_call_id=bad if place == "tool_call_id" else "call_1"),
        assistant("a", reasoning=bad if place == "reasoning" else ""),
        tools=(ToolSpec("f", bad if place == "description" else ""),),
        kwargs_json=bad if place == "kwargs" else "",
    )

    assert "lone surrogate" in refused(talk).message


def test_texts_of_one_turn_are_joined_by_line_breaks() -> None:
    """As llama-server joins them."""
    assert user("a", "b").text == "a\nb"
    assert refusal("No.").text == "No."


def test_tools_are_offered_unless_the_choice_is_none() -> None:
    """With `none` a turn is not read for calls."""
    off = ToolChoice(ToolMode.NONE)

    assert conversation(user("q"), tools=(GET_WEATHER,)).offers_tools
    assert not conversation(user("q"), tools=(GET_WEATHER,), choice=off).offers_tools
    assert not conversation(user("q")).offers_tools
