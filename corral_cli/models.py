"""`corral models`: list, load and unload models of a running server."""

import json
from collections.abc import Iterable

import click
import grpc.aio
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import inference_service_pb2 as inference_pb
from corral.inference.v1 import model_pb2
from corral.inference.v1.engine_service_pb2_grpc import EngineServiceStub
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub
from google.protobuf import text_format

from corral_cli.connection import INFERENCE_TARGET, Connection, api_key_option, target_option
from corral_cli.output import as_object, format_table, json_option, print_list

_HEADER = ("MODEL", "STATE", "MEMORY", "USES", "CONTEXT", "ALIASES")
_MIB = 1 << 20


@click.group("models")
@target_option(INFERENCE_TARGET)
@api_key_option()
@click.pass_context
def models(context: click.Context, target: str, api_key: str | None) -> None:
    """List, load and unload the models of a running server."""
    context.obj = Connection(target, api_key)


@models.command("list")
@json_option
@click.pass_obj
def list_models(connection: Connection, as_json: bool) -> None:
    """List every model with its state."""
    request = inference_pb.ListModelsRequest()
    listed = connection.list_all(
        lambda channel: InferenceServiceStub(channel).ListModels, request, "models", timeout_s=None
    )
    print_list(listed, as_json, lambda models: [table(models)])


@models.command("show")
@click.argument("model")
@json_option
@click.pass_obj
def show(connection: Connection, model: str, as_json: bool) -> None:
    """Print all fields of a model."""
    request = inference_pb.GetModelRequest(model=model)
    reply = connection.call(
        lambda channel: InferenceServiceStub(channel).GetModel, request, timeout_s=None
    )
    if as_json:
        click.echo(json.dumps(as_object(reply.model), indent=2))
        return
    click.echo(text_format.MessageToString(reply.model, as_utf8=True), nl=False)


@models.command("load")
@click.argument("model")
@click.option("--slots", type=click.IntRange(min=1), help="Sequences that run concurrently.")
@click.option(
    "--context", type=click.IntRange(min=1), help="Context size of a sequence, in tokens."
)
@click.pass_obj
def load(connection: Connection, model: str, slots: int | None, context: int | None) -> None:
    """Load a model, and print the progress until it is ready."""
    limits = model_pb2.ModelLimits(slots=slots, context_tokens=context)

    async def follow(channel: grpc.aio.Channel) -> model_pb2.Model:
        engine = EngineServiceStub(channel)
        request = engine_pb.LoadModelRequest(model=model)
        if slots or context:
            request.limits.CopyFrom(limits)
        latest = (await engine.LoadModel(request)).model
        watch = engine.WatchModels(engine_pb.WatchModelsRequest(model=latest.name))
        async for response in watch:
            latest = response.model
            click.echo(format_progress(latest), err=True)
            if latest.state != model_pb2.Model.STATE_LOADING:
                break
        watch.cancel()
        return latest

    loaded = connection.run(follow)
    if loaded.state != model_pb2.Model.STATE_READY:
        raise click.ClickException(
            loaded.problem or "the load was cancelled, or there was not enough memory"
        )
    click.echo(table([loaded]))


@models.command("unload")
@click.argument("model")
@click.option("--force", is_flag=True, help="Abort the requests that use it.")
@click.pass_obj
def unload(connection: Connection, model: str, force: bool) -> None:
    """Unload a model after its requests have finished."""
    request = engine_pb.UnloadModelRequest(model=model, force=force)
    reply = connection.call(
        lambda channel: EngineServiceStub(channel).UnloadModel, request, timeout_s=None
    )
    click.echo(table([reply.model]))


def table(models: Iterable[model_pb2.Model]) -> str:
    """Format the models as aligned columns below a header."""
    return "\n".join(format_table(_HEADER, map(_row, models)))


def format_progress(model: model_pb2.Model) -> str:
    """Format the phase and percentage of a load, or the state if the model is not loading."""
    if not model.HasField("load_progress"):
        return format_state(model)
    phase = model_pb2.LoadProgress.Phase.Name(model.load_progress.phase)
    label = phase.removeprefix("PHASE_").lower().replace("_", " ")
    return f"{label} {model.load_progress.fraction:.0%}"


def format_state(model: model_pb2.Model) -> str:
    """Format the state of a model."""
    return model_pb2.Model.State.Name(model.state).removeprefix("STATE_").lower()


def _row(model: model_pb2.Model) -> tuple[str, ...]:
    limits = model.resolved_limits
    context = f"{limits.slots} x {limits.context_tokens}" if limits.slots else ""
    memory = f"{model.memory_bytes / _MIB:,.0f} MiB" if model.memory_bytes else ""
    uses = str(model.num_uses or "")
    return (model.name, format_state(model), memory, uses, context, ", ".join(model.aliases))
