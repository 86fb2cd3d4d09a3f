"""`corral up`: every service of one machine, under one supervisor."""

import asyncio
import time
from pathlib import Path

import click
from corral.inference.v1 import inference_service_pb2, model_pb2
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from corral_cli.up.announcement import Announcement
from corral_cli.up.children import a_service, as_variables, check_models, ensure_token
from corral_cli.up.plan import Plan, UpFlags
from corral_cli.up.ports import held, reachable
from corral_cli.up.supervisor import Service, ServiceFailed, Supervisor, run_until_signalled
from svc_kit.errors import DomainError
from svc_kit.lifecycle import StartupError
from svc_kit.network import parse_address
from svc_kit.rpc.client import open_channel, translate_errors
from svc_kit.settings.groups import read_secret

STOP_MARGIN_S = 10.0
"""Seconds that a service gets beyond its own grace before it is killed."""


class AddressText(click.ParamType[str]):
    """An address as it will be passed on, checked under the name of the flag it came with."""

    name = "host:port"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The address in its normal form."""
        try:
            return str(parse_address(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class NamedFile(click.ParamType[tuple[str, str]]):
    """NAME=FILE."""

    name = "name=file"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """A name and a file; the service checks the folder."""
        name, sign, file = value.partition("=")
        if not (name and sign and file):
            self.fail(f"{value!r} is not NAME=FILE", param, ctx)
        return name, file


@click.command("up")
@click.option("--model", "models", multiple=True, help="File, folder, hf:owner/repo/file.gguf or"
              " NAME=any of these; may repeat. Default: the bundled demo.")  # fmt: skip
@click.option("--adapter", "adapters", type=NamedFile(), multiple=True, help="A LoRA for the first"
              " model, as NAME=FILE; may repeat.")  # fmt: skip
@click.option("--embedding-model", help="What files in vector stores are searched by: like --model,"
              " or the NAME of one of them.")  # fmt: skip
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False))
@click.option("--host", help="Where the gateway listens. Default: 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), help="Its port. Default: 8080. 0: any.")
@click.option("--listen", type=AddressText(), help="Both in one.")
@click.option("--inference-listen", type=AddressText(), help="gRPC. Default: 127.0.0.1:50051.")
@click.option("--control-listen", type=AddressText(), help="Files. Default: 127.0.0.1:50052.")
@click.option("--slots", type=click.IntRange(1, 256), help="Sequences at once. Default: by memory.")
@click.option("--context", type=click.IntRange(min=256), help="Tokens of one. Default: by memory.")
@click.option("--threads", type=click.IntRange(min=1), help="Computing threads. Default: by CPU.")
@click.option("--require-keys", is_flag=True, help="Serve nobody without an API key.")
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with settings.")
def up(
    models: tuple[str, ...],
    adapters: tuple[tuple[str, str], ...],
    embedding_model: str | None,
    data_dir: Path | None,
    host: str | None,
    port: int | None,
    listen: str | None,
    inference_listen: str | None,
    control_listen: str | None,
    slots: int | None,
    context: int | None,
    threads: int | None,
    require_keys: bool,
    config: Path | None,
) -> None:
    """Start the inference service, the control service and the gateway, and keep them running
    until Ctrl-C."""
    started = time.monotonic()
    flags = UpFlags(
        config=config,
        models=models,
        adapters=adapters,
        embedding_model=embedding_model,
        data_dir=data_dir,
        listen=listen_flag(host, port, listen),
        inference_listen=inference_listen,
        control_listen=control_listen,
        slots=slots,
        context_tokens=context,
        threads=threads,
        require_keys=require_keys,
    )
    plan = Plan.make(flags)
    plan.check_ports()
    plan.check_access()
    check_models(plan.inference.models)
    ensure_token(plan.token_file)
    with held(plan.listeners):
        asyncio.run(keep_running(plan, started))


def listen_flag(host: str | None, port: int | None, listen: str | None) -> str | None:
    """The gateway's address from the flags that name it. Raises click.UsageError."""
    if host is None and port is None:
        return listen
    if listen is not None:
        raise click.UsageError("--listen says both, leave out --host and --port")
    written = host or "127.0.0.1"
    bracketed = f"[{written}]" if ":" in written and not written.startswith("[") else written
    return f"{bracketed}:{8080 if port is None else port}"


async def keep_running(plan: Plan, started: float) -> None:
    """Supervise the services of the plan until a signal. Raises StartupError."""
    say(f"starting on {plan.gateway.listen} (HTTP) and {plan.inference.listen} (gRPC)")

    async def announce() -> None:
        click.echo("\n" + (await announcement(plan, time.monotonic() - started)).text() + "\n")

    try:
        await run_until_signalled(Supervisor(services(plan), say), announce)
    except ServiceFailed as error:
        raise StartupError(str(error)) from error
    say("stopped")


def services(plan: Plan) -> list[Service]:
    """The gateway last, so that it stops first; others continue without the control service."""
    return [
        a_service(
            name,
            variables=as_variables(prefix, plan.overrides[name]),
            config=plan.config,
            management=reachable(management),
            stop_patience_s=grace_s + STOP_MARGIN_S,
            is_vital=name != "control",
        )
        for name, prefix, management, grace_s in (
            (
                "inference",
                plan.inference.env_prefix(),
                plan.inference_management,
                plan.inference.server.drain_grace_s,
            ),
            (
                "control",
                plan.control.env_prefix(),
                plan.control_management,
                plan.control.server.drain_grace_s,
            ),
            (
                "gateway",
                plan.gateway.env_prefix(),
                plan.gateway_management,
                plan.gateway.drain_grace_s,
            ),
        )
    ]


async def announcement(plan: Plan, elapsed_s: float) -> Announcement:
    """Ask the inference service what it serves."""
    return Announcement(
        gateway=plan.gateway_address,
        inference=plan.inference_address,
        control=plan.control_address,
        gateway_management=reachable(plan.gateway_management),
        inference_management=reachable(plan.inference_management),
        control_management=reachable(plan.control_management),
        models=await list_models(plan),
        data_dir=plan.inference.data_dir,
        elapsed_s=elapsed_s,
        needs_key=bool(plan.gateway.keys) or plan.gateway.require_keys,
        token_file=plan.token_file if plan.gateway.require_keys else None,
    )


async def list_models(plan: Plan) -> list[model_pb2.Model]:
    """The models with their resolved limits; empty if the service does not answer. A service that
    fails right after it became ready is restarted by the supervisor.
    """
    request = inference_service_pb2.ListModelsRequest()
    tls = plan.gateway.inference_tls
    token, target = read_secret(plan.token_file), plan.gateway.inference_target
    async with open_channel(target, token=token, tls=tls) as channel:
        try:
            with translate_errors("inference"):
                reply = await InferenceServiceStub(channel).ListModels(request, timeout=10)
        except DomainError as error:
            say(f"the models cannot be listed: {error.message}")
            return []
        return list(reply.models)


def say(text: str) -> None:
    """One line of the supervisor's, beside the services' logs."""
    click.echo(f"corral: {text}", err=True)
