"""`corral adapters add|remove|list`: the adapters that the control service keeps."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from corral.control.v1 import adapter_pb2
from corral.control.v1 import adapter_service_pb2 as pb
from corral.control.v1.adapter_service_pb2_grpc import AdapterServiceStub
from google.protobuf.duration_pb2 import Duration

from corral_cli.connection import CONNECT_PATIENCE_S, CONTROL, explain_failures, target_option
from svc_kit.rpc.client import open_channel

if TYPE_CHECKING:
    from corral.control.v1.adapter_service_pb2_grpc import AdapterServiceAsyncStub


SEND_PATIENCE_S = 3600.0
_ENGINES_PATIENCE_S = 30
_CHUNK_BYTES = 1 << 20
_DIGEST_SHOWN = 12
_STATE = "STATE_"
Answer = TypeVar("Answer")


def control_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options for the address and the key of the control service."""
    control = target_option(CONTROL, "The control service.", name="--control")
    key = click.option("--api-key", envvar="CORRAL_API_KEY", help="A key, where one is asked.")
    return control(key(command))


@click.command("add")
@click.argument("name")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--model", default="", help="The base model. Default: each server's first.")
@click.option("--description", default="", help="A text for people.")
@click.option("--scale", type=float, help="What its effect is multiplied by. Default: 1.")
@click.option("--replace", is_flag=True, help="Take the name from an adapter that has it.")
@control_options
def add(name: str, file: Path, control: str, api_key: str | None, **header: Any) -> None:
    """Register FILE as NAME; every inference server loads it, now and after each start."""
    scale = header.pop("scale")
    about = adapter_pb2.AdapterHeader(name=name, default_scale=scale, **header)

    async def call(stub: "AdapterServiceAsyncStub") -> adapter_pb2.Adapter:
        created = await stub.CreateAdapter(_pieces(about, file), timeout=SEND_PATIENCE_S)
        request = pb.GetAdapterRequest(
            adapter=created.adapter.id, wait=Duration(seconds=_ENGINES_PATIENCE_S)
        )
        timeout_s = _ENGINES_PATIENCE_S + CONNECT_PATIENCE_S
        return (await stub.GetAdapter(request, timeout=timeout_s)).adapter

    click.echo(describe(ask(control, api_key, call)))


@click.command("remove")
@click.argument("name")
@control_options
def remove(name: str, control: str, api_key: str | None) -> None:
    """Delete NAME everywhere; what runs with it goes on to its end."""

    async def call(stub: "AdapterServiceAsyncStub") -> pb.DeleteAdapterResponse:
        request = pb.DeleteAdapterRequest(adapter=name)
        return await stub.DeleteAdapter(request, timeout=CONNECT_PATIENCE_S)

    click.echo(f"{name} ({ask(control, api_key, call).adapter_id}) is deleted")


async def registered(stub: "AdapterServiceAsyncStub") -> list[adapter_pb2.Adapter]:
    """The adapters of the caller's project, newest first, with their engines."""
    found: list[adapter_pb2.Adapter] = []
    request = pb.ListAdaptersRequest()
    while True:
        page = await stub.ListAdapters(request, timeout=CONNECT_PATIENCE_S)
        for adapter in page.adapters:
            wanted = pb.GetAdapterRequest(adapter=adapter.id)
            found.append((await stub.GetAdapter(wanted, timeout=CONNECT_PATIENCE_S)).adapter)
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


def ask(
    control: str,
    api_key: str | None,
    call: "Callable[[AdapterServiceAsyncStub], Awaitable[Answer]]",
) -> Answer:
    """Call the control service. Raises click.ClickException."""

    async def asked() -> Answer:
        async with open_channel(control, token=api_key) as channel:
            with explain_failures(control):
                return await call(AdapterServiceStub(channel))

    return asyncio.run(asked())


def describe(adapter: adapter_pb2.Adapter) -> str:
    """One adapter in one line, and a line for each engine that cannot use it."""
    states = [adapter_pb2.AdapterReport.State.Name(each.state) for each in adapter.engines]
    words = [state.removeprefix(_STATE).lower() for state in states] or ["in no engine yet"]
    line = (
        f"{adapter.name}    {adapter.id}, for {adapter.model or 'the first model'}, "
        f"{', '.join(words)}, rank {adapter.rank}, scale {adapter.default_scale:g}, "
        f"{adapter.size_bytes / 1e6:.1f} MB, SHA-256 {adapter.sha256[:_DIGEST_SHOWN]}"
    )
    problems = [
        f"    {each.address or each.frontend}: {each.problem}"
        for each in adapter.engines
        if each.problem
    ]
    return "\n".join([line, *problems])


async def _pieces(
    about: adapter_pb2.AdapterHeader, file: Path
) -> AsyncIterator[pb.CreateAdapterRequest]:
    yield pb.CreateAdapterRequest(header=about)
    with await asyncio.to_thread(file.open, "rb") as source:
        while chunk := await asyncio.to_thread(source.read, _CHUNK_BYTES):
            yield pb.CreateAdapterRequest(chunk=chunk)
