"""What every client does: checks by name, whose results are printed as JSON."""

import inspect
import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable

BASE_URL = os.environ["CORRAL_BASE_URL"]
KEY = "none"
MODEL = "demo-chat"
QUESTION, ANSWER = "What is the capital of France?", "Paris"
WEATHER = "What is the weather in Paris?"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": CITY,
    },
}
CHECKS = ("answer", "stream", "tools", "structured", "error", "cancel")

Check = Callable[[], object] | Callable[[], Awaitable[object]]


def ask(text: str) -> list[dict[str, object]]:
    """A chat with one message."""
    return [{"role": "user", "content": text}]


async def run(*functions: Check) -> None:
    """Run the functions, each the check of its name, in the order of `CHECKS`. A check passes if it
    returns a true value; another value, or an exception, is its problem."""
    checks = {function.__name__: function for function in functions}
    results: dict[str, str] = {}
    for name in CHECKS:
        if name not in checks:
            results[name] = "not offered"
            continue
        try:
            value = checks[name]()
            value = await value if inspect.isawaitable(value) else value
        except Exception as problem:
            traceback.print_exc(file=sys.stderr)
            results[name] = f"{type(problem).__name__}: {problem}"
        else:
            results[name] = "" if value else f"unexpected: {value!r}"
    json.dump(results, sys.stdout)
