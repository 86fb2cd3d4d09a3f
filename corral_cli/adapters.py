"""`corral adapters load|unload|list`: the adapters of a running server and of the registry."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from corral.inference.v1 import adapter_pb2
from corral.inference.v1 import engine_service_pb2 as pb
from corral.inference.v1.engine_service_pb2_grpc import EngineServiceStub

from corral_cli import adapter_registry
from corral_cli.connection import CONNECT_PATIENCE_S, INFERENCE, explain_failures, target_option
from svc_kit.rpc.client import open_channel

if TYPE_CHECKING:  # the stub over an aio channel has a name for type checkers only
    from corral.inference.v1.engine_service_pb2_grpc import EngineServiceAsyncStub

LOAD_PATIENCE_S = 300.0
_DIGEST_SHOWN = 12

Answer = TypeVar("Answer")


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options for the address of the server."""
    key = click.option(
        "--api-key", envvar="CORRAL_API_KEY", help="A key with the scope admin, where one is asked."
    )
    return target_option(INFERENCE)(key(command))


@click.group("adapters")
def adapters() -> None:
    """Register LoRA adapters for all servers, or load them into one that runs."""


adapters.add_command(adapter_registry.add)
adapters.add_command(adapter_registry.remove)


@adapters.command("list")
@target_option(None, "Show what this inference server has in memory instead.")
@adapter_registry.control_options
def list_adapters(target: str | None, control: str, api_key: str | None) -> None:
    """Show the registered adapters, or every one in a server's memory, draining ones too."""
    if target is None:
        for registered in adapter_registry.ask(control, api_key, adapter_registry.registered):
            click.echo(adapter_registry.describe(registered))
        return

    async def call(stub: "EngineServiceAsyncStub") -> pb.ListAdaptersResponse:
        return await stub.ListAdapters(pb.ListAdaptersRequest(), timeout=CONNECT_PATIENCE_S)

    for adapter in asyncio.run(_ask(target, api_key, call)).adapters:
        click.echo(describe(adapter))


@adapters.command("load")
@click.argument("name")
@click.argument("file")
@click.option("--model", default="", help="The base model. Default: the server's first.")
@click.option("--digest", default="", help="The SHA-256 that the file must have.")
@click.option("--scale", type=float, help="What its effect is multiplied by. Default: 1.")
@server_options
def load(
    name: str,
    file: str,
    model: str,
    digest: str,
    scale: float | None,
    target: str,
    api_key: str | None,
) -> None:
    """Load FILE, from a folder that the server allows, as NAME."""
    request = pb.LoadAdapterRequest(
        name=name, model=model, path=file, digest=digest, default_scale=scale
    )

    async def call(stub: "EngineServiceAsyncStub") -> pb.LoadAdapterResponse:
        return await stub.LoadAdapter(request, timeout=LOAD_PATIENCE_S)

    click.echo(describe(asyncio.run(_ask(target, api_key, call)).adapter))


@adapters.command("unload")
@click.argument("name")
@server_options
def unload(name: str, target: str, api_key: str | None) -> None:
    """Forget NAME; what runs with it goes on to its end."""

    async def call(stub: "EngineServiceAsyncStub") -> pb.UnloadAdapterResponse:
        request = pb.UnloadAdapterRequest(name=name)
        return await stub.UnloadAdapter(request, timeout=CONNECT_PATIENCE_S)

    click.echo(describe(asyncio.run(_ask(target, api_key, call)).adapter))


async def _ask(
    target: str,
    api_key: str | None,
    call: "Callable[[EngineServiceAsyncStub], Awaitable[Answer]]",
) -> Answer:
    async with open_channel(target, token=api_key) as channel:
        with explain_failures(target):
            return await call(EngineServiceStub(channel))


def describe(adapter: adapter_pb2.Adapter) -> str:
    """One adapter in one line."""
    state = adapter_pb2.Adapter.State.Name(adapter.state).removeprefix("STATE_").lower()
    facts = (
        f"generation {adapter.generation}, {state}, {adapter.num_running} running, "
        f"rank {adapter.rank}, scale {adapter.default_scale:g}, {adapter.size_bytes / 1e6:.1f} MB, "
        f"SHA-256 {adapter.digest[:_DIGEST_SHOWN]}"
    )
    problem = f": {adapter.problem}" if adapter.problem else ""
    return f"{adapter.name}    for {adapter.model}, {facts}{problem}"
