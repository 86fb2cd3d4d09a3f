"""`corral up`: runs all services on one machine under a supervisor."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import click
from corral.inference.v1 import inference_service_pb2, model_pb2
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from corral_cli.output import echo
from corral_cli.serve import settings_options
from corral_cli.up.announcement import Announcement
from corral_cli.up.children import (
    accepts_connections,
    ensure_token,
    environment_variables,
    lock_of_children,
    make_service,
    responds_ok,
)
from corral_cli.up.plan import MAX_REPLICAS, Plan, ServiceWithPorts, UpFlags
from corral_cli.up.ports import reachable, reserve_ports
from corral_cli.up.supervisor import Service, ServiceFailed, Supervisor, run_until_signalled
from corral_cli.up.up_lock import LOCK_NAME, write_addresses
from gateway.config import GatewaySettings
from svc_kit.errors import DomainError
from svc_kit.lifecycle import StartupError, notify_systemd
from svc_kit.local_files import lock_folder
from svc_kit.network import parse_address
from svc_kit.rpc.client import open_channel, translate_errors
from svc_kit.settings.groups import read_secret

_STOP_MARGIN_S = 10.0
"""Seconds between the end of a service's own drain period and SIGKILL."""


class AddressText(click.ParamType[str]):
    """A listen address. Errors name the flag instead of the setting."""

    name = "host:port"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the normalized address. Raises click.BadParameter."""
        try:
            return str(parse_address(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class NamedFile(click.ParamType[tuple[str, str]]):
    """A pair of name and file, written NAME=FILE."""

    name = "name=file"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Split at the first "=". Raises click.BadParameter if a part is missing."""
        name, sign, file = value.partition("=")
        if not (name and sign and file):
            self.fail(f"{value!r} is not NAME=FILE", param, ctx)
        return name, file


class NamedUrls(click.ParamType[tuple[str, tuple[str, ...]]]):
    """A name and URLs, written NAME=URL[,URL...]."""

    name = "name=url"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[str, ...]]:
        """Split at the first "=" and the commas. Raises click.BadParameter if a part is
        missing."""
        name, sign, text = value.partition("=")
        urls = tuple(text.split(","))
        if not (name and sign and all(urls)):
            self.fail(f"{value!r} is not NAME=URL[,URL...]", param, ctx)
        return name, urls


@click.command("up")
@click.option("--model", "models", multiple=True, help="File, folder, hf:owner/repo/file.gguf or"
              " NAME=any of these; can be repeated. Default: the bundled demo.")  # fmt: skip
@click.option("--engine", "engines", type=NamedUrls(), multiple=True, help="An engine (vLLM,"
              " SGLang, llama-server, or any with OpenAI's API) that serves the model NAME, as"
              " NAME=URL[,URL...]; can be repeated.")  # fmt: skip
@click.option("--tokenizer", help="That of the engines: like --model, a folder of Hugging Face"
              " files, or engine, which asks them where it is. Without it they are used in text"
              " mode, with their own template and parsers.")  # fmt: skip
@click.option("--adapter", "adapters", type=NamedFile(), multiple=True, help="A LoRA for the first"
              " model, as NAME=FILE; can be repeated.")  # fmt: skip
@click.option("--embedding-model", help="The model that embeds files in vector stores: like"
              " --model, or the NAME of one of the models.")  # fmt: skip
@click.option("--host", help="Host of the gateway. Default: 127.0.0.1.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port of the gateway, 0 for any. Default: 8080."
)
@click.option("--listen", type=AddressText(), help="Host and port.")
@click.option("--inference-listen", type=AddressText(), help="gRPC. Default: 127.0.0.1:50051.")
@click.option("--control-listen", type=AddressText(), help="gRPC. Default: 127.0.0.1:50052.")
@click.option(
    "--slots", type=click.IntRange(1, 256), help="Concurrent sequences. Default: by memory."
)
@click.option(
    "--context",
    "context_tokens",
    type=click.IntRange(min=256),
    help="Tokens per sequence. Default: by memory.",
)
@click.option("--threads", type=click.IntRange(min=1), help="Compute threads. Default: by CPU.")
@click.option("--replicas", type=click.IntRange(1, MAX_REPLICAS), default=1, show_default=True,
              help="Inference services, among which requests are balanced.")  # fmt: skip
@click.option("--gpus", multiple=True, metavar="NUMBER[,NUMBER...]", help="The GPUs of a replica,"
              " as in CUDA_VISIBLE_DEVICES; once for each. Default: each has all.")  # fmt: skip
@click.option("--require-keys", is_flag=True, help="Refuse requests without an API key.")
@click.option("--otlp-endpoint", metavar="URL", help="A collector of OpenTelemetry, as in"
              " http://127.0.0.1:4317, to send traces to.")  # fmt: skip
@settings_options
def up(host: str | None, port: int | None, listen: str | None, **flags: Any) -> None:
    """Run the inference service, the control service and the gateway until Ctrl-C."""
    started = time.monotonic()
    names = [engine for engine, _ in flags["engines"]]
    if len(set(names)) < len(names):
        raise click.UsageError("--engine: write all URLs of a name in one, as NAME=URL,URL")
    if flags["tokenizer"] is not None and not names:
        raise click.UsageError("--tokenizer is that of --engine, which is not given")
    if flags["gpus"] and len(flags["gpus"]) != flags["replicas"]:
        raise click.UsageError(f"--gpus: give it {flags['replicas']} times, once for each replica")
    up_flags = UpFlags(listen=listen_flag(host, port, listen), **flags)
    run_services(up_flags, lambda plan, inherited: supervise(plan, started, inherited))


def run_services(
    flags: UpFlags, supervise_plan: Callable[[Plan, int], Coroutine[Any, Any, None]]
) -> None:
    """Check the settings, models and ports, then supervise the services with their ports reserved.
    They inherit a file descriptor.

    Raises StartupError.
    """
    plan = Plan.load(flags)
    folder = plan.inference.data_dir
    with (
        lock_folder(
            folder,
            LOCK_NAME,
            holder="`corral up`",
            remedy="stop it, or choose another --data-dir",
        ),
        lock_of_children(folder, report) as inherited,
    ):
        plan.check_settings()
        plan = plan.with_ports()
        plan.check_ports()
        ensure_token(plan.token_file)
        write_addresses(folder, plan.listeners, plan.access())
        with reserve_ports(listener.address for listener in plan.listeners):
            asyncio.run(supervise_plan(plan, inherited))


def listen_flag(host: str | None, port: int | None, listen: str | None) -> str | None:
    """Combine the flags to the gateway's address, or None. Raises click.UsageError."""
    if host is None and port is None:
        return listen
    if listen is not None:
        raise click.UsageError("--listen cannot be combined with --host or --port")
    name = host or "127.0.0.1"
    bracketed = f"[{name}]" if ":" in name and not name.startswith("[") else name
    return f"{bracketed}:{8080 if port is None else port}"


async def supervise(plan: Plan, started: float, inherited: int) -> None:
    """Run the services of the plan until a signal. Raises StartupError.

    `started` is the time of the command's start on the monotonic clock, `inherited` a file
    descriptor for the services.
    """
    report(f"starting on {plan.gateway.listen} (HTTP) and {plan.inference.listen} (gRPC)")

    supervisor = Supervisor(make_services(plan), report, inherited=[inherited])

    async def announce() -> None:
        announcement = await make_announcement(plan, time.monotonic() - started, supervisor.away)
        echo("\n" + announcement.text() + "\n")
        notify_systemd("READY=1")

    try:
        await run_until_signalled(supervisor, announce, plan.check_reload)
    except ServiceFailed as error:
        raise StartupError(str(error)) from error
    report("stopped")


def make_services(plan: Plan) -> list[Service]:
    """Describe the services in start order. The gateway is last, so that it stops first. The others
    continue without the control service."""
    return [
        make_service(
            name,
            settings.toml_table,
            variables=environment_variables(settings.env_prefix(), plan.overrides[name])
            | plan.visible_devices(name),
            config=plan.config,
            management=reachable(plan.management(name)),
            is_ready=_probe(plan, name),
            stop_timeout_s=_drain_s(settings) + _STOP_MARGIN_S,
            is_vital=_is_vital(plan, name),
        )
        for name, settings in plan.by_service.items()
    ]


def _is_vital(plan: Plan, name: str) -> bool:
    """Whether the others cannot go on without a service: not of one of several replicas."""
    return name != "control" and (name not in plan.replicas or len(plan.replicas) == 1)


def _probe(plan: Plan, name: str) -> Callable[[], Awaitable[bool]]:
    """How to ask whether a service is ready. The gateway starts before the control service does,
    and serves what it can; its `/readyz` waits for both services."""
    if name == "gateway":
        return functools.partial(accepts_connections, reachable(plan.address(name)))
    return functools.partial(responds_ok, reachable(plan.management(name)), "/readyz")


def _drain_s(settings: ServiceWithPorts) -> float:
    """The longest time that a service takes to drain by itself."""
    if isinstance(settings, GatewaySettings):
        return settings.drain_delay_s + settings.drain_grace_s
    return settings.server.drain_delay_s + settings.server.drain_grace_s


async def make_announcement(plan: Plan, elapsed_s: float, away: Mapping[str, str]) -> Announcement:
    """Build the ready message with the models that the inference service lists. `away`: services
    that could not start yet, and why."""
    return Announcement(
        gateway=plan.address("gateway"),
        inference=plan.address("inference"),
        control=plan.address("control"),
        management=[
            reachable(plan.management(name)) for name in ("gateway", *plan.replicas, "control")
        ],
        models=await list_models(plan),
        data_dir=plan.inference.data_dir,
        elapsed_s=elapsed_s,
        away=away,
        needs_key=bool(plan.gateway.keys) or plan.gateway.require_keys,
        tls=plan.gateway.tls,
        inference_tls=plan.gateway.inference_tls,
        control_tls=plan.gateway.control_tls,
        require_keys=plan.gateway.require_keys,
    )


async def list_models(plan: Plan) -> list[model_pb2.Model]:
    """List the models with their resolved limits; empty if the call fails, because the supervisor
    restarts a service that fails after it was ready.
    """
    request = inference_service_pb2.ListModelsRequest()
    tls = plan.gateway.inference_tls
    token, target = read_secret(plan.token_file), str(reachable(plan.address("inference")))
    async with open_channel(target, token=token, tls=tls) as channel:
        try:
            with translate_errors("inference"):
                response = await InferenceServiceStub(channel).ListModels(request, timeout=10)
        except DomainError as error:
            report(f"cannot list the models: {error.message}")
            return []
        return list(response.models)


def report(text: str) -> None:
    """Print a line of the supervisor to stderr."""
    echo(f"corral: {text}", err=True)
