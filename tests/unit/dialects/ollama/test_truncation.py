"""Chats that lose their oldest turns."""

from dialects.ollama.requests import chat_request, parse_chat
from dialects.ollama.truncation import turn_starts, without_turns


def test_a_result_is_dropped_with_its_call() -> None:
    """Also one that comes after the next turn; the results of other calls stay."""
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]},
        {"role": "user", "content": "r"},
        {"role": "tool", "tool_call_id": "a", "content": "late"},
        {"role": "assistant", "tool_calls": [{"id": "b", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "b", "content": "sun"},
    ]
    conversation = chat_request(parse_chat({"model": "m", "messages": messages})).conversation
    second_question = turn_starts(conversation.messages)[1]
    kept = without_turns(conversation, second_question).messages

    assert [[part.text for part in message.parts] for message in kept] == [["r"], [], ["sun"]]
