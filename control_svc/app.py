"""The composition of the control service: settings in, a running server out."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from corral.control.v1 import (
    adapter_service_pb2_grpc,
    batch_service_pb2_grpc,
    file_service_pb2_grpc,
    key_service_pb2_grpc,
    project_service_pb2_grpc,
    upload_service_pb2_grpc,
    usage_service_pb2_grpc,
)
from prometheus_client import CollectorRegistry

from control_svc.api.adapter_service import AdapterServicer
from control_svc.api.batch_service import BatchServicer
from control_svc.api.file_service import FileServicer
from control_svc.api.key_service import KeyServicer
from control_svc.api.project_service import ProjectServicer
from control_svc.api.upload_service import UploadServicer
from control_svc.api.usage_service import UsageServicer
from control_svc.clients.line_client import CHANNEL_OPTIONS, LineClient
from control_svc.config import ControlSettings
from control_svc.domain.batch_lines import LineLimits
from control_svc.domain.files import FileLimits
from control_svc.domain.ids import IdSource
from control_svc.domain.listing import PageTokens
from control_svc.domain.ports import BlobStore, Clock, Transactions
from control_svc.memory import keep_large_blocks
from control_svc.storage import migrating
from control_svc.storage.blob_stores import open_blobs
from control_svc.storage.database import Database, open_database
from control_svc.storage.s3_blobs import Credentials
from control_svc.usecases.adapter_bytes import AdapterBytes
from control_svc.usecases.adapters import Adapters
from control_svc.usecases.batch_places import Places
from control_svc.usecases.batch_reading import BatchReader
from control_svc.usecases.batch_running import BatchRunner
from control_svc.usecases.batch_work import BatchHandler
from control_svc.usecases.batch_writing import BatchWriter
from control_svc.usecases.batches import Batches
from control_svc.usecases.counting import JobGauges
from control_svc.usecases.desired import Desired
from control_svc.usecases.dispatching import Dispatcher
from control_svc.usecases.files import Files
from control_svc.usecases.keys import Keys
from control_svc.usecases.leasing import Leases, LeaseTerms
from control_svc.usecases.projects import Projects
from control_svc.usecases.sweeping import Sweeper
from control_svc.usecases.uploads import Uploads
from control_svc.usecases.usage import Usage
from control_svc.usecases.working import JobHandler
from svc_kit.auth import Authenticator, ServiceToken, build_authenticator
from svc_kit.errors import DomainError
from svc_kit.folders import AllowedFolders
from svc_kit.management import ManagementServer
from svc_kit.rpc_client import ClientTls, open_channel
from svc_kit.rpc_server import RpcServer, Service
from svc_kit.sandbox.jobs import JobRunner
from svc_kit.sandbox.pool import SandboxPool, SandboxSettings
from svc_kit.signals import stop_on_signals
from svc_kit.startup import StartupError
from svc_kit.telemetry import JobMetrics, ProcessMetrics

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_PAGE_TOKEN_KEY_BYTES = 32
_INSTALLATION_BYTES = 16
_COUNT_INTERVAL_S = 10.0
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
) -> AsyncIterator[Control]:
    """Open everything in order and close it in reverse. Raises StartupError.

    `blobs` is the store of the settings unless given; `clock` stands in for this process's and for
    the database's; `handlers` do kinds of jobs beside the service's own; `sandbox`
    stands in for the limited child processes.
    """
    registry = CollectorRegistry()
    ProcessMetrics(registry, service="control", version=version("corral"))
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(_database(settings, clock))
        clock = clock or utc_now
        await _prepare_schema(database, settings)
        store = blobs or await _blobs(settings, database)
        grace = timedelta(seconds=2 * settings.server.max_deadline_s)
        sweeper = Sweeper(database.transactions, store, clock, grace)
        ids = IdSource(clock)
        tokens = PageTokens(await _secret(database, "page_token_key", _PAGE_TOKEN_KEY_BYTES))
        keys = Keys(database.transactions, ids, tokens, clock)
        authenticator = _authenticator(settings, keys)
        if sandbox is None:
            sandbox = await stack.enter_async_context(SandboxPool(SANDBOX))
        services = [
            *_file_services(settings, database.transactions, store, ids, tokens, clock),
            _batch_service(settings, database, ids, tokens, clock),
            *await _operator_services(database.transactions, keys, authenticator, tokens, clock),
            _adapter_service(settings, database, store, sandbox, ids, tokens, clock),
        ]
        server = _server(settings, registry, authenticator, services)
        await server.start()
        stack.push_async_callback(server.drain, 0)
        management = await _management(settings, registry, server)
        if management is not None:
            stack.push_async_callback(management.close)
        lines = await stack.enter_async_context(_line_client(settings))
        batches = _batch_handler(settings, database, store, lines, clock)
        dispatcher = await stack.enter_async_context(
            _dispatching(settings, database, [batches, *handlers], JobMetrics(registry))
        )
        sweeping = asyncio.create_task(sweeper.run(settings.sweep_interval_s))
        stack.push_async_callback(_end, sweeping)
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
async def _line_client(settings: ControlSettings) -> AsyncIterator[LineClient]:
    """The inference service, for batches; it need not be there."""
    token_file = settings.service_token_file
    async with open_channel(
        settings.inference_target,
        tls=ClientTls.of(settings.inference_tls),
        options=CHANNEL_OPTIONS,
    ) as channel:
        yield LineClient(
            channel,
            None if token_file is None else ServiceToken.read(token_file),
            fingerprint=f"corral-{version('corral')}",
            timeout_s=settings.batches.line_timeout_s,
        )


def _batch_handler(
    settings: ControlSettings, database: Database, blobs: BlobStore, lines: LineClient, clock: Clock
) -> BatchHandler:
    """What does the jobs of batches."""
    bounds, transactions = settings.batches, database.transactions
    limits = LineLimits(bounds.lines, bounds.line_bytes, bounds.embedding_inputs)
    ids = IdSource(clock)
    return BatchHandler(
        BatchReader(transactions, blobs, limits),
        BatchRunner(transactions, lines, Places(bounds.lines_at_once)),
        BatchWriter(transactions, blobs, ids, clock),
        ids,
        bounds.batches_at_once,
    )


@asynccontextmanager
async def _dispatching(
    settings: ControlSettings,
    database: Database,
    handlers: Sequence[JobHandler],
    metrics: JobMetrics,
) -> AsyncIterator[Dispatcher]:
    """A dispatcher at work; what it works on is given back at the end."""
    bounds = settings.jobs
    terms = LeaseTerms(
        owner=f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(4)}",
        lease=timedelta(seconds=bounds.lease_s),
        is_alone=not database.is_shared,
    )
    undertakers = {handler.kind: handler for handler in handlers}
    leases = Leases(database.transactions, undertakers, terms)
    dispatcher = Dispatcher(leases, database.notices, handlers, metrics)
    gauges = JobGauges(database.transactions, metrics)
    with database.beating(terms.owner, terms.lease):
        counting = asyncio.create_task(gauges.run(_COUNT_INTERVAL_S))
        working = asyncio.create_task(dispatcher.run(bounds.poll_interval_s))
        try:
            yield dispatcher
        finally:
            dispatcher.stop()
            await working
            await _end(counting)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


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
    folder = _folder(settings)
    return open_database(None if url is None else url.get_secret_value(), folder, clock)


def _folder(settings: ControlSettings) -> Path:
    return settings.data_dir / "control"


async def _prepare_schema(database: Database, settings: ControlSettings) -> None:
    wanted = settings.auto_migrate
    if not database.is_shared if wanted is None else wanted:
        await migrating.upgrade(database.migrator)
    await migrating.check_revision(database.writer)


async def _blobs(settings: ControlSettings, database: Database) -> BlobStore:
    """The store of bytes, which is this database's and no other's."""
    installation = await _secret(database, "installation", _INSTALLATION_BYTES)
    credentials = Credentials(settings.blobs_access_key_id, settings.blobs_secret_access_key)
    folder = _folder(settings) / "blobs"
    return await open_blobs(settings.blobs_url, credentials, folder, installation.hex())


def _batch_service(
    settings: ControlSettings, database: Database, ids: IdSource, tokens: PageTokens, clock: Clock
) -> Service:
    interval_s = settings.jobs.poll_interval_s
    batches = Batches(database.transactions, database.notices, ids, tokens, clock, interval_s)
    return Service(
        batch_service_pb2_grpc.add_BatchServiceServicer_to_server,
        BatchServicer(batches),
        "corral.control.v1.BatchService",
    )


def _file_services(
    settings: ControlSettings,
    transactions: Transactions,
    blobs: BlobStore,
    ids: IdSource,
    tokens: PageTokens,
    clock: Clock,
) -> list[Service]:
    bounds = settings.files
    files = Files(
        transactions,
        blobs,
        ids,
        tokens,
        FileLimits(bounds.file_bytes, bounds.batch_bytes),
        clock,
    )
    uploads = Uploads(
        transactions,
        blobs,
        ids,
        FileLimits(bounds.upload_bytes, bounds.batch_bytes),
        bounds.part_bytes,
        clock,
    )
    return [
        Service(
            file_service_pb2_grpc.add_FileServiceServicer_to_server,
            FileServicer(files),
            "corral.control.v1.FileService",
        ),
        Service(
            upload_service_pb2_grpc.add_UploadServiceServicer_to_server,
            UploadServicer(uploads),
            "corral.control.v1.UploadService",
        ),
    ]


async def _operator_services(
    transactions: Transactions,
    keys: Keys,
    authenticator: Authenticator,
    tokens: PageTokens,
    clock: Clock,
) -> list[Service]:
    """What operators look after. Raises StartupError."""
    projects = Projects(transactions, tokens, clock)
    await _or_no_start(projects.prepare())
    return [
        Service(
            project_service_pb2_grpc.add_ProjectServiceServicer_to_server,
            ProjectServicer(projects),
            "corral.control.v1.ProjectService",
        ),
        Service(
            key_service_pb2_grpc.add_KeyServiceServicer_to_server,
            KeyServicer(keys, serves_keyless=authenticator.serves_keyless),
            "corral.control.v1.KeyService",
        ),
        Service(
            usage_service_pb2_grpc.add_UsageServiceServicer_to_server,
            UsageServicer(Usage(transactions, tokens, clock)),
            "corral.control.v1.UsageService",
        ),
    ]


def _adapter_service(
    settings: ControlSettings,
    database: Database,
    blobs: BlobStore,
    sandbox: JobRunner,
    ids: IdSource,
    tokens: PageTokens,
    clock: Clock,
) -> Service:
    transactions, bounds, notices = database.transactions, settings.adapters, database.notices
    source = AdapterBytes(
        transactions,
        blobs,
        sandbox,
        AllowedFolders([*settings.adapter_folders, settings.data_dir / "adapters"]),
        scratch=_folder(settings),
        limit=bounds.file_bytes,
        clock=clock,
    )
    adapters = Adapters(
        transactions, blobs, source, ids, tokens, bounds.per_project, notices, clock
    )
    desired = Desired(transactions, blobs, notices)
    return Service(
        adapter_service_pb2_grpc.add_AdapterServiceServicer_to_server,
        AdapterServicer(adapters, desired, clock),
        "corral.control.v1.AdapterService",
    )


async def _secret(database: Database, name: str, num_bytes: int) -> bytes:
    """What all processes on a database share, made by the first of them."""
    candidate = secrets.token_bytes(num_bytes)
    return await _or_no_start(
        database.transactions.write(
            lambda repositories: repositories.housekeeping.secret(name, candidate)
        )
    )


async def _or_no_start(work: Awaitable[ResultT]) -> ResultT:
    """Work without which the service cannot start. Raises StartupError."""
    try:
        return await work
    except DomainError as error:
        raise StartupError(error.message) from error


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
