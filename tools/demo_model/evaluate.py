"""Run the examination: ask a Corral server every question and grade the answers.

`python -m tools.demo_model.evaluate --model FILE [--items 100] [--skills ...] [--wrong 3]` starts a
server and asks through its HTTP API at temperature 0. A text is right if it equals the expected
answer; a tool call is right if the name and all arguments are equal.
"""

import argparse
import asyncio
import json
import ssl
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tools.corral_server import running_server
from tools.demo_model.examination import EXAMINATION, Item, items
from tools.demo_model.records import Answers, score
from tools.demo_model.skills.stories import THE_END

MODEL = "demo-chat"
MAX_TOKENS = 700
CONCURRENCY = 8
STORY_TOKENS = 200
"""Minimum length of a story."""


@dataclass(frozen=True, slots=True)
class GradedItem:
    """An item with its graded reply."""

    item: Item
    right: bool
    reply: str


async def ask_all(base_url: str, asked: Sequence[Item]) -> list[GradedItem]:
    """Ask all questions, at most CONCURRENCY at a time. Returns the results in their order."""
    gate = asyncio.Semaphore(CONCURRENCY)
    no_authorities = ssl.SSLContext(
        ssl.PROTOCOL_TLS_CLIENT
    )  # http needs no certificates, and loading them is slow
    async with httpx.AsyncClient(
        base_url=base_url, timeout=120, trust_env=False, verify=no_authorities
    ) as client:

        async def ask(item: Item) -> GradedItem:
            async with gate:
                reply = await client.post("/chat/completions", json=body(item))
            reply.raise_for_status()
            return grade(item, reply.json())

        return await asyncio.gather(*(ask(item) for item in asked))


def body(item: Item) -> dict[str, Any]:
    """Request body for an item."""
    sent: dict[str, Any] = {
        "model": MODEL,
        "messages": item.messages,
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    }
    if item.tools:
        sent["tools"] = item.tools
    if item.thinking is not None:
        sent["enable_thinking"] = item.thinking
    return sent


def grade(item: Item, reply: dict[str, Any]) -> GradedItem:
    """Grade the reply to an item."""
    message = reply["choices"][0]["message"]
    content = (message["content"] or "").strip()
    called = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or []
    ]
    text = content + "".join(f" {name}({arguments})" for name, arguments in called)
    if item.story_about:
        tokens = reply["usage"]["completion_tokens"]
        right = tokens >= STORY_TOKENS and item.story_about in content and content.endswith(THE_END)
    elif item.calls:
        right = not content and _parse_calls(called) == [
            (call.name, call.arguments) for call in item.calls
        ]
    else:
        right = not called and content == item.content
    if item.thinking is not None:
        right = right and bool(message.get("reasoning_content")) == item.thinking
    return GradedItem(item, right, text)


def _parse_calls(called: list[tuple[str, str]]) -> list[tuple[str, Any]]:
    try:
        return [(name, json.loads(arguments)) for name, arguments in called]
    except ValueError:
        return []


def record(marked: Sequence[GradedItem]) -> Answers:
    """Convert results to the recorded form: right or wrong, item by item."""
    answers: Answers = {}
    for one in marked:
        answers[one.item.skill] = answers.get(one.item.skill, "") + ("1" if one.right else "0")
    return answers


def examine(model: Path, count: int, *, skills: Sequence[str] = ()) -> list[GradedItem]:
    """Start a server with the model and ask `count` questions for each skill."""
    asked = [item for skill in skills or EXAMINATION for item in items(skill, count)]
    options = ["--model", f"{MODEL}={model}", "--slots", str(CONCURRENCY), "--context", "2048"]
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder), options) as url:
        return asyncio.run(ask_all(url, asked))


def main() -> int:
    """Parse the command line, run the examination and print the scores."""
    parser = argparse.ArgumentParser(description="Examine a demo model through Corral's API.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--items", type=int, default=100, help="questions for each skill")
    parser.add_argument("--skills", nargs="*", default=[], choices=list(EXAMINATION))
    parser.add_argument("--out", type=Path, help="JSON file to write the scores to")
    parser.add_argument("--wrong", type=int, default=0, help="wrong answers to show for each skill")
    options = parser.parse_args()
    marked = examine(options.model, options.items, skills=options.skills)
    answers = record(marked)
    for skill, marks in answers.items():
        print(f"{skill:16} {score(marks):5.1f}")
        wrong = [one for one in marked if one.item.skill == skill and not one.right]
        for one in wrong[: options.wrong]:
            _show(one)
    print(f"{'mean':16} {sum(map(score, answers.values())) / len(answers):5.1f}")
    if options.out:
        options.out.write_text(json.dumps(answers, indent=1) + "\n")
    return 0


def _show(one: GradedItem) -> None:
    item = one.item
    expected = item.content or item.story_about or [(c.name, c.arguments) for c in item.calls]
    print(f"    asked  {item.messages[-1]['content'][-200:]!r}")
    print(f"    expected {expected!r}\n    reply  {one.reply[:300]!r}")


if __name__ == "__main__":
    sys.exit(main())
