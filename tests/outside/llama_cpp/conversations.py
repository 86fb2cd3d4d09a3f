"""The conversations that every template is rendered with, as bodies of /v1/chat/completions."""

from typing import Any, Final

WEATHER: Final = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city, in °C",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city"},
                "days": {"type": "integer", "minimum": 1},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city"],
        },
    },
}
SEARCH: Final = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Searches documents",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "filter": {
                    "type": "object",
                    "properties": {"tags": {"type": "array", "items": {"type": "string"}}},
                },
            },
            "required": ["query"],
        },
    },
}
FIRST, SECOND = "a1b2c3d4e", "f5g6h7i8j"
"""Ids of calls: nine letters and digits, as Mistral's templates require."""
THINKS: Final = {"enable_thinking": True}


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _assistant(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(call_id: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


_SYSTEM: Final = {"role": "system", "content": "You are terse."}
_ASKED: Final = _user("Is it warm in Zürich?")
_CALL: Final = _call(FIRST, "get_weather", '{"city": "Zürich", "days": 2}')
_RESULT: Final = _result(FIRST, '{"celsius": 21}', name="get_weather")

CONVERSATIONS: Final[dict[str, dict[str, Any]]] = {
    "user": {"messages": [_user("Hello!")]},
    "turns": {
        "messages": [
            _SYSTEM,
            _user("Hello!"),
            _assistant("Hi, how can I help?"),
            _user("  Who are <you>? 日本\n"),
        ],
        "chat_template_kwargs": THINKS,
    },
    "developer": {
        "messages": [{"role": "developer", "content": "You are terse."}, _user("Hello!")],
        "chat_template_kwargs": THINKS,
    },
    "parts": {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "You are terse."}]},
            _user([{"type": "text", "text": "Hello!"}, {"type": "text", "text": " Who are you?"}]),
        ],
        "chat_template_kwargs": THINKS,
    },
    "tools": {
        "messages": [_ASKED],
        "tools": [WEATHER],
        "chat_template_kwargs": THINKS,
    },
    "system and tools": {
        "messages": [_SYSTEM, _ASKED],
        "tools": [WEATHER, SEARCH],
        "chat_template_kwargs": THINKS,
    },
    "call": {
        "messages": [_ASKED, _assistant(None, tool_calls=[_CALL]), _RESULT],
        "tools": [WEATHER],
        "chat_template_kwargs": THINKS,
    },
    "call in turns": {
        "messages": [
            _SYSTEM,
            _ASKED,
            _assistant("I will look.", tool_calls=[_CALL]),
            _result(FIRST, "It is 21 °C."),
            _assistant("Yes, 21 °C."),
            _user("Thanks!"),
        ],
        "tools": [WEATHER],
        "chat_template_kwargs": THINKS,
    },
    "parallel calls": {
        "messages": [
            _ASKED,
            _assistant(
                "",
                tool_calls=[
                    _CALL,
                    _call(SECOND, "search", '{"query": "a \\"b\\"", "filter": {"tags": ["x"]}}'),
                ],
            ),
            _RESULT,
            _result(SECOND, "nothing found", name="search"),
        ],
        "tools": [WEATHER, SEARCH],
        "chat_template_kwargs": THINKS,
    },
    "reasoning": {
        "messages": [
            _user("What is 2 + 2?"),
            _assistant("It is 4.", reasoning_content="Two and two make four."),
            _user("And 3 + 3?"),
        ],
        "chat_template_kwargs": THINKS,
    },
    "reasoning and call": {
        "messages": [
            _ASKED,
            _assistant("", reasoning_content="I need the weather.", tool_calls=[_CALL]),
            _RESULT,
        ],
        "tools": [WEATHER],
        "chat_template_kwargs": THINKS,
    },
    "no thinking": {
        "messages": [_SYSTEM, _user("Hello!")],
        "chat_template_kwargs": {"enable_thinking": False},
    },
    "effort": {
        "messages": [_user("Hello!")],
        "reasoning_effort": "high",
        "chat_template_kwargs": THINKS,
    },
    "variables": {
        "messages": [_SYSTEM, _user("Hello!")],
        "tools": [WEATHER],
        "chat_template_kwargs": {
            **THINKS,
            "date_string": "24 Dec 2025",
            "datetime": "Dec 24 2025",
        },
    },
    "continue": {
        "messages": [_SYSTEM, _user("Count to three."), _assistant("One, two")],
        "continue_final_message": True,
        "add_generation_prompt": False,
        "chat_template_kwargs": {"enable_thinking": False},
    },
    "assistant last": {
        "messages": [_user("Count to three."), _assistant("One, two, three.")],
        "continue_final_message": False,
        "chat_template_kwargs": THINKS,
    },
}
