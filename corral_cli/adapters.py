"""`corral adapters load|unload|list`: the adapters of a running server and of the registry."""

from collections.abc import Callable
from itertools import chain

import click
from corral.inference.v1 import adapter_pb2
from corral.inference.v1 import engine_service_pb2 as pb

from corral_cli import adapter_registry
from corral_cli.access import access_options, inference_options
from corral_cli.connection import Connection
from corral_cli.output import echo_line, json_option, print_list

_LOAD_TIMEOUT_S = 300.0


@click.group("adapters")
def adapters() -> None:
    """Register LoRA adapters for all servers, or load them into a running one."""


adapters.add_command(adapter_registry.add)
adapters.add_command(adapter_registry.remove)


@adapters.command("list")
@click.option("--loaded", is_flag=True, help="Those in the memory of the inference service.")
@json_option
@access_options
def list_adapters(connect: Callable[[str], Connection], *, loaded: bool, as_json: bool) -> None:
    """List the registered adapters, or those in a server's memory, including draining ones."""
    if not loaded:
        registered = adapter_registry.list_registered(connect("control"))
        describe_all = adapter_registry.describe
        print_list(registered, as_json, lambda each: chain.from_iterable(map(describe_all, each)))
        return
    reply = connect("inference").call(pb.ListAdaptersRequest(), pb.ListAdaptersResponse)
    print_list(reply.adapters, as_json, lambda each: map(describe, each))


@adapters.command("load")
@click.argument("name")
@click.argument("file")
@click.option("--model", default="", help="The base model. Default: the server's first model.")
@click.option("--digest", default="", help="The expected SHA-256 of the file.")
@click.option("--scale", type=float, help="Factor for the adapter's effect. Default: 1.")
@inference_options
def load(
    name: str,
    file: str,
    model: str,
    digest: str,
    scale: float | None,
    inference: Connection,
) -> None:
    """Load FILE as NAME. The file must be in a folder that the server allows."""
    request = pb.LoadAdapterRequest(
        name=name, model=model, path=file, digest=digest, default_scale=scale
    )
    reply = inference.call(request, pb.LoadAdapterResponse, _LOAD_TIMEOUT_S)
    echo_line(describe(reply.adapter))


@adapters.command("unload")
@click.argument("name")
@inference_options
def unload(name: str, inference: Connection) -> None:
    """Unload NAME. Running requests that use it are completed."""
    reply = inference.call(pb.UnloadAdapterRequest(name=name), pb.UnloadAdapterResponse)
    echo_line(describe(reply.adapter))


def describe(adapter: adapter_pb2.Adapter) -> str:
    """Format an adapter in an engine as one line."""
    state = adapter_pb2.Adapter.State.Name(adapter.state).removeprefix("STATE_").lower()
    facts = (
        f"generation {adapter.generation}, {state}, {adapter.num_running} running, "
        f"rank {adapter.rank}, scale {adapter.default_scale:g}, {adapter.size_bytes / 1e6:.1f} MB, "
        f"SHA-256 {adapter.digest[: adapter_registry.DIGEST_CHARS]}"
    )
    problem = f": {adapter.problem}" if adapter.problem else ""
    return f"{adapter.name}    for {adapter.model}, {facts}{problem}"
