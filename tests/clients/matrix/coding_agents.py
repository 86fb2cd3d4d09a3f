"""Coding agents, run without a terminal in sessions with a scripted model.

The gateway and the control service are real; the inference service is fake, since the prompts of
agents are too long for the bundled model.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from corral.inference.v1 import chat_pb2, inference_service_pb2

from svc_kit.errors import ContextLengthExceeded
from tests.clients.matrix.scenario import SCHEMA, run
from tests.support.control import run_control, write_service_token
from tests.support.fake_inference import CallLog, Context, FakeInference, Script
from tests.support.loopback_gateway import run_gateway, run_inference_service

PACKAGES = Path(__file__).parents[1] / "node_modules"
LIMIT_S = 200
CODEX = """
model = "fake"
model_provider = "corral"

[model_providers.corral]
name = "Corral"
base_url = "{url}/v1"
env_key = "CORRAL_API_KEY"
wire_api = "responses"
"""
CONTINUE = """
name: Corral
version: 1.0.0
schema: v1
models: [{{name: fake, provider: openai, model: fake, apiBase: {url}/v1, apiKey: none,
  roles: [chat], capabilities: [tool_use]}}]
"""


@dataclass(frozen=True)
class Command:
    """The command of an agent: its program and options, those that continue the last session, the
    ones for a schema, its tool that reads a file (with the argument, and the text
    around the file's path), and its configuration for the URL of a server."""

    program: str
    options: Sequence[str]
    resume: Sequence[str]
    reader: tuple[str, str, str]
    schema: Sequence[str] = ()
    config: tuple[str, str] = ("config", "")


COMMANDS = {
    "codex": Command(
        "@openai/codex/bin/codex.js",
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        ("resume", "--last"),
        ("exec_command", "cmd", "cat {}"),
        ("--output-schema", "schema.json"),
        (".codex/config.toml", CODEX),
    ),
    "continue": Command(
        "@continuedev/cli/dist/cn.js",
        ("-p", "--config", "config.yaml", "--auto"),
        ("--resume",),
        ("Read", "filepath", "{}"),
        config=("config.yaml", CONTINUE),
    ),
    "claude-code": Command(
        "@anthropic-ai/claude-code/cli-wrapper.cjs",
        ("-p", "--model=fake", "--allowedTools=Read"),
        ("--continue",),
        ("Read", "file_path", "{}"),
        (f"--json-schema={json.dumps(SCHEMA)}",),
    ),
}


class Agent(FakeInference):
    """A model that reads a file with a tool, and then says what the tool returned. With another
    script than its own it follows that."""

    def __init__(self, tool: str, arguments: object) -> None:
        super().__init__()
        self.own = self.script
        self._call = _calling(tool, arguments)
        self._object = _calling("StructuredOutput", {"name": "violet"})

    async def Chat(
        self, request: inference_service_pb2.ChatRequest, context: Context
    ) -> AsyncIterator[inference_service_pb2.ChatResponse]:
        """Call the tool, or answer its result."""
        if self.script is self.own:
            self.script = self.own = self._next(request)
        async with aclosing(super().Chat(request, context)) as events:
            async for event in events:
                yield event

    def _next(self, request: inference_service_pb2.ChatRequest) -> Script:
        if request.options.constraint.json_schema:  # the object, or the session's title
            return Script(('{"name":', '"violet"}'))
        last = request.conversation.messages[-1]
        if last.role == chat_pb2.ROLE_TOOL:
            return Script(("The file says: ", *(part.text for part in last.parts)))
        if "StructuredOutput" in [tool.name for tool in request.conversation.tools]:
            return self._object
        asked = any("in the file?" in part.text for part in last.parts)
        return self._call if asked else Script()


def _calling(tool: str, arguments: object) -> Script:
    call = chat_pb2.ToolCallDelta(id="call_1", name=tool, arguments_json=json.dumps(arguments))
    return Script(("Let me look.",), reasoning=("A file.",), tool_calls=[call])


@dataclass(frozen=True)
class Session:
    """An agent in its home, its model, and the URL of the server."""

    command: Command
    model: Agent
    home: Path
    url: str

    async def start(self, *arguments: str) -> Process:
        """Start the agent."""
        self.model.calls = CallLog()
        return await asyncio.create_subprocess_exec(
            *("node", str(PACKAGES / self.command.program), *self.command.options, *arguments),
            cwd=self.home,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.home),
                "NO_PROXY": "127.0.0.1",
                "CORRAL_API_KEY": "none",
                "ANTHROPIC_API_KEY": "none",
                "ANTHROPIC_BASE_URL": self.url,
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            },
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
        )

    async def ask(self, script: Script, *arguments: str) -> str:
        """Run the agent to its end. Returns its output. Raises RuntimeError if it fails."""
        self.model.script = script
        process = await self.start(*arguments)
        output, errors = await process.communicate()
        if process.returncode:
            raise RuntimeError((output + errors).decode())
        return output.decode()

    async def answer(self) -> object:
        """A whole answer is printed."""
        return "It is violet." in await self.ask(Script(("It is violet.",)), "Which colour?")

    async def stream(self) -> object:
        """The pieces of a stream, after reasoning, are printed as one text."""
        script = Script(("It ", "is ", "green."), reasoning=("Well", "."))
        return "It is green." in await self.ask(script, "Which colour?")

    async def tools(self) -> object:
        """A call is carried out, and the session goes on with its history."""
        output = await self.ask(self.model.own, "Which colour is in the file?")
        if "The file says: " not in output or "violet-4711" not in output:
            return output
        await self.ask(self.model.own, *self.command.resume, "Thank you!")
        histories = [each.conversation.messages for each in self.model.calls.requests]
        told = max(histories, key=len)
        calls = [call.id for message in told for call in message.tool_calls]
        results = [each.tool_call_id for each in told if each.tool_call_id]
        return len(calls) == 1 and calls == results

    async def structured(self) -> object:
        """A schema reaches the model, and its object is printed."""
        self.home.joinpath("schema.json").write_text(json.dumps(SCHEMA))
        output = await self.ask(self.model.own, *self.command.schema, "Name a colour.")
        requests = self.model.calls.requests
        sent = [each.options.constraint.json_schema for each in requests]
        sent += [tool.parameters_json for each in requests for tool in each.conversation.tools]
        return SCHEMA in map(json.loads, filter(None, sent)) and '{"name":"violet"}' in output

    async def error(self) -> object:
        """The agent says what is wrong."""
        problem = ContextLengthExceeded(field="prompt", prompt_tokens=20_000, context_tokens=4096)
        try:
            output = await self.ask(Script(refusal=problem), "Which colour?")
        except RuntimeError as failed:
            output = str(failed)
        return "20000" in output or "too long" in output.lower() or output

    async def cancel(self) -> object:
        """The end of the program ends its call of the model."""
        self.model.script = Script(endless=True)
        process = await self.start("Which colour?")
        await self.model.calls.arrived.wait()
        os.killpg(process.pid, signal.SIGTERM)
        await self.model.calls.ended.wait()
        await process.communicate()
        return await self.answer()


async def main(command: Command) -> None:
    """Run the checks of an agent."""
    with tempfile.TemporaryDirectory() as folder:
        home, token = Path(folder, "home"), write_service_token(Path(folder))
        tool, argument, text = command.reader
        agent = Agent(tool, {argument: text.format(home / "note.txt")})
        async with (
            run_inference_service(agent, service_token_file=token) as inference,
            run_control(
                Path(folder), patience_s=LIMIT_S, inference_target=str(inference.address)
            ) as control,
            run_gateway(
                agent,
                patience_s=LIMIT_S,
                control_target=control.target,
                service_token_file=token,
            ) as gateway,
        ):
            prepare(home, command, gateway.url)
            session = Session(command, agent, home, gateway.url)
            checks = [session.answer, session.stream, session.tools, session.error, session.cancel]
            await run(*checks, *([session.structured] if command.schema else []))


def prepare(home: Path, command: Command, url: str) -> None:
    """Write the home of an agent: a file to read, and the agent's configuration."""
    name, text = command.config
    home.joinpath(name).parent.mkdir(parents=True)
    home.joinpath(name).write_text(text.format(url=url))
    home.joinpath("note.txt").write_text("violet-4711\n")


asyncio.run(main(COMMANDS[sys.argv[1]]))
