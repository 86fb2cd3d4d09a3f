"""`corral adapters add|remove|list`: adapters stored by the control service."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click
import grpc.aio
from corral.control.v1 import adapter_pb2
from corral.control.v1 import adapter_service_pb2 as pb
from corral.control.v1.adapter_service_pb2_grpc import AdapterServiceStub
from google.protobuf.duration_pb2 import Duration

from corral_cli.access import control_options
from corral_cli.connection import CALL_TIMEOUT_S, Connection, list_all
from corral_cli.output import echo, echo_line, read_chunks

_UPLOAD_TIMEOUT_S = 3600.0
_ENGINES_TIMEOUT_S = 30
_CHUNK_BYTES = 1 << 20
DIGEST_CHARS = 12
"""Characters of a SHA-256 that are shown."""


@click.command("add")
@click.argument("name")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--model", default="", help="The base model. Default: each server's first model.")
@click.option("--description", default="", help="A description of the adapter.")
@click.option("--scale", type=float, help="Factor for the adapter's effect. Default: 1.")
@click.option("--replace", is_flag=True, help="Replace an adapter that has this name.")
@control_options
def add(name: str, file: Path, control: Connection, **fields: Any) -> None:
    """Register FILE as NAME. Every inference server loads it, now and after each start."""
    scale = fields.pop("scale")
    header = adapter_pb2.AdapterHeader(name=name, default_scale=scale, **fields)

    async def call(channel: grpc.aio.Channel) -> adapter_pb2.Adapter:
        stub = AdapterServiceStub(channel)
        created = await stub.CreateAdapter(_upload(header, file), timeout=_UPLOAD_TIMEOUT_S)
        request = pb.GetAdapterRequest(
            adapter=created.adapter.id, wait=Duration(seconds=_ENGINES_TIMEOUT_S)
        )
        timeout_s = _ENGINES_TIMEOUT_S + CALL_TIMEOUT_S
        return (await stub.GetAdapter(request, timeout=timeout_s)).adapter

    for line in describe(control.run(call)):
        echo_line(line)


@click.command("remove")
@click.argument("name")
@control_options
def remove(name: str, control: Connection) -> None:
    """Delete NAME on all servers. Running requests that use it are completed."""
    request = pb.DeleteAdapterRequest(adapter=name, wait=Duration(seconds=_ENGINES_TIMEOUT_S))
    timeout_s = _ENGINES_TIMEOUT_S + CALL_TIMEOUT_S
    reply = control.call(request, pb.DeleteAdapterResponse, timeout_s)
    echo_line(f"{name} ({reply.adapter_id}) is deleted")
    if reply.pending_frontend_count:
        pending = f"{reply.pending_frontend_count} of {reply.frontend_count}"
        echo(f"    {pending} servers have not unloaded it yet")


def list_registered(control: Connection) -> list[adapter_pb2.Adapter]:
    """List the adapters of the caller's project, newest first, with the state in each engine."""

    async def call(channel: grpc.aio.Channel) -> list[adapter_pb2.Adapter]:
        stub = AdapterServiceStub(channel)
        listed = list_all(stub.ListAdapters, pb.ListAdaptersRequest(), "adapters")
        requests = [pb.GetAdapterRequest(adapter=adapter.id) async for adapter in listed]
        return [(await stub.GetAdapter(each, timeout=CALL_TIMEOUT_S)).adapter for each in requests]

    return control.run(call)


def describe(adapter: adapter_pb2.Adapter) -> list[str]:
    """Format an adapter as one line, followed by a line for each engine that cannot use it."""
    names = [adapter_pb2.AdapterReport.State.Name(report.state) for report in adapter.engines]
    states = [name.removeprefix("STATE_").lower() for name in names] or ["in no engine yet"]
    if 0 < adapter.ready_frontend_count < adapter.frontend_count:
        states.append(f"on {adapter.ready_frontend_count} of {adapter.frontend_count} servers")
    line = (
        f"{adapter.name}    {adapter.id}, for {adapter.model or 'the first model'}, "
        f"{', '.join(states)}, rank {adapter.rank}, scale {adapter.default_scale:g}, "
        f"{adapter.size_bytes / 1e6:.1f} MB, SHA-256 {adapter.sha256[:DIGEST_CHARS]}"
    )
    problems = [
        f"    {report.address or report.frontend}: {report.problem}"
        for report in adapter.engines
        if report.problem
    ]
    return [line, *problems]


async def _upload(
    header: adapter_pb2.AdapterHeader, file: Path
) -> AsyncIterator[pb.CreateAdapterRequest]:
    yield pb.CreateAdapterRequest(header=header)
    async for chunk in read_chunks(file, _CHUNK_BYTES):
        yield pb.CreateAdapterRequest(chunk=chunk)
