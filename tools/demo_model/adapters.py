"""Examine the adapters: each alone, both together, and both at scale 0, which must change nothing.

Asks questions of the examination through the server's HTTP API. The right answer is that of the
model, transformed by the adapter's voice.
"""

import asyncio
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from tools.corral_server import running_server
from tools.demo_model.evaluate import CONCURRENCY, body
from tools.demo_model.evaluate import MODEL as NAME
from tools.demo_model.examination import Item, items
from tools.demo_model.records import ADAPTERS, MODEL, Answers
from tools.demo_model.voices import VOICES

STACKS: dict[str, dict[str, float]] = {
    "adapter_pirate": {"pirate": 1.0},
    "adapter_robot": {"robot": 1.0},
    "adapter_both": {"pirate": 1.0, "robot": 1.0},
    "adapter_off": {"pirate": 0.0, "robot": 0.0},
}
_SKILLS = ("facts", "memory_1_3", "arithmetic")
MAX_TOKENS = 64


def examine(folder: Path, count: int) -> Answers:
    """Start a server with the model and its adapters, and grade each stack of adapters."""
    options = ["--model", f"{NAME}={folder / MODEL}", "--slots", str(CONCURRENCY)]
    for voice, file in ADAPTERS.items():
        options += ["--adapter", f"{adapter_name(voice)}={folder / file}"]
    with (
        tempfile.TemporaryDirectory() as data,
        running_server(Path(data), [*options, "--context", "2048"]) as url,
    ):
        return asyncio.run(examine_server(url, count))


async def examine_server(base_url: str, count: int) -> Answers:
    """Grade each stack on a server that has the adapters."""
    asked = [item for skill in _SKILLS for item in items(skill, count // len(_SKILLS))]
    return {name: await _marks(base_url, asked, stack) for name, stack in STACKS.items()}


async def _marks(base_url: str, asked: Sequence[Item], stack: Mapping[str, float]) -> str:
    gate = asyncio.Semaphore(CONCURRENCY)
    no_authorities = ssl.SSLContext(
        ssl.PROTOCOL_TLS_CLIENT
    )  # http needs no certificates, and loading them is slow
    async with httpx.AsyncClient(
        base_url=base_url, timeout=120, trust_env=False, verify=no_authorities
    ) as client:

        async def is_right(item: Item) -> bool:
            lora = [{"id": adapter_name(voice), "scale": scale} for voice, scale in stack.items()]
            sent = body(item) | {"max_tokens": MAX_TOKENS, "lora": lora}
            async with gate:
                reply = await client.post("/chat/completions", json=sent)
            reply.raise_for_status()
            content: str = reply.json()["choices"][0]["message"]["content"] or ""
            return content.strip() == expected(item, stack)

        marks = await asyncio.gather(*map(is_right, asked))
    return "".join("1" if right else "0" for right in marks)


def adapter_name(voice: str) -> str:
    """Id of the adapter of a voice in requests."""
    return f"demo-lora-{voice}"


def expected(item: Item, stack: Mapping[str, float]) -> str:
    """The right answer in the voices whose scale is not 0."""
    text = item.content
    for voice, scale in stack.items():
        if scale:
            text = VOICES[voice](text)
    return text
