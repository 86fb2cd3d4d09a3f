"""`corral chat`: a chat in the terminal with a running server, over gRPC."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import click
import grpc.aio
from corral.inference.v1 import chat_pb2, generation_pb2, inference_service_pb2, model_pb2
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from corral_cli.access import inference_options
from corral_cli.connection import CALL_TIMEOUT_S, Connection, explain_failures
from corral_cli.output import echo
from corral_cli.up.announcement import real_model_command
from inference_svc.models.sources import BUNDLED_NAME
from svc_kit.errors import DomainError
from svc_kit.rpc.client import translate_errors

if TYPE_CHECKING:  # the stub over an aio channel has a name for type checkers only
    from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceAsyncStub

HELP = """\
/help          show this list
/reset         clear the conversation, keep the system message
/system TEXT   set the system message and clear the conversation; without TEXT: no system message
/exit          quit (also Ctrl-D)
Ctrl-C         stop the answer"""


class Terminal(Protocol):
    def content(self, text: str) -> None:
        """Show a part of the answer."""

    def reasoning(self, text: str) -> None:
        """Show a part of the reasoning."""


@dataclass
class Conversation:
    """The messages so far, and the options of requests."""

    model: str
    system: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    turns: list[chat_pb2.ChatMessage] = field(default_factory=list)

    def reset(self) -> None:
        """Remove all turns. The system message stays."""
        self.turns.clear()

    def add(self, role: chat_pb2.Role, text: str) -> None:
        self.turns.append(_message(role, text))

    def request(self) -> inference_service_pb2.ChatRequest:
        """Build the request for the next turn."""
        system = [_message(chat_pb2.ROLE_SYSTEM, self.system)] if self.system else []
        request = inference_service_pb2.ChatRequest(
            model=self.model,
            conversation=inference_service_pb2.Conversation(messages=[*system, *self.turns]),
            options=generation_pb2.GenerationOptions(label="corral chat"),
        )
        if self.temperature is not None:
            request.options.sampling.temperature = self.temperature
        if self.max_tokens is not None:
            request.options.stopping.max_tokens = self.max_tokens
        return request


async def stream_answer(
    stub: "InferenceServiceAsyncStub", conversation: Conversation, terminal: Terminal
) -> str:
    """Stream the next turn to the terminal. Return a notice about how it ended, empty if it ended
    normally.

    A partial answer is added to the conversation too, because the user has read it. Raises
    DomainError.
    """
    pieces: list[str] = []
    notice = ""
    call = stub.Chat(conversation.request())
    try:
        with translate_errors():
            async for event in call:
                if event.HasField("delta"):
                    pieces.append(event.delta.content)
                    if event.delta.reasoning:
                        terminal.reasoning(event.delta.reasoning)
                    terminal.content(event.delta.content)
                elif event.HasField("finished"):
                    notice = _notice(event.finished)
    finally:
        call.cancel()  # no effect on a finished call; frees the slot after Ctrl-C
        if any(pieces):
            conversation.add(chat_pb2.ROLE_ASSISTANT, "".join(pieces))
        else:
            del conversation.turns[-1:]  # the question was not answered; the user can repeat it
    return notice


def _notice(finished: generation_pb2.ChoiceFinished) -> str:
    if finished.reason == generation_pb2.FINISH_REASON_LENGTH:
        return f"cut off after {finished.completion_tokens} tokens"
    return ""


def _message(role: chat_pb2.Role, text: str) -> chat_pb2.ChatMessage:
    return chat_pb2.ChatMessage(role=role, parts=[chat_pb2.ContentPart(text=text)])


class Screen:
    """Terminal output of the answer, with the reasoning dimmed."""

    def content(self, text: str) -> None:
        """Print without a newline."""
        echo(text, nl=False)

    def reasoning(self, text: str) -> None:
        """Print dimmed. click omits the style if the output is not a terminal."""
        echo(text, nl=False, dim=True)


@dataclass
class Repl:
    """Reads lines, runs commands and sends messages, all on the event loop of `runner`."""

    runner: asyncio.Runner
    stub: "InferenceServiceAsyncStub"
    conversation: Conversation
    read: Callable[[], str]
    """Returns the next line. Raises EOFError at the end of the input."""

    def run(self) -> None:
        """Run until /exit or the end of the input."""
        while True:
            try:
                line = self.read().strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                echo("\n(type /exit to quit)")
                continue
            if line in ("/exit", "/quit"):
                return
            if line.startswith("/"):
                self.run_command(*line.partition(" ")[::2])
            elif line:
                self.send(line)

    def run_command(self, command: str, argument: str) -> None:
        match command:
            case "/help":
                echo(HELP)
            case "/reset":
                self.conversation.reset()
                echo("(conversation cleared)")
            case "/system":
                self.conversation.system = argument.strip()
                self.conversation.reset()
                echo("(system message set, conversation cleared)")
            case _:
                echo(f"{command} is not a command; /help lists the commands")

    def send(self, text: str) -> None:
        """Send a user message and print the answer, or one line if it fails."""
        self.conversation.add(chat_pb2.ROLE_USER, text)
        try:
            notice = self.runner.run(stream_answer(self.stub, self.conversation, Screen()))
            echo(f"\n({notice})" if notice else "")
        except KeyboardInterrupt:
            echo("\n(stopped)")
        except DomainError as error:
            echo(f"\n{error.message}", err=True)


@click.command("chat")
@click.option("--model", default="", help="Name of the model. Default: the server's first model.")
@click.option("--system", default="", help="The system message.")
@click.option("--temperature", type=float, help="Default: that of the model.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Default: the rest of the context.")
@inference_options
def chat(
    inference: Connection,
    model: str,
    system: str,
    temperature: float | None,
    max_tokens: int | None,
) -> None:
    """Chat with a model of a running server. /help lists the commands."""
    with asyncio.Runner() as runner:
        channel = runner.run(_open(inference))
        try:
            stub = InferenceServiceStub(channel)
            served = runner.run(get_model(stub, model, inference.target))
            echo(introduction(served))
            conversation = Conversation(served.name, system, temperature, max_tokens)
            Repl(runner, stub, conversation, read_line).run()
        finally:
            runner.run(channel.close())


async def _open(connection: Connection) -> grpc.aio.Channel:
    """Open the channel on the event loop that uses it."""
    return connection.open()


async def get_model(stub: "InferenceServiceAsyncStub", name: str, target: str) -> model_pb2.Model:
    """Get a model by name, the first one if empty. Raises click.ClickException."""
    request = inference_service_pb2.GetModelRequest(model=name)
    with explain_failures(target):
        return (await stub.GetModel(request, timeout=CALL_TIMEOUT_S)).model


def introduction(model: model_pb2.Model) -> str:
    """Describe the model in one to three lines."""
    size = f"{model.num_parameters / 1e6:,.0f} million parameters"
    context = "loaded on the first message"
    if model.HasField("resolved_limits"):
        context = f"{model.resolved_limits.context_tokens:,} tokens of context"
    lines = [f"{model.name}: {size}, {context}. /help lists the commands."]
    if model.name == BUNDLED_NAME:
        lines.append(
            "This is the tiny demo model that comes with Corral. It shows that everything works,\n"
            f"but knows very little. To serve a real model: {real_model_command()}"
        )
    return "\n".join(lines)


def read_line() -> str:
    """Read a line from the user, with a prompt if the input is a terminal."""
    return input("> " if sys.stdin.isatty() else "")
