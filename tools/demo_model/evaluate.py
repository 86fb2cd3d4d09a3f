"""Sits the examination: asks a running Corral every question and marks the answers.

`python -m tools.demo_model.evaluate --model FILE [--items 100] [--skills ...] [--wrong 3]` starts a
server of its own and asks at temperature 0. An answer counts only when it is right to the letter, a
call when it names the function and gives every argument its value. The server's HTTP API is the
only way in: what is measured is what a client sees.
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
"""The least that a story has to have."""


@dataclass(frozen=True, slots=True)
class Marked:
    """An item with what came back."""

    item: Item
    right: bool
    said: str


async def ask_all(base_url: str, asked: Sequence[Item]) -> list[Marked]:
    """Ask everything, some at a time; the answers come in the order of the questions."""
    gate = asyncio.Semaphore(CONCURRENCY)
    no_authorities = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # loopback needs none
    async with httpx.AsyncClient(
        base_url=base_url, timeout=120, trust_env=False, verify=no_authorities
    ) as client:

        async def ask(item: Item) -> Marked:
            async with gate:
                reply = await client.post("/chat/completions", json=body(item))
            reply.raise_for_status()
            return mark(item, reply.json())

        return await asyncio.gather(*(ask(item) for item in asked))


def body(item: Item) -> dict[str, Any]:
    """The request for an item."""
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


def mark(item: Item, reply: dict[str, Any]) -> Marked:
    """Whether the reply is the right one."""
    message = reply["choices"][0]["message"]
    content = (message["content"] or "").strip()
    called = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or []
    ]
    said = content + "".join(f" {name}({arguments})" for name, arguments in called)
    if item.story_about:
        tokens = reply["usage"]["completion_tokens"]
        right = tokens >= STORY_TOKENS and item.story_about in content and content.endswith(THE_END)
    elif item.calls:
        right = not content and _parsed(called) == [
            (call.name, call.arguments) for call in item.calls
        ]
    else:
        right = not called and content == item.content
    if item.thinking is not None:
        right = right and bool(message.get("reasoning_content")) == item.thinking
    return Marked(item, right, said)


def _parsed(called: list[tuple[str, str]]) -> list[tuple[str, Any]]:
    try:
        return [(name, json.loads(arguments)) for name, arguments in called]
    except ValueError:
        return []


def record(marked: Sequence[Marked]) -> Answers:
    """What is kept of an examination: right or wrong, item by item."""
    found: Answers = {}
    for one in marked:
        found[one.item.skill] = found.get(one.item.skill, "") + ("1" if one.right else "0")
    return found


def examine(model: Path, count: int, *, skills: Sequence[str] = ()) -> list[Marked]:
    """Start a server with the model and ask this many questions of each skill."""
    asked = [item for skill in skills or EXAMINATION for item in items(skill, count)]
    options = ["--model", f"{MODEL}={model}", "--slots", str(CONCURRENCY), "--context", "2048"]
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder), options) as url:
        return asyncio.run(ask_all(url, asked))


def main() -> int:
    """Parse the command line, examine and print."""
    parser = argparse.ArgumentParser(description="Examine a demo model through Corral's API.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--items", type=int, default=100, help="questions of each skill")
    parser.add_argument("--skills", nargs="*", default=[], choices=list(EXAMINATION))
    parser.add_argument("--out", type=Path, help="where the scores go, as JSON")
    parser.add_argument("--wrong", type=int, default=0, help="wrong answers to show of each skill")
    options = parser.parse_args()
    marked = examine(options.model, options.items, skills=options.skills)
    found = record(marked)
    for skill, marks in found.items():
        print(f"{skill:16} {score(marks):5.1f}")
        wrong = [one for one in marked if one.item.skill == skill and not one.right]
        for one in wrong[: options.wrong]:
            _show(one)
    print(f"{'mean':16} {sum(map(score, found.values())) / len(found):5.1f}")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _show(one: Marked) -> None:
    item = one.item
    wanted = item.content or item.story_about or [(c.name, c.arguments) for c in item.calls]
    print(f"    asked  {item.messages[-1]['content'][-200:]!r}")
    print(f"    wanted {wanted!r}\n    said   {one.said[:300]!r}")


if __name__ == "__main__":
    sys.exit(main())
