"""`corral top` beside a real server."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.rpc import Rpc, endless_chat, read_delta
from tests.support.services import MODEL, Corral, start

pytestmark = pytest.mark.e2e


async def test_top_shows_models_and_live_requests(rpc: Rpc, up: Corral, tmp_path: Path) -> None:
    """As JSON for programs, and as a screen."""
    call = rpc.inference.Chat(endless_chat(), metadata=(("x-request-id", "mine"),))
    await read_delta(call)
    text = await asyncio.to_thread(run_top, tmp_path, up.target, "--json")
    screen = await asyncio.to_thread(run_top, tmp_path, up.target)
    call.cancel()

    found: dict[str, Any] = json.loads(text)
    demo = next(model for model in found["models"] if model["model"] == MODEL)
    assert (demo["state"], demo["slots"]) == ("ready", 4)
    assert demo["running"] >= 1
    assert demo["output_tokens_per_s"] > 0
    assert 0 < demo["kv_used_tokens"] < demo["kv_tokens"]
    request = next(each for each in found["requests"] if each["state"] == "decode")
    assert (request["project"], request["model"]) == ("default", MODEL)
    assert request["output_tokens"] > 0
    assert request["request_id"] in screen
    assert "\x1b" not in screen  # no terminal


def run_top(folder: Path, target: str, *flags: str) -> str:
    flags = ("top", "--target", target, "--once", "--interval", "0.5", *flags)
    with start(folder, *flags) as program:
        assert program.wait() == 0
        return "\n".join(line.text for line in program.stdout)
