"""`corral models`: list, load and unload models of a running server."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import inference_service_pb2 as inference_pb
from corral.inference.v1 import model_pb2
from corral.inference.v1.engine_service_pb2_grpc import EngineServiceStub
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub
from google.protobuf import text_format

from corral_cli.connection import INFERENCE, explain_failures, target_option
from svc_kit.rpc.client import open_channel

if TYPE_CHECKING:  # stubs over an aio channel have a name for type checkers only
    from corral.inference.v1.engine_service_pb2_grpc import EngineServiceAsyncStub
    from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceAsyncStub

ResultT = TypeVar("ResultT")

_HEAD = ("MODEL", "STATE", "MEMORY", "USES", "CONTEXT", "ALIASES")
_MIB = 1 << 20


class Server(NamedTuple):
    """Both planes of a running server."""

    inference: "InferenceServiceAsyncStub"
    engine: "EngineServiceAsyncStub"


@click.group("models")
@target_option(INFERENCE)
@click.option("--api-key", envvar="CORRAL_API_KEY", help="The key, where the server asks for one.")
@click.pass_context
def models(context: click.Context, target: str, api_key: str | None) -> None:
    """See, load and unload the models of a running server."""
    context.obj = (target, api_key)


@models.command("list")
@click.pass_obj
def list_models(connection: tuple[str, str | None]) -> None:
    """Print every model with its state."""
    click.echo(table(_call(connection, _list)))


@models.command("show")
@click.argument("model")
@click.pass_obj
def show(connection: tuple[str, str | None], model: str) -> None:
    """Print all that the server says of a model."""

    async def get(server: Server) -> model_pb2.Model:
        request = inference_pb.GetModelRequest(model=model)
        return (await server.inference.GetModel(request)).model

    click.echo(text_format.MessageToString(_call(connection, get), as_utf8=True), nl=False)


@models.command("load")
@click.argument("model")
@click.option("--slots", type=click.IntRange(min=1), help="Sequences that run at once.")
@click.option("--context", type=click.IntRange(min=1), help="Tokens of one sequence.")
@click.pass_obj
def load(
    connection: tuple[str, str | None], model: str, slots: int | None, context: int | None
) -> None:
    """Load a model and say how far it is, until it is ready."""
    limits = model_pb2.ModelLimits(slots=slots, context_tokens=context)

    async def follow(server: Server) -> model_pb2.Model:
        request = engine_pb.LoadModelRequest(model=model)
        if slots or context:
            request.limits.CopyFrom(limits)
        found = (await server.engine.LoadModel(request)).model
        watch = server.engine.WatchModels(engine_pb.WatchModelsRequest(model=found.name))
        async for answer in watch:
            found = answer.model
            click.echo(progress(found), err=True)
            if found.state != model_pb2.Model.STATE_LOADING:
                break
        watch.cancel()
        return found

    loaded = _call(connection, follow)
    if loaded.state != model_pb2.Model.STATE_READY:
        raise click.ClickException(loaded.problem or "the load was stopped, or found no memory")
    click.echo(table([loaded]))


@models.command("unload")
@click.argument("model")
@click.option("--force", is_flag=True, help="End the requests that use it.")
@click.pass_obj
def unload(connection: tuple[str, str | None], model: str, force: bool) -> None:
    """Free a model once its requests have ended."""

    async def free(server: Server) -> model_pb2.Model:
        request = engine_pb.UnloadModelRequest(model=model, force=force)
        return (await server.engine.UnloadModel(request)).model

    click.echo(table([_call(connection, free)]))


def table(found: Iterable[model_pb2.Model]) -> str:
    """A line for each model, in columns."""
    rows = [_HEAD, *map(_row, found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def progress(model: model_pb2.Model) -> str:
    """How far a load is, in a few words."""
    if not model.HasField("load_progress"):
        return state(model)
    phase = model_pb2.LoadProgress.Phase.Name(model.load_progress.phase)
    words = phase.removeprefix("PHASE_").lower().replace("_", " ")
    return f"{words} {model.load_progress.fraction:.0%}"


def state(model: model_pb2.Model) -> str:
    """A model's state in a word."""
    return model_pb2.Model.State.Name(model.state).removeprefix("STATE_").lower()


def _row(model: model_pb2.Model) -> tuple[str, ...]:
    limits = model.resolved_limits
    context = f"{limits.slots} x {limits.context_tokens}" if limits.slots else ""
    memory = f"{model.memory_bytes / _MIB:,.0f} MiB" if model.memory_bytes else ""
    uses = str(model.num_uses or "")
    return (model.name, state(model), memory, uses, context, ", ".join(model.aliases))


async def _list(server: Server) -> list[model_pb2.Model]:
    found: list[model_pb2.Model] = []
    request = inference_pb.ListModelsRequest()
    while True:
        page = await server.inference.ListModels(request)
        found.extend(page.models)
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


def _call(
    connection: tuple[str, str | None], ask: Callable[[Server], Awaitable[ResultT]]
) -> ResultT:
    """Ask the server one thing. Raises click.ClickException with its error."""

    async def connected() -> ResultT:
        target, api_key = connection
        async with open_channel(target, token=api_key) as channel:
            with explain_failures(target):
                return await ask(Server(InferenceServiceStub(channel), EngineServiceStub(channel)))

    return asyncio.run(connected())
