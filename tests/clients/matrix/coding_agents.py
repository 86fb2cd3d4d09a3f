"""Coding agents, started by `corral launch` without a terminal, in sessions with a scripted model.

The gateway and the control service are real, and so are the agents' keys; the inference service is
fake: agent_sessions.py has a real engine. Arguments: the name of an agent, and the folder with its
executable (default: that of the packages of tests/clients).
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from corral.inference.v1 import chat_pb2, inference_service_pb2

from corral_cli.launch.programs import PROGRAMS
from svc_kit.errors import ContextLengthExceeded
from tests.clients.matrix.scenario import SCHEMA, run
from tests.support.coding_agents import CodingAgent, prepare_home
from tests.support.control import run_control, write_service_token
from tests.support.fake_inference import CallLog, Context, FakeInference, Script
from tests.support.loopback_gateway import run_gateway, run_inference_service

CONTEXT_TOKENS = 64 * 1024
BYTES_PER_TOKEN = 4
LIMIT_S = 220


class Agent(FakeInference):
    """A model that reads a file with a tool, and then says what the tool returned. With another
    script than its own it follows that."""

    def __init__(self, tool: str, arguments: object) -> None:
        super().__init__()
        for model in self.models:
            model.resolved_limits.context_tokens = CONTEXT_TOKENS
        self.own = self.script
        self._call = _calling(tool, arguments)
        self.began, self.ended = asyncio.Event(), asyncio.Event()
        self._object = _calling("StructuredOutput", {"name": "violet"})

    async def Chat(
        self, request: inference_service_pb2.ChatRequest, context: Context
    ) -> AsyncIterator[inference_service_pb2.ChatResponse]:
        """Call the tool, or answer its result."""
        if self.script is self.own:
            self.script = self.own = self._next(request)
        self.began.set()
        try:
            async with aclosing(super().Chat(request, context)) as events:
                async for event in events:
                    yield event
        finally:
            self.ended.set()

    @property
    def chats(self) -> list[inference_service_pb2.ChatRequest]:
        """The requests of the agent; `corral launch` lists the models."""
        kind = inference_service_pb2.ChatRequest
        return [each for each in self.calls.requests if isinstance(each, kind)]

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
    """An agent and its model."""

    agent: CodingAgent
    model: Agent

    async def ask(self, script: Script, *arguments: str, errors_too: bool = False) -> str:
        """Run the agent to its end. Returns its output. Raises RuntimeError if it fails."""
        self.model.script, self.model.calls = script, CallLog()
        return await self.agent.ask(*arguments, errors_too=errors_too)

    async def answer(self) -> object:
        """A whole answer is printed, to a prompt that leaves room in the shortest context that
        `corral launch` does not warn of."""
        output = await self.ask(Script(("It is violet.",)), "Which colour?")
        num_tokens = max(map(prompt_bytes, self.model.chats)) // BYTES_PER_TOKEN
        fits = 2 * num_tokens <= PROGRAMS[self.agent.name].context_tokens
        return found(fits and "It is violet." in output, num_tokens, output)

    async def stream(self) -> object:
        """The pieces of a stream, after reasoning, are printed as one text."""
        script = Script(("It ", "is ", "green."), reasoning=("Well", "."))
        output = await self.ask(script, "Which colour?")
        return found("It is green." in output, output)

    async def tools(self) -> object:
        """A call is carried out, and the session goes on with its history."""
        output = await self.ask(self.model.own, "Which colour is in the file?")
        found("The file says: " in output and "violet-4711" in output, output)
        if not self.agent.command.resume:
            return True
        await self.ask(self.model.own, *self.agent.command.resume, "Thank you!")
        histories = [each.conversation.messages for each in self.model.chats]
        told = max(histories, key=len)
        calls = [call.id for message in told for call in message.tool_calls]
        results = [each.tool_call_id for each in told if each.tool_call_id]
        return found(len(calls) == 1 and calls == results, calls, results)

    async def structured(self) -> object:
        """A schema reaches the model, and its object is printed."""
        schema, options = json.dumps(SCHEMA), self.agent.command.schema
        self.agent.home.joinpath("schema.json").write_text(schema)
        arguments = [] if options is None else options(schema)
        output = await self.ask(self.model.own, *arguments, "Name a colour.")
        requests = self.model.chats
        sent = [each.options.constraint.json_schema for each in requests]
        sent += [tool.parameters_json for each in requests for tool in each.conversation.tools]
        is_sent = SCHEMA in map(json.loads, filter(None, sent))
        return found(is_sent and '{"name":"violet"}' in output, output)

    async def error(self) -> object:
        """The agent says what is wrong."""
        problem = ContextLengthExceeded(field="prompt", prompt_tokens=20_000, context_tokens=4096)
        try:
            output = await self.ask(Script(refusal=problem), "Which colour?", errors_too=True)
        except RuntimeError as failed:
            output = str(failed)
        texts = ("20000", "20,000", "too long", "context window", "token limit")
        return found(any(text in output.lower() for text in texts), output)

    async def cancel(self) -> object:
        """The end of the program ends its call of the model."""
        self.model.script = Script(endless=True)
        self.model.began.clear()
        process = await self.agent.start("Which colour?")
        await self.model.began.wait()
        self.model.ended.clear()
        os.killpg(process.pid, self.agent.command.end)
        await self.model.ended.wait()
        await process.communicate()
        return await self.answer()


def found(passed: bool, *values: object) -> bool:
    """Raises ValueError with what was found unless the check passed."""
    if not passed:
        raise ValueError(values)
    return passed


def prompt_bytes(request: inference_service_pb2.ChatRequest) -> int:
    """The length of a prompt, with the tools."""
    texts = [part.text for message in request.conversation.messages for part in message.parts]
    tools = [tool.SerializeToString() for tool in request.conversation.tools]
    return len("".join(texts).encode()) + sum(map(len, tools))


async def main(name: str, packages: Path | None) -> None:
    """Run the checks of an agent."""
    with tempfile.TemporaryDirectory() as folder:
        token = write_service_token(Path(folder))
        agent = CodingAgent(name, prepare_home(Path(folder, "home"), name, packages))
        note = agent.home / "note.txt"
        note.write_text("violet-4711\n")
        tool, arguments = agent.command.reader or ("", lambda path: {"path": path})
        model = Agent(tool, arguments(str(note)))
        async with (
            run_inference_service(model, service_token_file=token) as inference,
            run_control(
                Path(folder), patience_s=LIMIT_S, inference_target=str(inference.address)
            ) as control,
            run_gateway(
                model,
                patience_s=LIMIT_S,
                control_target=control.target,
                service_token_file=token,
                require_keys=True,
            ) as gateway,
        ):
            agent.server = ("--gateway", gateway.url, "--control", control.target)
            agent.server += ("--service-token-file", str(token))
            session, command = Session(agent, model), agent.command
            checks = [session.answer, session.stream, session.cancel]
            checks += [session.tools] if command.reader else []
            checks += [session.structured] if command.schema else []
            await run(*checks, *([session.error] if command.prints_errors else []))


asyncio.run(main(sys.argv[1], Path(sys.argv[2]) if sys.argv[2:] else None))
