"""How the answer to a conversation is read."""

from inference_svc.chat.control_tokens import PromptSpan
from inference_svc.chat.parsers import ToolCallFormat, TurnFormat
from inference_svc.chat.templates import RenderedPrompt
from inference_svc.rpc.generation import make_parser
from tests.support.conversations import GET_WEATHER, assistant, call, conversation, result, user

ID = "a1b2c3d4e"
WRITTEN = f"[TOOL_CALLS]get_weather[CALL_ID]{ID}[ARGS]{{}}"


def test_a_call_has_no_id_that_an_earlier_one_of_the_conversation_has() -> None:
    """Models that write ids write some again."""
    asked = user("What is the weather in Paris?")
    told = (asked, assistant("", call(ID)), result("sun", ID))
    prompt = RenderedPrompt(
        (PromptSpan("", trusted=True),),
        opens_in_reasoning=False,
        turn_format=TurnFormat(tool_calls=ToolCallFormat.MISTRAL),
    )
    ids = []
    for earlier in ((), told):
        talk = conversation(*earlier, asked, tools=(GET_WEATHER,))
        (made,) = make_parser(prompt, talk, inline=False).feed(WRITTEN).tool_calls
        ids.append(made.id)

    assert ids[0] == ID
    assert ids[1] != ID
