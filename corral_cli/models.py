"""`corral models`: add, remove, list, load and unload models of a running server."""

import asyncio
import json
from collections.abc import Container, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import grpc.aio
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import inference_service_pb2 as inference_pb
from corral.inference.v1 import model_pb2
from corral.inference.v1.engine_service_pb2_grpc import EngineServiceStub
from corral.inference.v1.upstream_pb2 import UpstreamSource
from google.protobuf import text_format
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from corral_cli.access import inference_options
from corral_cli.connection import Connection
from corral_cli.output import (
    as_object,
    echo,
    echo_line,
    format_table,
    json_option,
    object_option,
    print_list,
)
from corral_cli.serve import load as load_settings
from corral_cli.serve import settings_options

_HEADER = ("MODEL", "STATE", "MEMORY", "USES", "CONTEXT", "ALIASES")
_MIB = 1 << 20
State = model_pb2.Model.State
_DOWNLOADS = (State.STATE_DOWNLOADING, State.STATE_VERIFYING)


@click.group("models")
def models() -> None:
    """Add, remove, list, load and unload the models of a running server."""


@models.command("list")
@json_option
@inference_options
def list_models(inference: Connection, as_json: bool) -> None:
    """List every model with its state, and why it failed."""
    request = inference_pb.ListModelsRequest(pending=True)
    listed = inference.list_all(request, "models", timeout_s=None)

    def lines(models: Sequence[model_pb2.Model]) -> list[str]:
        lines = (f"{each.name}: {problem}" for each in models for problem in _problems(each))
        return [*format_table(_HEADER, map(_row, models)), *lines]

    print_list(listed, as_json, lines)


def _problems(model: model_pb2.Model) -> Iterator[str]:
    if problem := model.problem or model.upstream.problem:
        yield problem
    replicas = model.replicas
    if replicas.num_having < replicas.num_asked:
        yield f"on {replicas.num_having} of {replicas.num_asked} replicas"
    if replicas.other_digests:
        digests = ", ".join((model.digest, *replicas.other_digests))
        yield f"replicas have different files under this name, with the SHA-256 {digests}"


@models.command("show")
@click.argument("model")
@json_option
@inference_options
def show(inference: Connection, model: str, as_json: bool) -> None:
    """Print all fields of a model."""
    request = inference_pb.GetModelRequest(model=model)
    reply = inference.call(request, inference_pb.GetModelResponse, timeout_s=None)
    if as_json:
        echo(json.dumps(as_object(reply.model), indent=2))
        return
    echo(text_format.MessageToString(reply.model, as_utf8=True), nl=False)


@models.command("explain")
@click.argument("source", metavar="FILE|NAME")
@settings_options
@click.option("--verify", is_flag=True, help="Compare prompts with llama.cpp's own.")
@object_option
def explain(
    source: str, config: Path | None, data_dir: Path | None, verify: bool, as_json: bool
) -> None:
    """Explain what the service will do with FILE, or another source of models, without a server.

    Of NAME, an upstream in the settings, ask its engine and explain what that honours.
    """
    from inference_svc.rpc.explanation import explain_source

    async def collect() -> list[dict[str, Any]]:
        settings = load_settings("inference", config, data_dir)
        return [each async for each in explain_source(source, settings, verify=verify)]

    explained = asyncio.run(collect())
    if as_json:
        echo(json.dumps(explained if len(explained) > 1 else explained[0], indent=2))
        return
    for each in explained:
        for title, section in each.items():
            echo_line(title)
            for line in format_section(section):
                echo_line(f"  {line}")


def format_section(section: Any) -> Iterator[str]:
    """The lines of a section: one a field, without those that are empty."""
    lines = (
        section
        if isinstance(section, list)
        else [
            f"{name.removesuffix('_bytes').replace('_', ' ')}: {_format_value(name, value)}"
            for name, value in section.items()
            if value not in (None, "", [], {})
        ]
    )
    yield from lines or ["nothing"]


def _format_value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_format_value('', each)}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if name.endswith("_bytes"):
        return f"{value / _MIB:,.1f} MiB"
    if isinstance(value, str) and "\n" in value:
        return json.dumps(value)
    return f"{value:,}" if name and isinstance(value, int) else str(value)


@models.command("load")
@click.argument("model")
@click.option("--slots", type=click.IntRange(min=1), help="Sequences that run concurrently.")
@click.option(
    "--context", type=click.IntRange(min=1), help="Context size of a sequence, in tokens."
)
@inference_options
def load(inference: Connection, model: str, slots: int | None, context: int | None) -> None:
    """Load a model, and print the progress until it is ready."""
    limits = model_pb2.ModelLimits(slots=slots, context_tokens=context)

    async def follow(channel: grpc.aio.Channel) -> model_pb2.Model:
        engine = EngineServiceStub(channel)
        request = engine_pb.LoadModelRequest(model=model)
        if slots or context:
            request.limits.CopyFrom(limits)
        latest = (await engine.LoadModel(request)).model
        return await _watch(channel, latest.name, (State.STATE_LOADING,))

    loaded = inference.run(follow)
    if loaded.state != model_pb2.Model.STATE_READY:
        raise click.ClickException(
            loaded.problem or "the load was cancelled, or there was not enough memory"
        )
    echo(table([loaded]))


@models.command("unload")
@click.argument("model")
@click.option("--force", is_flag=True, help="Abort the requests that use it.")
@inference_options
def unload(inference: Connection, model: str, force: bool) -> None:
    """Unload a model after its requests have finished."""
    request = engine_pb.UnloadModelRequest(model=model, force=force)
    _change(inference, request, engine_pb.UnloadModelResponse)


def _change(inference: Connection, request: Message, reply: type[Any]) -> None:
    echo(table([inference.call(request, reply, timeout_s=None).model]))


ttl_option = click.option(
    "--ttl",
    type=click.FloatRange(min=1),
    help="Unload it after so many seconds without requests.",
)


@models.command("add")
@click.argument("source", required=False)
@click.option("--name", default="", help="Its name in requests. Default: that of the file.")
@click.option("--sha256", default="", help="The SHA-256 that the file must have.")
@click.option("--projector", default="", help='A source, or "none". Default: the mmproj beside it.')
@click.option("--draft-model", default="", help="The source of a small model that drafts for it.")
@click.option("--alias", "aliases", multiple=True, help="Another name; may be repeated.")
@click.option("--pin", is_flag=True, help="Load it now and at each start, and keep it loaded.")
@ttl_option
@click.option("--wait/--no-wait", default=True, help="Follow the download. Default: yes.")
@click.option("--engine", "urls", metavar="URL", multiple=True, help="An engine (vLLM, SGLang,"
              " llama-server, or any with OpenAI's API) that serves the model NAME; may be"
              " repeated.")  # fmt: skip
@click.option("--engine-model", default="", help="Its name of the model. Default: its only one.")
@click.option("--engine-task", default="", help="embed, without a source: the model does not chat.")
@inference_options
def add(
    inference: Connection,
    source: str | None,
    name: str,
    sha256: str,
    projector: str,
    draft_model: str,
    aliases: tuple[str, ...],
    pin: bool,
    ttl: float | None,
    wait: bool,
    urls: tuple[str, ...],
    engine_model: str,
    engine_task: str,
) -> None:
    """Add the model of a FILE, hf:owner/repo/file.gguf, hf:owner/repo:QUANTIZATION or a URL.

    The server downloads it in the background, and continues after interruptions. The same command
    again shows the progress, or continues after a failure. With --engine it is only the tokenizer,
    also "engine", which asks where it is; without one the engine is used in text mode.
    """
    if source is None and not urls:
        raise click.UsageError("name a source, or an --engine")
    source = source or ""
    upstream = UpstreamSource(urls=urls, model=engine_model, task=engine_task) if urls else None
    request = engine_pb.AddModelRequest(
        source=str(Path(source).absolute()) if Path(source).is_file() else source,
        name=name,
        sha256=sha256,
        projector=projector,
        draft_model=draft_model,
        aliases=aliases,
        pinned=pin,
        idle_ttl=_duration(ttl),
        upstream=upstream,
    )

    async def follow(channel: grpc.aio.Channel) -> model_pb2.Model:
        added = (await EngineServiceStub(channel).AddModel(request)).model
        return await _watch(channel, added.name, _DOWNLOADS) if wait else added

    added = inference.run(follow)
    if added.state == State.STATE_FAILED:
        raise click.ClickException(added.problem)
    echo(table([added]))


models.add_command(add, "pull")


@models.command("update")
@click.argument("model")
@ttl_option
@click.option("--no-ttl", is_flag=True, help="Keep it loaded until its memory is needed.")
@inference_options
def update(inference: Connection, model: str, ttl: float | None, no_ttl: bool) -> None:
    """Change when a model that was added at run time is unloaded."""
    paths = ["idle_ttl"] * (ttl is not None or no_ttl)
    _update(inference, paths, model=model, idle_ttl=_duration(ttl))


@models.command("pin")
@click.argument("model")
@inference_options
def pin(inference: Connection, model: str) -> None:
    """Load a model that was added at run time now and at each start, and keep it loaded."""
    _update(inference, ["pinned"], model=model, pinned=True)


@models.command("unpin")
@click.argument("model")
@inference_options
def unpin(inference: Connection, model: str) -> None:
    """Let a pinned model be unloaded when it is idle or its memory is needed."""
    _update(inference, ["pinned"], model=model, pinned=False)


def _update(inference: Connection, paths: Sequence[str], **fields: Any) -> None:
    request = engine_pb.UpdateModelRequest(update_mask=FieldMask(paths=paths), **fields)
    _change(inference, request, engine_pb.UpdateModelResponse)


@models.command("alias")
@click.argument("model")
@click.argument("alias")
@inference_options
def alias(inference: Connection, model: str, alias: str) -> None:
    """Give a model another name."""
    request = engine_pb.AddModelAliasRequest(model=model, alias=alias)
    _change(inference, request, engine_pb.AddModelAliasResponse)


@models.command("remove")
@click.argument("model")
@click.option("--force", is_flag=True, help="Abort the requests that use it.")
@inference_options
def remove(inference: Connection, model: str, force: bool) -> None:
    """Remove a model that was added at run time, with its downloaded files, or an alias."""
    request = engine_pb.RemoveModelRequest(model=model, force=force)
    inference.call(request, engine_pb.RemoveModelResponse, timeout_s=None)


async def _watch(
    channel: grpc.aio.Channel, name: str, states: Container[model_pb2.Model.State]
) -> model_pb2.Model:
    """Print the progress of a model until it has none of these states."""
    latest = model_pb2.Model()
    watch = EngineServiceStub(channel).WatchModels(engine_pb.WatchModelsRequest(model=name))
    async for response in watch:
        if response.removed:
            raise click.ClickException(f"the model {name!r} was removed")
        latest = response.model
        echo_line(format_progress(latest), err=True)
        if latest.state not in states:
            break
    watch.cancel()
    return latest


def _duration(length_s: float | None) -> Duration | None:
    if length_s is None:
        return None
    duration = Duration()
    duration.FromTimedelta(timedelta(seconds=length_s))
    return duration


def table(models: Iterable[model_pb2.Model]) -> str:
    """Format the models as aligned columns below a header."""
    return "\n".join(format_table(_HEADER, map(_row, models)))


def format_progress(model: model_pb2.Model) -> str:
    """Format the progress of a load or of a download, or the state if there is none."""
    if model.HasField("download"):
        return f"{format_state(model)} {_format_download(model.download)}"
    if not model.HasField("load_progress"):
        urls = [f"{each.url}: {each.problem}" for each in model.upstream.endpoints if each.problem]
        return " ".join([format_state(model), *urls])
    phase = model_pb2.LoadProgress.Phase.Name(model.load_progress.phase)
    label = phase.removeprefix("PHASE_").lower().replace("_", " ")
    return f"{label} {model.load_progress.fraction:.0%}"


def _format_download(download: model_pb2.DownloadProgress) -> str:
    completed, total = download.completed_bytes / _MIB, download.total_bytes / _MIB
    amount = f"{completed:,.0f} of {total:,.0f} MiB" if total else f"{completed:,.0f} MiB"
    return f"{download.file}: {amount}"


def format_state(model: model_pb2.Model) -> str:
    return model_pb2.Model.State.Name(model.state).removeprefix("STATE_").lower()


def _row(model: model_pb2.Model) -> tuple[str, ...]:
    limits = model.resolved_limits
    sizes = (str(each) for each in (limits.slots, limits.context_tokens) if each)
    context = " x ".join(sizes) if limits.slots else ""
    memory = f"{model.memory_bytes / _MIB:,.0f} MiB" if model.memory_bytes else ""
    uses = str(model.num_uses or "")
    return (model.name, format_state(model), memory, uses, context, ", ".join(model.aliases))
