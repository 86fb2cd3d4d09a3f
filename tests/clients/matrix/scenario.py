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
CHECKS = ("answer", "stream", "tools", "structured", "error", "cancel")

Check = Callable[[], object] | Callable[[], Awaitable[object]]


async def run(checks: dict[str, Check]) -> None:
    """Run checks in order. A check passes if it returns a true value; the text of another value, or
    the last line of an exception, is its problem."""
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
