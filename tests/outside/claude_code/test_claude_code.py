"""Claude Code, unmodified and without a terminal, in sessions with a scripted model."""

import asyncio
import json
import os
import platform
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from corral.inference.v1 import chat_pb2, inference_service_pb2

from svc_kit.errors import ContextLengthExceeded
from tests.support.fake_inference import Context, FakeInference, Script
from tests.support.loopback_gateway import Loopback, run_gateway

PACKAGES = Path(__file__).parent / "node_modules" / "@anthropic-ai"
WRAPPER = PACKAGES / "claude-code" / "cli-wrapper.cjs"
"""Starts the program of the package for this machine, without the script that links it."""
LIMIT_S = 90

pytestmark = [
    pytest.mark.timeout(LIMIT_S + 20),
    pytest.mark.skipif(
        shutil.which("node") is None or not WRAPPER.is_file(),
        reason=f"Claude Code for {platform.machine()} is not installed; run `make test-clients`",
    ),
]


class Agent(FakeInference):
    """A model that reads a file with a tool, and then says what the tool returned."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    async def Chat(
        self, request: inference_service_pb2.ChatRequest, context: Context
    ) -> AsyncIterator[inference_service_pb2.ChatResponse]:
        """Call Read, or answer its result."""
        if self.script.refusal is None:
            self.script = self._next(request)
        async with aclosing(super().Chat(request, context)) as events:  # type: ignore[type-var]
            async for event in events:
                yield event

    def _next(self, request: inference_service_pb2.ChatRequest) -> Script:
        if request.options.constraint.json_schema:  # the session's title
            return Script(pieces=('{"title":', '"A colour"}'))
        last = request.conversation.messages[-1]
        if last.role == chat_pb2.ROLE_TOOL:
            return Script(pieces=("The file says: ", *(part.text for part in last.parts)))
        arguments = json.dumps({"file_path": str(self._path)})
        call = chat_pb2.ToolCallDelta(id="call_1", name="Read", arguments_json=arguments)
        return Script(pieces=("Let me look.",), reasoning=("A file.",), tool_calls=[call])


async def ask(gateway: Loopback, home: Path, *options: str) -> Any:
    """Run `claude -p` in a new home; return the object that it prints."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "NO_PROXY": "127.0.0.1",
        "ANTHROPIC_BASE_URL": gateway.url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    process = await asyncio.create_subprocess_exec(
        "node",
        str(WRAPPER),
        *("-p", "Which colour is in the file?", "--model", "fake", "--output-format", "json"),
        *options,
        cwd=home,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert output, errors.decode()
    return json.loads(output)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a file and no configuration."""
    (tmp_path / "note.txt").write_text("violet-4711\n")
    return tmp_path


async def test_a_session_with_a_tool_runs_to_its_end(home: Path) -> None:
    """The call is carried out, the history comes back, and the answer has the result."""
    agent = Agent(home / "note.txt")
    async with run_gateway(agent, patience_s=LIMIT_S) as gateway:
        answer = await ask(gateway, home, "--allowedTools", "Read")
    (first, *_), last = agent.calls.requests, agent.calls.requests[-1]

    assert (answer["subtype"], answer["is_error"], answer["num_turns"]) == ("success", False, 2)
    assert answer["result"].startswith("The file says: ")
    assert "violet-4711" in answer["result"]
    assert "Read" in [tool.name for tool in first.conversation.tools]
    turn = last.conversation.messages[-2]
    assert (turn.reasoning, turn.parts[0].text) == ("A file.", "Let me look.")
    assert turn.tool_calls[0].id == last.conversation.messages[-1].tool_call_id
    assert first.options.cache.affinity == last.options.cache.affinity != ""


async def test_a_prompt_that_is_too_long_is_explained(home: Path) -> None:
    """It reads the words of the error, instead of showing the error of the API."""
    agent = Agent(home / "note.txt")
    agent.script = Script(
        refusal=ContextLengthExceeded(field="prompt", prompt_tokens=20_000, context_tokens=4096)
    )
    async with run_gateway(agent, patience_s=LIMIT_S) as gateway:
        answer = await ask(gateway, home)

    assert answer["is_error"] is True
    assert "API Error" not in answer["result"]
