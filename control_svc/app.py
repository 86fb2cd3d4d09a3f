"""The composition of the control service: settings in, a running server out."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry

from control_svc.assembly.adapters import adapter_service
from control_svc.assembly.archives import archive_handlers, archives
from control_svc.assembly.batches import batch_handlers, batch_service
from control_svc.assembly.conversations import conversation_service
from control_svc.assembly.dispatching import dispatching
from control_svc.assembly.files import file_services
from control_svc.assembly.ground import Ground, data_folder, end, shared_secret
from control_svc.assembly.jobs import job_service
from control_svc.assembly.models import ModelParts
from control_svc.assembly.operators import operator_services
from control_svc.assembly.responses import response_parts
from control_svc.assembly.runs import run_handlers, run_service
from control_svc.assembly.streams import streaming
from control_svc.assembly.threads import thread_services
from control_svc.assembly.vectors import Vectors
from control_svc.clients.line_client import CHANNEL_OPTIONS
from control_svc.config import ControlSettings
from control_svc.domain.ids import IdSource
from control_svc.domain.listing import PageTokens
from control_svc.domain.ports import BlobStore, Clock
from control_svc.memory import keep_large_blocks
from control_svc.storage import migrating
from control_svc.storage.blob_stores import open_blobs
from control_svc.storage.database import Database, open_database
from control_svc.storage.s3_blobs import Credentials
from control_svc.usecases.dispatching import Dispatcher
from control_svc.usecases.keys import Keys
from control_svc.usecases.sweeping import Sweeper
from control_svc.usecases.working import JobHandler
from svc_kit.auth import Authenticator, ServiceToken, build_authenticator
from svc_kit.management import ManagementServer
from svc_kit.metrics import JobMetrics, ProcessMetrics, StreamMetrics
from svc_kit.rpc_client import ClientTls, open_channel
from svc_kit.rpc_server import RpcServer, Service
from svc_kit.sandbox.jobs import JobRunner
from svc_kit.sandbox.pool import SandboxPool, SandboxSettings
from svc_kit.signals import stop_on_signals

log = logging.getLogger(__name__)

_PAGE_TOKEN_KEY_BYTES: Final = 32
_INSTALLATION_BYTES: Final = 16
SANDBOX = SandboxSettings(warm=0, most=2)
"""Adapters are registered now and then: no child waits for the next one."""


def utc_now() -> datetime:
    """The clock of the service."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Control:
    """The running service."""

    server: RpcServer
    sweeper: Sweeper
    dispatcher: Dispatcher
    management: ManagementServer | None


@asynccontextmanager
async def build(
    settings: ControlSettings,
    *,
    blobs: BlobStore | None = None,
    clock: Clock | None = None,
    handlers: Sequence[JobHandler] = (),
    sandbox: JobRunner | None = None,
    model: ModelParts | None = None,
) -> AsyncIterator[Control]:
    """Open everything in order and close it in reverse. Raises StartupError.

    `blobs` is the store of the settings unless given; `clock` stands in for this process's and for
    the database's; `handlers` do kinds of jobs beside the service's own; `sandbox`
    stands in for the limited child processes; `model` for the inference service.
    """
    registry = CollectorRegistry()
    ProcessMetrics(registry, service="control", version=version("corral"))
    async with AsyncExitStack() as stack:
        ground = await stack.enter_async_context(
            _ground(settings, registry, blobs=blobs, clock=clock, sandbox=sandbox)
        )
        vectors = Vectors(ground)
        responses = await response_parts(ground, vectors.search, model)
        keys = Keys(ground.transactions, ground.ids, ground.tokens, ground.clock)
        authenticator = _authenticator(settings, keys)
        services = [
            *file_services(ground),
            batch_service(ground),
            conversation_service(ground),
            responses.service,
            *thread_services(ground),
            run_service(ground),
            *await operator_services(ground, keys, authenticator),
            adapter_service(ground),
            job_service(ground),
            *vectors.services(),
        ]
        server = _server(settings, registry, authenticator, services)
        await server.start()
        stack.push_async_callback(server.drain, 0)
        management = await _management(settings, registry, server)
        if management is not None:
            stack.push_async_callback(management.close)
        works: list[JobHandler] = [
            *batch_handlers(ground, responses.lines.answer),
            vectors.handler(),
            *run_handlers(ground, vectors.search, model),
            responses.handler,
            *archive_handlers(ground),
            *handlers,
        ]
        dispatcher = await stack.enter_async_context(
            dispatching(ground, works, JobMetrics(registry))
        )
        sweeper = _sweeper(ground)
        sweeping = asyncio.create_task(sweeper.run(settings.sweep_interval_s))
        stack.push_async_callback(end, sweeping)
        server.set_serving(True)
        yield Control(server, sweeper, dispatcher, management)


async def serve(settings: ControlSettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises StartupError."""
    keep_large_blocks()
    stopping = stop_on_signals()
    async with build(settings) as control:
        await stopping.wait()
        log.info("draining")
        control.dispatcher.stop()
        await control.server.drain()


@asynccontextmanager
async def _ground(
    settings: ControlSettings,
    registry: CollectorRegistry,
    *,
    blobs: BlobStore | None,
    clock: Clock | None,
    sandbox: JobRunner | None,
) -> AsyncIterator[Ground]:
    """What all parts stand on, open."""
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(_database(settings, clock))
        await _prepare_schema(database, settings)
        clock = clock or utc_now
        if sandbox is None:
            sandbox = await stack.enter_async_context(SandboxPool(SANDBOX))
        token_file = settings.service_token_file
        yield Ground(
            settings=settings,
            database=database,
            blobs=blobs or await _blobs(settings, database),
            sandbox=sandbox,
            streams=await stack.enter_async_context(
                streaming(settings, database, StreamMetrics(registry))
            ),
            inference=await stack.enter_async_context(
                open_channel(
                    settings.inference_target,
                    tls=ClientTls.of(settings.inference_tls),
                    options=CHANNEL_OPTIONS,
                )
            ),
            token=None if token_file is None else ServiceToken.read(token_file),
            ids=IdSource(clock),
            tokens=PageTokens(
                await shared_secret(database, "page_token_key", _PAGE_TOKEN_KEY_BYTES)
            ),
            clock=clock,
        )


def _sweeper(ground: Ground) -> Sweeper:
    grace = timedelta(seconds=2 * ground.settings.server.max_deadline_s)
    kept_for = timedelta(seconds=ground.settings.streams.keep_s)
    return Sweeper(
        ground.transactions, ground.blobs, ground.clock, grace, kept_for, archives(ground)
    )


async def upgrade_database(settings: ControlSettings) -> str:
    """Bring the database to this release's schema; its revision. Raises StartupError."""
    async with _database(settings) as database:
        await migrating.upgrade(database.migrator)
    return migrating.head()


async def check_database(settings: ControlSettings) -> str:
    """The revision of the database, which is this release's. Raises StartupError otherwise."""
    async with _database(settings) as database:
        await migrating.check(database.writer)
    return migrating.head()


def _database(
    settings: ControlSettings, clock: Clock | None = None
) -> AbstractAsyncContextManager[Database]:
    url = settings.database_url
    folder = data_folder(settings)
    return open_database(None if url is None else url.get_secret_value(), folder, clock)


async def _prepare_schema(database: Database, settings: ControlSettings) -> None:
    wanted = settings.auto_migrate
    if not database.is_shared if wanted is None else wanted:
        await migrating.upgrade(database.migrator)
    await migrating.check_revision(database.writer)


async def _blobs(settings: ControlSettings, database: Database) -> BlobStore:
    """The store of bytes, which is this database's and no other's."""
    installation = await shared_secret(database, "installation", _INSTALLATION_BYTES)
    credentials = Credentials(settings.blobs_access_key_id, settings.blobs_secret_access_key)
    folder = data_folder(settings) / "blobs"
    return await open_blobs(settings.blobs_url, credentials, folder, installation.hex())


def _authenticator(settings: ControlSettings, keys: Keys) -> Authenticator:
    return build_authenticator(
        listen=settings.listen,
        keys=settings.keys,
        allow_keyless=settings.allow_keyless,
        require_keys=settings.require_keys,
        service_token_file=settings.service_token_file,
        stored_keys=keys,
    )


def _server(
    settings: ControlSettings,
    registry: CollectorRegistry,
    authenticator: Authenticator,
    services: Sequence[Service],
) -> RpcServer:
    return RpcServer(
        services,
        listen=settings.listen,
        authenticator=authenticator,
        registry=registry,
        settings=settings.server,
        tls=settings.tls,
    )


async def _management(
    settings: ControlSettings, registry: CollectorRegistry, server: RpcServer
) -> ManagementServer | None:
    if settings.management_listen is None:
        return None
    management = ManagementServer(
        listen=settings.management_listen, registry=registry, is_ready=lambda: server.is_serving
    )
    await management.start()
    return management
