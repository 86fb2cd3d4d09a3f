"""Composes and runs the control service."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry

from control_svc.audit.log import AuditLog
from control_svc.audit.syslog import send_to_syslog
from control_svc.base.ids import IdSource
from control_svc.base.pagination import PageTokens
from control_svc.base.resource import build_service
from control_svc.batches.lines import LineRunner
from control_svc.blobs.last_backup import follow_backups
from control_svc.blobs.store import BlobStore
from control_svc.config import ControlSettings
from control_svc.core import (
    INSTALLATION,
    Core,
    Slice,
    blob_location,
    cancel_and_wait,
    data_folder,
    database_url,
    open_blobs,
    open_streams,
    shared_secret,
)
from control_svc.db import migrations
from control_svc.db.documents import convert_documents
from control_svc.db.engine import Database, open_database
from control_svc.db.transaction import Clock
from control_svc.inference.slice import ModelParts
from control_svc.jobs.dispatcher import Dispatcher, JobGauges
from control_svc.jobs.handler import JobHandler
from control_svc.jobs.heartbeat import renew_leases
from control_svc.jobs.leases import Leases, LeaseTerms
from control_svc.jobs.service import Jobs
from control_svc.projects.keys import Keys
from control_svc.projects.prices import Prices
from control_svc.slices import BLOB_COLUMNS, build_slices
from control_svc.sweeper import Sweeper
from control_svc.vector_stores.search.pgvector import add_vector_column
from svc_kit.auth.authenticator import Authenticator, ServiceToken, build_authenticator
from svc_kit.lifecycle import notify_systemd, stop_on_signals
from svc_kit.management import ManagementServer, run_management
from svc_kit.metrics import BackupMetrics, JobMetrics, MoveMetrics, ProcessMetrics, StreamMetrics
from svc_kit.rpc.client import WINDOW_BYTES
from svc_kit.rpc.replica_channel import open_replica_channel
from svc_kit.rpc.server import RpcServer, Service
from svc_kit.sandbox.jobs import JobRunner
from svc_kit.sandbox.pool import SandboxPool, SandboxSettings
from svc_kit.settings.reloader import SettingsReloader, reloading_on_hangup
from svc_kit.tracing.setup import open_tracer
from svc_kit.tracing.span import Tracer

log = logging.getLogger(__name__)
_PAGE_TOKEN_KEY_BYTES: Final = 32
_INSTALLATION_BYTES: Final = 16
SANDBOX = SandboxSettings(min_children=0, max_children=3)
"""No idle children, since adapters are registered rarely."""


def utc_now() -> datetime:
    """The current time."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Control:
    slices: Sequence[Slice]
    server: RpcServer
    sweeper: Sweeper
    dispatcher: Dispatcher
    prices: Prices
    management: ManagementServer | None


@asynccontextmanager
async def build(
    settings: ControlSettings,
    *,
    blobs: BlobStore | None = None,
    clock: Clock | None = None,
    process_clock: Clock = utc_now,
    handlers: Sequence[JobHandler] = (),
    sandbox: JobRunner | None = None,
    model: ModelParts | None = None,
    lines: LineRunner | None = None,
) -> AsyncIterator[Control]:
    """Run the service while the context is open. Raises StartupError.

    The optional arguments replace what the settings describe: `blobs` the blob store, `clock` the
    clocks of this process and of the database, `process_clock` that of this process alone,
    `sandbox` the child processes, `model` the inference service, and `lines` the inference service
    in batches. `handlers` are additional job handlers.
    """
    registry = CollectorRegistry()
    ProcessMetrics(
        registry,
        service="control",
        version=version("corral"),
        data_folder=data_folder(settings),
    )
    async with AsyncExitStack() as stack:
        tracer = await stack.enter_async_context(open_tracer(settings.tracing, "control"))
        core = await stack.enter_async_context(
            _open_core(
                settings,
                registry,
                blobs=blobs,
                clock=clock,
                process_clock=process_clock,
                sandbox=sandbox,
            )
        )
        keys = Keys(core.across_projects, core.ids, core.tokens, core.clock)
        authenticator, prices = _authenticator(settings, keys), Prices(settings.prices)
        slices = await build_slices(
            core, keys, prices, model, lines, serves_keyless=authenticator.serves_keyless
        )
        retries = {kind: retry for each in slices for kind, retry in each.retries.items()}
        audit = AuditLog(core.across_projects, core.tokens)
        servicers = [
            *(servicer for each in slices for servicer in each.servicers),
            audit,
            Jobs(core.across_projects, core.tokens, retries),
        ]
        services = [build_service(each) for each in servicers]
        stack.enter_context(send_to_syslog(settings.audit_syslog))
        server = _server(settings, registry, authenticator, services, tracer, audit)
        await server.start()
        stack.push_async_callback(server.drain, 0)
        management = await stack.enter_async_context(
            run_management(settings.management_listen, registry, server.is_ready)
        )
        all_handlers = [*(handler for each in slices for handler in each.handlers), *handlers]
        dispatcher = await stack.enter_async_context(
            run_dispatcher(core, all_handlers, JobMetrics(registry), tracer)
        )
        backups = asyncio.create_task(follow_backups(core.blobs, BackupMetrics(registry)))
        stack.push_async_callback(cancel_and_wait, backups)
        sweeper = _sweeper(core, slices)
        sweeper_task = asyncio.create_task(sweeper.run(settings.sweep_interval_s))
        stack.push_async_callback(cancel_and_wait, sweeper_task)
        conversion = convert_documents(core.across_projects, settings.sweep_interval_s)
        stack.push_async_callback(cancel_and_wait, asyncio.create_task(conversion))
        server.set_serving(True)
        yield Control(slices, server, sweeper, dispatcher, prices, management)


async def serve(
    settings: ControlSettings,
    read_settings: Callable[[], ControlSettings],
    *,
    process_clock: Clock = utc_now,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises StartupError."""
    stopping = stop_on_signals()
    async with build(settings, process_clock=process_clock) as control, AsyncExitStack() as stack:

        async def apply_prices(changed: ControlSettings) -> None:
            control.prices.replace(changed.prices)

        reloader = SettingsReloader(settings, read_settings, {"prices": apply_prices})
        await stack.enter_async_context(reloading_on_hangup(reloader.reload))
        notify_systemd("READY=1")
        await stopping.wait()
        log.info("draining")
        control.dispatcher.stop()
        await control.server.drain()


@asynccontextmanager
async def _open_core(
    settings: ControlSettings,
    registry: CollectorRegistry,
    *,
    blobs: BlobStore | None,
    clock: Clock | None,
    process_clock: Clock,
    sandbox: JobRunner | None,
) -> AsyncIterator[Core]:
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(_database(settings, clock))
        await _prepare_schema(database, settings)
        clock = clock or process_clock
        if sandbox is None:
            sandbox = await stack.enter_async_context(SandboxPool(SANDBOX))
        token_file = settings.service_token_file
        blobs = blobs or await _blobs(settings, database)
        yield Core(
            settings=settings,
            database=database,
            blobs=blobs,
            sandbox=sandbox,
            streams=await stack.enter_async_context(
                open_streams(settings, database, StreamMetrics(registry))
            ),
            inference=await stack.enter_async_context(
                open_replica_channel(
                    settings.inference_target,
                    balancer=settings.inference_balancer,
                    tls=settings.inference_tls,
                    outlives_engines=False,  # batches count how often an engine died on a line
                    metrics=MoveMetrics(registry),
                )
            ),
            token=None if token_file is None else ServiceToken.read(token_file),
            ids=IdSource(clock),
            tokens=PageTokens(
                await shared_secret(database, "page_token_key", _PAGE_TOKEN_KEY_BYTES)
            ),
            clock=clock,
        )


def _sweeper(core: Core, slices: Sequence[Slice]) -> Sweeper:
    grace = timedelta(seconds=2 * core.settings.server.max_deadline_s)
    steps = [step for each in slices for step in each.cleanup]
    return Sweeper(core.across_projects, core.blobs, core.clock, grace, steps, BLOB_COLUMNS)


async def upgrade_database(settings: ControlSettings) -> str:
    """Upgrade the database and return its revision. Raises StartupError."""
    async with _database(settings) as database:
        await _upgrade(database)
    return migrations.head()


async def _upgrade(database: Database) -> None:
    await migrations.upgrade(database.migrator)
    await add_vector_column(database.migrator)


async def check_database(settings: ControlSettings) -> str:
    """Return the revision of the database. Raises StartupError unless it is this release's."""
    async with _database(settings) as database:
        await migrations.check(database.writer)
    return migrations.head()


def _database(
    settings: ControlSettings, clock: Clock | None = None
) -> AbstractAsyncContextManager[Database]:
    return open_database(database_url(settings), data_folder(settings), clock)


async def _prepare_schema(database: Database, settings: ControlSettings) -> None:
    auto_migrate = settings.auto_migrate
    if auto_migrate is None:
        auto_migrate = not database.is_shared
    if auto_migrate:
        await _upgrade(database)
    await migrations.check_revision(database.writer)


async def _blobs(settings: ControlSettings, database: Database) -> BlobStore:
    installation = await shared_secret(database, INSTALLATION, _INSTALLATION_BYTES)
    return await open_blobs(*blob_location(settings), installation.hex())


def _authenticator(settings: ControlSettings, keys: Keys) -> Authenticator:
    return build_authenticator(
        listen=settings.listen,
        keys=settings.keys,
        issuers=settings.issuers,
        allow_keyless=settings.allow_keyless,
        require_keys=settings.require_keys,
        service_token_file=settings.service_token_file,
        stored_keys=keys,
        check_project=keys.check_project,
    )


def _server(
    settings: ControlSettings,
    registry: CollectorRegistry,
    authenticator: Authenticator,
    services: Sequence[Service],
    tracer: Tracer,
    audit: AuditLog,
) -> RpcServer:
    return RpcServer(
        services,
        listen=settings.listen,
        authenticator=authenticator,
        registry=registry,
        settings=settings.server,
        tls=settings.tls,
        window_bytes=WINDOW_BYTES,
        tracer=tracer,
        record_call=audit.record_refusal,
    )


_COUNT_INTERVAL_S: Final = 10.0


@asynccontextmanager
async def run_dispatcher(
    core: Core,
    handlers: Sequence[JobHandler],
    metrics: JobMetrics,
    tracer: Tracer | None = None,
) -> AsyncIterator[Dispatcher]:
    """Run the dispatcher while the context is open; release running jobs at the end."""
    limits, database = core.settings.jobs, core.database
    terms = LeaseTerms(
        owner=f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(4)}",
        lease=timedelta(seconds=limits.lease_s),
        is_exclusive=not database.is_shared,
    )
    dead_letter_handlers = {handler.kind: handler for handler in handlers}
    leases = Leases(core.across_projects, dead_letter_handlers, terms)
    dispatcher = Dispatcher(leases, core.notifications, handlers, metrics, tracer=tracer)
    gauges = JobGauges(core.across_projects, metrics)
    with renew_leases(database, terms.owner, terms.lease):
        gauges_task = asyncio.create_task(gauges.run(_COUNT_INTERVAL_S))
        dispatcher_task = asyncio.create_task(dispatcher.run(limits.poll_interval_s))
        try:
            yield dispatcher
        finally:
            dispatcher.stop()
            await dispatcher_task
            await cancel_and_wait(gauges_task)
