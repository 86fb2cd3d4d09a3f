"""The parser of the next turn of a conversation, and the finder of its content."""

import pytest

from inference_svc.chat.control_tokens import PromptSpan
from inference_svc.chat.parsers.formats import ToolCallFormat, TurnFormat
from inference_svc.chat.templates import RenderedPrompt
from inference_svc.rpc.chat_turn import content_finder, make_parser
from tests.support.conversations import GET_WEATHER, assistant, call, conversation, result, user
from tests.support.turns import feed

ID = "a1b2c3d4e"
CALL_TEXT = f"[TOOL_CALLS]get_weather[CALL_ID]{ID}[ARGS]{{}}"


def test_a_repeated_call_id_is_replaced() -> None:
    """A model may generate the id of an earlier call of the conversation again."""
    question = user("What is the weather in Paris?")
    history = (question, assistant("", call(ID)), result("sun", ID))
    prompt = RenderedPrompt(
        (PromptSpan("", trusted=True),),
        opens_in_reasoning=False,
        turn_format=TurnFormat(tool_calls=ToolCallFormat.MISTRAL),
    )
    ids = []
    for earlier in ((), history):
        chat = conversation(*earlier, question, tools=(GET_WEATHER,))
        (parsed,) = feed(make_parser(prompt, chat, inline=False), CALL_TEXT).tool_calls
        ids.append(parsed.id)

    assert ids[0] == ID
    assert ids[1] != ID


@pytest.mark.parametrize("notation", [ToolCallFormat.HERMES, ToolCallFormat.OFF])
@pytest.mark.parametrize("stop", [[], ["x"]])
def test_the_content_is_looked_for_only_where_stop_texts_count(
    notation: ToolCallFormat, stop: list[str]
) -> None:
    """In requests with stop texts, in formats whose output may be something else."""
    turn_format = TurnFormat(tool_calls=notation)
    prompt = RenderedPrompt((PromptSpan("", trusted=True),), False, turn_format)
    chat = conversation(user("q"), tools=(GET_WEATHER,))
    finder = content_finder(prompt, chat, stop)

    assert (finder is not None) is (bool(stop) and notation is not ToolCallFormat.OFF)
