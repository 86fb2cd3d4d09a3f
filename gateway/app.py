"""Creates and runs the gateway."""

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import NamedTuple

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway.active_calls import ActiveCalls
from gateway.auth import Authentication, Credentials
from gateway.azure_paths import AzurePaths
from gateway.config import GatewaySettings
from gateway.context import AppContext
from gateway.http.connection_limits import ConnectionLimits
from gateway.http.docs import describe_api, docs_page
from gateway.http.errors import EXCEPTION_HANDLERS, json_response
from gateway.http.head_requests import HeadRequests
from gateway.http.hosts import HostCheck, HostPolicy
from gateway.http.json_body import JsonBodies
from gateway.http.large_bodies import LargeBodies
from gateway.http.listener import Listener, bind, run_listener
from gateway.http.middleware import LastResponses, RequestMiddleware
from gateway.http.page import page_router
from gateway.readiness import Readiness
from gateway.routes import (
    adapters,
    admin,
    assistants,
    audio,
    batches,
    completions,
    conversations,
    embeddings,
    files,
    lora,
    models,
    responses,
    runs,
    threads,
    vector_store_files,
    vector_stores,
)
from gateway.routes.anthropic import message_batches, messages
from gateway.routes.llama_server import continuation, props, scores, tokenization
from gateway.routes.ollama import catalog as ollama_catalog
from gateway.routes.ollama import embeddings as ollama_embeddings
from gateway.routes.ollama import generation as ollama_generation
from gateway.routes.ollama import pull as ollama_pull
from gateway.rpc import ControlClient, InferenceClient
from gateway.stored_files import StoredFileReader
from svc_kit.auth.authenticator import ServiceToken, build_authenticator
from svc_kit.auth.control_keys import (
    ControlKeys,
    ControlProjects,
    control_key_lookup,
    control_project_lookup,
)
from svc_kit.certificates import ServerCertificate
from svc_kit.errors import Draining
from svc_kit.lifecycle import notify_systemd, stop_on_signals
from svc_kit.management import run_management
from svc_kit.metrics import HttpMetrics, MoveMetrics, ProcessMetrics
from svc_kit.network import Address, parse_address
from svc_kit.rpc.client import open_channel
from svc_kit.rpc.replica_channel import open_replica_channel
from svc_kit.settings.reloader import SettingsReloader, reloading_on_hangup
from svc_kit.tracing.setup import open_tracer

_log = logging.getLogger(__name__)

CHANNEL_OPTIONS = [("grpc.http2.lookahead_bytes", 64 * 1024)]
"""A small flow-control window, so that generation stops soon after a client stops reading."""
DESCRIPTION = "Local language models behind OpenAI's HTTP API."


@dataclass(frozen=True)
class Gateway:
    """The ASGI application and its long-lived parts."""

    app: ASGIApp
    api: FastAPI
    """The application without middleware, for its OpenAPI document."""
    active_calls: ActiveCalls
    registry: CollectorRegistry
    metrics: HttpMetrics
    readiness: Readiness
    host_check: HostCheck


@asynccontextmanager
async def build(settings: GatewaySettings) -> AsyncIterator[Gateway]:
    """Create a gateway; close its channels on exit. Raises StartupError."""
    token_file = settings.service_token_file
    token = None if token_file is None else ServiceToken.read(token_file)
    registry = CollectorRegistry()
    corral_version = version("corral")
    ProcessMetrics(registry, service="gateway", version=corral_version)
    async with (
        open_replica_channel(
            settings.inference_target,
            balancer=settings.inference_balancer,
            tls=settings.inference_tls,
            options=CHANNEL_OPTIONS,
            outlives_engines=True,
            metrics=MoveMetrics(registry),
        ) as inference_channel,
        open_channel(settings.control_target, tls=settings.control_tls) as control_channel,
        _stored_keys(settings, token) as (stored_keys, stored_projects),
        open_tracer(settings.tracing, "gateway") as tracer,
    ):
        # HTTP callers cannot authenticate with the service token.
        authenticator = build_authenticator(
            listen=settings.listen,
            keys=settings.keys,
            issuers=settings.issuers,
            allow_keyless=settings.allow_keyless,
            require_keys=settings.require_keys,
            stored_keys=stored_keys,
            check_project=None if stored_projects is None else stored_projects.check,
        )
        credentials, timeout_s = Credentials(token), settings.request_timeout_s
        inference = InferenceClient(inference_channel, credentials, timeout_s)
        active_calls = ActiveCalls()
        control = ControlClient(control_channel, credentials, timeout_s)
        context = AppContext(
            settings=settings,
            authentication=Authentication(authenticator),
            inference=inference,
            control=control,
            active_calls=active_calls,
            stored_files=StoredFileReader(active_calls),
            bodies=JsonBodies(
                settings.body_limit_bytes,
                settings.receive_timeout_s,
                LargeBodies(
                    max(settings.body_memory_bytes, 2 * settings.body_limit_bytes),
                    settings.receive_timeout_s,
                    settings.body_limit_bytes // 8,
                ),
            ),
            fingerprint=f"corral-{corral_version}",
        )
        api = build_api(context, corral_version)
        metrics = HttpMetrics(registry)
        draining = LastResponses(api, lambda: active_calls.closing)
        checked = HostCheck(AzurePaths(HeadRequests(draining)), _host_policy(settings))
        app = RequestMiddleware(
            checked,
            metrics,
            settings.max_requests,
            tracer=tracer,
            strict_parameters=settings.strict_parameters,
        )
        readiness = Readiness((inference, control), active_calls)
        yield Gateway(app, api, active_calls, registry, metrics, readiness, checked)


def _host_policy(settings: GatewaySettings) -> HostPolicy:
    return HostPolicy.create(
        parse_address(settings.listen).host, settings.allowed_hosts, settings.allowed_origins
    )


@asynccontextmanager
async def _stored_keys(
    settings: GatewaySettings, token: ServiceToken | None
) -> AsyncIterator[tuple[ControlKeys | None, ControlProjects | None]]:
    """The API keys and projects of the control service; None without a service token."""
    if token is None:
        yield None, None
        return
    tls = settings.control_tls
    async with open_channel(settings.control_target, token=token.secret, tls=tls) as channel:
        yield (
            ControlKeys(control_key_lookup(channel), cache_s=settings.key_cache_s),
            ControlProjects(control_project_lookup(channel), cache_s=settings.key_cache_s),
        )


class Endpoints(NamedTuple):
    """The addresses of a running gateway, with the actual ports, and its check of hosts."""

    http: Address
    management: Address | None
    host_check: HostCheck


@asynccontextmanager
async def running(settings: GatewaySettings) -> AsyncIterator[Endpoints]:
    """Run a gateway; drain it on exit. Raises StartupError.

    It first accepts requests for `drain_delay_s` more without being ready. Then it rejects new
    ones, and running responses get `drain_grace_s` to finish, before they end with an error.
    """
    configured = parse_address(settings.listen)
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(build(settings))
        certificate = None
        if settings.tls is not None:
            certificate = ServerCertificate(settings.tls, gateway.registry)
            stack.callback(asyncio.create_task(certificate.watch()).cancel)
        management = await stack.enter_async_context(
            run_management(settings.management_listen, gateway.registry, gateway.readiness.is_ready)
        )
        bound = bind(configured, settings.unread_limit_s)
        address = Address(configured.host, bound.getsockname()[1])
        listener = await stack.enter_async_context(
            run_listener(
                gateway.app,
                bound,
                certificate=certificate,
                grace_s=settings.drain_grace_s,
                limits=ConnectionLimits(
                    receive_timeout_s=settings.receive_timeout_s,
                    min_body_rate=settings.min_body_rate,
                    unread_limit_s=settings.unread_limit_s,
                    max_per_address=settings.max_connections_per_address,
                    closed=gateway.metrics.closed_connections,
                ),
                frame_bytes=settings.body_limit_bytes,
                trusted_proxies=settings.trusted_proxies,
            )
        )
        try:
            yield Endpoints(
                address, None if management is None else management.address, gateway.host_check
            )
        finally:
            await _drain(gateway.active_calls, listener, settings)


async def serve(settings: GatewaySettings, read_settings: Callable[[], GatewaySettings]) -> None:
    """Run a gateway until SIGTERM or SIGINT, then drain it. Raises StartupError."""
    stopping = stop_on_signals()
    async with running(settings) as endpoints, AsyncExitStack() as stack:

        async def apply_hosts(changed: GatewaySettings) -> None:
            endpoints.host_check.policy = _host_policy(changed)

        apply = dict.fromkeys(("allowed_hosts", "allowed_origins"), apply_hosts)
        reloader = SettingsReloader(settings, read_settings, apply)
        await stack.enter_async_context(reloading_on_hangup(reloader.reload))
        scheme = "http" if settings.tls is None else "https"
        _log.info("serving HTTP on %s://%s", scheme, endpoints.http)
        notify_systemd("READY=1")
        await stopping.wait()
        _log.info("draining")


async def _drain(active_calls: ActiveCalls, listener: Listener, settings: GatewaySettings) -> None:
    active_calls.announce_close()
    await asyncio.sleep(settings.drain_delay_s)
    # New connections are accepted until the end, and get 503 instead of no answer.
    active_calls.close()
    is_idle = await active_calls.wait_idle(settings.drain_grace_s)
    listener.stop_accepting()
    if not is_idle:
        _log.warning(
            "the shutdown grace period has ended; running responses are cancelled",
            extra={"fields": {"ended_answers": len(active_calls)}},
        )
        active_calls.stop_all(Draining())


def build_api(context: AppContext, corral_version: str) -> FastAPI:
    """Create the FastAPI application with all routes, /openapi.json and /docs."""
    api = FastAPI(
        title="Corral",
        version=corral_version,
        description=DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=EXCEPTION_HANDLERS,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    api.state.context = context
    for router in (
        completions.router,
        messages.router,
        message_batches.router,
        audio.router,
        embeddings.router,
        models.router,
        files.router,
        adapters.router,
        lora.router,
        admin.router,
        batches.router,
        responses.router,
        conversations.router,
        vector_stores.router,
        vector_store_files.router,
        vector_store_files.batches_router,
        assistants.router,
        runs.router,  # before threads.router, where "runs" would match {thread_id}
        threads.router,
        threads.messages_router,
        continuation.router,
        props.router,
        scores.router,
        tokenization.router,
        ollama_catalog.router,
        ollama_embeddings.router,
        ollama_generation.router,
        ollama_pull.router,
        page_router(),
    ):
        api.include_router(router)
    page = docs_page()

    @functools.cache
    def description() -> Response:
        return json_response(describe_api(api))

    @api.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return page

    @api.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return description()

    return api
