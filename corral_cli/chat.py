"""`corral chat`: a conversation in the terminal with a running server, over gRPC."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import click
import grpc.aio
from corral.inference.v1 import chat_pb2, generation_pb2, inference_service_pb2, model_pb2
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from corral_cli.bundled import is_bundled, real_model_command
from corral_cli.connection import CONNECT_PATIENCE_S, INFERENCE, explain_failures, target_option
from svc_kit.errors import DomainError
from svc_kit.rpc.client import open_channel, translate_errors

if TYPE_CHECKING:  # the stub over an aio channel has a name for type checkers only
    from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceAsyncStub

HELP = """\
/help          this list
/reset         forget the conversation, keep the system message
/system TEXT   set the system message and start anew; without TEXT: none
/exit          leave (so does Ctrl-D)
Ctrl-C         stop the answer"""


class Terminal(Protocol):
    """Where the answer goes."""

    def content(self, text: str) -> None:
        """Show a piece of the answer."""

    def reasoning(self, text: str) -> None:
        """Show a piece of what the model thinks first."""


@dataclass
class Conversation:
    """The messages so far, and the options of the next request."""

    model: str
    system: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    turns: list[chat_pb2.ChatMessage] = field(default_factory=list)

    def reset(self) -> None:
        """Forget every turn; the system message stays."""
        self.turns.clear()

    def add(self, role: chat_pb2.Role, text: str) -> None:
        """Append a turn."""
        self.turns.append(_message(role, text))

    def request(self) -> inference_service_pb2.ChatRequest:
        """The request for the next turn."""
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


async def answer(stub: "InferenceServiceAsyncStub", talk: Conversation, terminal: Terminal) -> str:
    """Stream the next turn to the terminal, and return why it ended, where that is not plain.

    What arrived joins the conversation even when the answer is stopped in the middle, because the
    user has read it. Raises DomainError.
    """
    pieces: list[str] = []
    remark = ""
    call = stub.Chat(talk.request())
    try:
        with translate_errors():
            async for event in call:
                if event.HasField("delta"):
                    pieces.append(event.delta.content)
                    if event.delta.reasoning:
                        terminal.reasoning(event.delta.reasoning)
                    terminal.content(event.delta.content)
                elif event.HasField("finished"):
                    remark = _remark(event.finished)
    finally:
        call.cancel()  # after the end it does nothing; after Ctrl-C it frees the slot
        if any(pieces):
            talk.add(chat_pb2.ROLE_ASSISTANT, "".join(pieces))
        else:
            del talk.turns[-1:]  # the question has no answer: ask it again, do not pile it up
    return remark


def _remark(finished: generation_pb2.ChoiceFinished) -> str:
    if finished.reason == generation_pb2.FINISH_REASON_LENGTH:
        return f"cut off after {finished.completion_tokens} tokens"
    return ""


def _message(role: chat_pb2.Role, text: str) -> chat_pb2.ChatMessage:
    return chat_pb2.ChatMessage(role=role, parts=[chat_pb2.ContentPart(text=text)])


class Screen:
    """The Terminal of a person: answers as they are, thoughts dimmed."""

    def content(self, text: str) -> None:
        """Print without a line end; the pieces join."""
        click.echo(text, nl=False)

    def reasoning(self, text: str) -> None:
        """Print dimmed; click leaves the colour out where the output is a file."""
        click.secho(text, nl=False, dim=True)


@dataclass
class Repl:
    """Reads lines, obeys commands, asks for answers. One event loop carries the whole talk."""

    runner: asyncio.Runner
    stub: "InferenceServiceAsyncStub"
    talk: Conversation
    read: Callable[[], str]
    """The next line. Raises EOFError at the end of the input."""

    def run(self) -> None:
        """Run until /exit or the end of the input."""
        while True:
            try:
                line = self.read().strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                click.echo("\n(/exit leaves)")
                continue
            if line in ("/exit", "/quit"):
                return
            if line.startswith("/"):
                self.obey(*line.partition(" ")[::2])
            elif line:
                self.say(line)

    def obey(self, command: str, argument: str) -> None:
        """Carry out one command."""
        match command:
            case "/help":
                click.echo(HELP)
            case "/reset":
                self.talk.reset()
                click.echo("(forgotten)")
            case "/system":
                self.talk.system = argument.strip()
                self.talk.reset()
                click.echo("(set; the conversation starts anew)")
            case _:
                click.echo(f"{command} is no command; /help lists them")

    def say(self, text: str) -> None:
        """Send a user message and print the answer; an error is one line."""
        self.talk.add(chat_pb2.ROLE_USER, text)
        try:
            remark = self.runner.run(answer(self.stub, self.talk, Screen()))
            click.echo(f"\n({remark})" if remark else "")
        except KeyboardInterrupt:
            click.echo("\n(stopped)")
        except DomainError as error:
            click.echo(f"\n{error.message}", err=True)


@click.command("chat")
@target_option(INFERENCE)
@click.option("--model", default="", help="The model's name. Default: the server's first.")
@click.option("--system", default="", help="The system message.")
@click.option("--temperature", type=float, help="Default: the model's.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Default: what the context holds.")
@click.option("--api-key", envvar="CORRAL_API_KEY", help="The key, where the server asks for one.")
def chat(
    target: str,
    model: str,
    system: str,
    temperature: float | None,
    max_tokens: int | None,
    api_key: str | None,
) -> None:
    """Talk to a running server; /help lists what can be typed."""
    with asyncio.Runner() as runner:
        channel = runner.run(_open(target, api_key))
        try:
            stub = InferenceServiceStub(channel)
            found = runner.run(find_model(stub, model, target))
            click.echo(introduction(found))
            talk = Conversation(found.name, system, temperature, max_tokens)
            Repl(runner, stub, talk, read_line).run()
        finally:
            runner.run(channel.close())


async def _open(target: str, api_key: str | None) -> grpc.aio.Channel:
    """Open the channel inside the loop that will use it."""
    return open_channel(target, token=api_key)


async def find_model(stub: "InferenceServiceAsyncStub", name: str, target: str) -> model_pb2.Model:
    """The model to talk to. Raises click.ClickException with the remedy where there is none."""
    request = inference_service_pb2.GetModelRequest(model=name)
    with explain_failures(target):
        return (await stub.GetModel(request, timeout=CONNECT_PATIENCE_S)).model


def introduction(model: model_pb2.Model) -> str:
    """The introduction of the model, in one to three lines."""
    size = f"{model.num_parameters / 1e6:,.0f} million parameters"
    context = "loaded by the first question"
    if model.HasField("resolved_limits"):
        context = f"{model.resolved_limits.context_tokens:,} tokens of context"
    lines = [f"{model.name}: {size}, {context}. /help lists the commands."]
    if is_bundled(model.name):
        lines.append(
            "This is the tiny demo model that comes with Corral: it shows that everything works,\n"
            f"and it knows very little. A real one: {real_model_command()}"
        )
    return "\n".join(lines)


def read_line() -> str:
    """One line from the user; no prompt where the input is a file or a pipe."""
    return input("> " if sys.stdin.isatty() else "")
