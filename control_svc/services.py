"""Builds the services and job handlers of the slices."""

import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property, partial
from importlib.metadata import version
from typing import Final, NamedTuple

from control_svc.adapters.ingest import AdapterBytes
from control_svc.adapters.service import Adapters
from control_svc.adapters.servicer import AdapterServicer
from control_svc.adapters.sync import AdapterSync
from control_svc.agent.loop import AgentLoop
from control_svc.agent.mcp import McpServers, NoMcpServers
from control_svc.assistants.assistants import Assistants
from control_svc.assistants.messages import MessageAdder, Messages
from control_svc.assistants.servicers import AssistantServicer, MessageServicer, ThreadServicer
from control_svc.assistants.threads import Threads
from control_svc.audit.log import AuditLog
from control_svc.audit.servicer import AuditServicer
from control_svc.batches import service
from control_svc.batches.concurrency import AdaptiveConcurrency
from control_svc.batches.executor import BatchRunner
from control_svc.batches.input_file import BatchReader
from control_svc.batches.line_client import LineClient, ResponseRunner
from control_svc.batches.lines import LineLimits, LineRunner
from control_svc.batches.output import BatchWriter
from control_svc.batches.service import CLOSING_KIND, KIND, Batches
from control_svc.batches.servicer import BatchServicer
from control_svc.batches.worker import BatchHandler, retry_batch
from control_svc.config import McpServerSettings
from control_svc.conversations.service import Conversations
from control_svc.conversations.servicer import ConversationServicer
from control_svc.deps import (
    SEAL_KEY,
    Deps,
    ModelParts,
    build_prefix_cleanup,
    data_folder,
    model_parts,
    require_for_start,
    shared_secret,
)
from control_svc.files.model import FileLimits
from control_svc.files.service import Files
from control_svc.files.servicers import (
    MAX_PROJECT_TRANSFERS,
    MAX_TRANSFERS,
    FileServicer,
    UploadServicer,
)
from control_svc.files.uploads import Uploads
from control_svc.inference import prefix_cleanup
from control_svc.inference.embeddings import EmbeddingClient
from control_svc.inference.models import RpcModels
from control_svc.inference.prefix_cleanup import PrefixCleanupWorker, RpcDiskPrefixCache
from control_svc.jobs.handler import JobHandler, retry_from_start
from control_svc.jobs.service import Jobs, Retry
from control_svc.jobs.servicer import JobServicer
from control_svc.limits.buckets import RateLimits
from control_svc.limits.service import Limits
from control_svc.limits.servicer import LimitServicer, limits_to_add
from control_svc.projects.keys import Keys
from control_svc.projects.prices import Prices
from control_svc.projects.projects import Projects
from control_svc.projects.servicers import KeyServicer, ProjectServicer, UsageServicer
from control_svc.projects.usage import Usage
from control_svc.responses import worker as responses_worker
from control_svc.responses.compaction import AutoCompaction, Compactor
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.context import ResponseFactory
from control_svc.responses.ephemeral import EphemeralResponses
from control_svc.responses.response_retry import retry_response
from control_svc.responses.service import Responses
from control_svc.responses.servicer import ResponseLines, ResponseServicer
from control_svc.responses.tools import McpPreparer, ResponseTools
from control_svc.responses.worker import ResponseWorker
from control_svc.runs import worker as runs_worker
from control_svc.runs.queries import delete_streams_of_thread
from control_svc.runs.run_retry import retry_run
from control_svc.runs.service import Runs
from control_svc.runs.servicer import RunServicer
from control_svc.runs.transitions import EXPIRY_KIND, RunExpiry, retry_expiry
from control_svc.runs.worker import RunWorker
from control_svc.tools.file_search_resources import ToolStores
from control_svc.vector_stores import membership
from control_svc.vector_stores.files import VectorFiles
from control_svc.vector_stores.ingest.extraction_job import TextExtractor
from control_svc.vector_stores.ingest.worker import IngestHandler
from control_svc.vector_stores.membership import FileAdder, remove_file_from_stores, retry_file
from control_svc.vector_stores.search.model import Search
from control_svc.vector_stores.search.service import VectorSearch
from control_svc.vector_stores.search.vector_index import VectorIndex
from control_svc.vector_stores.service import VectorStores
from control_svc.vector_stores.servicers import VectorStoreFileServicer, VectorStoreServicer
from svc_kit.auth.authenticator import Authenticator
from svc_kit.encryption import KEY_BYTES, Sealer
from svc_kit.fair_semaphore import FairSemaphore
from svc_kit.local_files import AllowedFolders
from svc_kit.rpc.server import Service


def _service(servicer: object) -> Service:
    """Wrap a servicer; its generated base class has the name of the service."""
    base = type(servicer).__bases__[0]
    add = getattr(sys.modules[base.__module__], f"add_{base.__name__}_to_server")
    return Service(add, servicer, f"corral.control.v1.{base.__name__.removesuffix('Servicer')}")


def file_services(deps: Deps) -> list[Service]:
    """Build the services of files and uploads."""
    bounds = deps.settings.files
    files = Files(
        deps.transactions,
        deps.blobs,
        deps.ids,
        deps.tokens,
        FileLimits(bounds.file_bytes, bounds.batch_bytes),
        deps.clock,
        on_delete=[remove_file_from_stores],
    )
    uploads = Uploads(
        deps.transactions,
        deps.blobs,
        deps.ids,
        FileLimits(bounds.upload_bytes, bounds.batch_bytes),
        bounds.part_bytes,
        deps.clock,
    )
    transfers = FairSemaphore(MAX_TRANSFERS, client_limit=MAX_PROJECT_TRANSFERS)
    return [
        _service(FileServicer(files, transfers)),
        _service(UploadServicer(uploads, transfers)),
    ]


def adapter_service(deps: Deps) -> Service:
    """Build the registry of adapters, with which inference frontends synchronize."""
    settings = deps.settings
    source = AdapterBytes(
        deps.transactions,
        deps.blobs,
        deps.sandbox,
        AllowedFolders([*settings.adapter_folders, settings.data_dir / "adapters"]),
        scratch=data_folder(settings),
        limit=settings.adapters.file_bytes,
        clock=deps.clock,
    )
    adapters = Adapters(
        deps.transactions,
        deps.blobs,
        source,
        deps.ids,
        deps.tokens,
        settings.adapters.per_project,
        deps.notifications,
        deps.clock,
        RpcModels(deps.inference, deps.token).check_free,
    )
    desired = AdapterSync(deps.across_projects, deps.blobs, deps.notifications)
    return _service(AdapterServicer(adapters, desired, deps.clock))


def archive_handlers(deps: Deps) -> Sequence[JobHandler]:
    """Build the handler that deletes stored prefixes, if there is a service token."""
    if deps.token is None:
        return []
    return [PrefixCleanupWorker(RpcDiskPrefixCache(deps.inference, deps.token))]


_CLOSING_AT_ONCE: Final = 2


def batch_service(deps: Deps) -> Service:
    """Build the service of batches."""
    batches = Batches(
        deps.transactions,
        deps.notifications,
        deps.ids,
        deps.tokens,
        deps.settings.jobs.poll_interval_s,
    )
    return _service(BatchServicer(batches))


def batch_handlers(
    deps: Deps, responses: ResponseRunner, lines: LineRunner | None = None
) -> list[BatchHandler]:
    """Job handlers of batches: one for those that run lines, one for those that only close.

    `responses` runs lines of /v1/responses; `lines` replaces the inference service.
    """
    bounds = deps.settings.batches
    lines = lines or LineClient(
        deps.inference,
        deps.token,
        fingerprint=f"corral-{version('corral')}",
        timeout_s=bounds.line_timeout_s,
        responses=responses,
        files=deps.contents,
    )
    limits = LineLimits(bounds.lines, bounds.line_bytes, bounds.embedding_inputs)
    reader = BatchReader(deps.transactions, deps.blobs, limits)
    runner = BatchRunner(deps.transactions, lines, AdaptiveConcurrency(bounds.lines_at_once))
    writer = BatchWriter(deps.transactions, deps.blobs, deps.ids)
    return [
        BatchHandler(kind, reader, runner, writer, deps.ids, concurrency)
        for kind, concurrency in ((KIND, bounds.batches_at_once), (CLOSING_KIND, _CLOSING_AT_ONCE))
    ]


def conversation_service(deps: Deps) -> Service:
    """Build the service of conversations."""
    conversations = Conversations(
        deps.transactions, deps.ids, deps.tokens, deps.clock, build_prefix_cleanup(deps)
    )
    return _service(ConversationServicer(conversations))


def job_service(deps: Deps) -> Service:
    """Build the service of jobs."""
    return _service(JobServicer(Jobs(deps.across_projects, deps.tokens, RETRIES)))


async def operator_services(
    deps: Deps, keys: Keys, authenticator: Authenticator, prices: Prices
) -> list[Service]:
    """Build the services of projects, keys, usage and limits. Raises StartupError."""
    projects = Projects(deps.across_projects, deps.tokens, deps.clock)
    await require_for_start(projects.prepare())
    find_model = RpcModels(deps.inference, deps.token).find
    limits = Limits(deps.across_projects, deps.tokens, deps.clock, find_model)
    key_servicer = KeyServicer(
        keys,
        find_model,
        partial(limits_to_add, limits),
        serves_keyless=authenticator.serves_keyless,
    )
    return [
        _service(ProjectServicer(projects)),
        _service(key_servicer),
        _service(UsageServicer(Usage(deps.across_projects, deps.tokens, deps.clock, prices))),
        _service(AuditServicer(AuditLog(deps.across_projects, deps.tokens))),
        _service(LimitServicer(limits, prices)),
    ]


def _mcp_servers(settings: Sequence[McpServerSettings]) -> McpServers:
    """The MCP servers of the settings. Raises StartupError."""
    if not settings:
        return NoMcpServers()
    # Imported here because the package mcp is slow to import and seldom needed.
    from control_svc.agent.mcp_client import mcp_servers

    return mcp_servers(settings)


class ResponseParts(NamedTuple):
    """The service of responses, their job handler, and the runner of batch lines."""

    service: Service
    handler: ResponseWorker
    lines: ResponseLines
    """Runs lines of batches."""


async def response_parts(
    deps: Deps, search: Search, model: ModelParts | None = None
) -> ResponseParts:
    """Build the parts of responses; `model` replaces the inference service. Raises StartupError."""
    bounds = deps.settings.responses
    cipher = ContentCipher(Sealer(await shared_secret(deps.database, SEAL_KEY, KEY_BYTES)))
    model = model or model_parts(deps, bounds.turn_timeout_s)
    servers = _mcp_servers(deps.settings.mcp_servers)
    tools = ResponseTools(search, servers)
    compactor = Compactor(model.turns, cipher, deps.ids, deps.clock, bounds.summary_tokens)
    worker = ResponseWorker(
        deps.transactions,
        deps.streams.committer,
        AgentLoop(model.turns, deps.ids, deps.clock),
        model.counter,
        bounds.at_once,
        AutoCompaction(compactor, model.counter),
        cipher,
        tools,
        McpPreparer(servers, deps.ids, deps.clock),
        deps.clock,
    )
    factory = ResponseFactory(
        model.models, cipher, tools, deps.ids, deps.clock, timedelta(seconds=bounds.keep_s)
    )
    responses = Responses(
        deps.transactions,
        deps.streams.reader,
        factory,
        cipher,
        deps.ids,
        deps.tokens,
        build_prefix_cleanup(deps),
    )
    answering = EphemeralResponses(responses, worker, model.turns, compactor, deps.ids)
    service = _service(ResponseServicer(responses, answering, RateLimits(deps.across_projects)))
    return ResponseParts(service, worker, ResponseLines(answering))


def run_service(deps: Deps) -> Service:
    """Build the service of runs."""
    runs = Runs(
        deps.transactions,
        deps.streams.reader,
        deps.ids,
        deps.tokens,
        deps.clock,
        _message_adder(deps),
        _wait(deps),
    )
    return _service(RunServicer(runs, RateLimits(deps.across_projects)))


def run_handlers(
    deps: Deps, search: Search, model: ModelParts | None = None
) -> Sequence[JobHandler]:
    """Build the job handlers of runs; `model` replaces the inference service."""
    bounds = deps.settings.runs
    model = model or model_parts(deps, bounds.turn_timeout_s)
    worker = RunWorker(
        deps.transactions,
        deps.streams.committer,
        AgentLoop(model.turns, deps.ids, deps.clock),
        model.counter,
        bounds.runs_at_once,
        search,
        deps.ids,
        deps.clock,
        _wait(deps),
    )
    return [worker, RunExpiry()]


def _wait(deps: Deps) -> timedelta:
    return timedelta(seconds=deps.settings.runs.expire_after_s)


def thread_services(deps: Deps) -> list[Service]:
    """Build the services of assistants, threads and messages."""
    shared = deps.transactions, deps.ids, deps.tokens, deps.clock
    stores = ToolStores(deps.ids, deps.clock, deps.settings.embedding_model)
    adder = _message_adder(deps)
    threads = Threads(*shared, adder, build_prefix_cleanup(deps), [delete_streams_of_thread])
    return [
        _service(AssistantServicer(Assistants(*shared, stores))),
        _service(ThreadServicer(threads)),
        _service(MessageServicer(Messages(*shared, adder))),
    ]


def _message_adder(deps: Deps) -> MessageAdder:
    return MessageAdder(deps.ids, deps.clock, deps.settings.embedding_model)


class Vectors:
    """Builds the services, search and ingestion of vector stores, which share a client."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._bounds = deps.settings.vector_stores
        self._embedder = EmbeddingClient(deps.inference, deps.token, self._bounds.call_timeout_s)
        self._adder = FileAdder(deps.ids, deps.clock, deps.settings.embedding_model)

    @cached_property
    def search(self) -> Search:
        """The search, which caches vectors in memory: one per process."""
        deps = self._deps
        index = VectorIndex(self._bounds.index_bytes)
        return VectorSearch(deps.transactions, self._embedder, index, self._adder, deps.clock)

    def services(self) -> list[Service]:
        """Build the services of vector stores and their files."""
        deps = self._deps
        shared = (deps.transactions, self._adder, deps.ids, deps.tokens, deps.clock)
        stores = VectorStores(*shared, deps.notifications, deps.settings.jobs.poll_interval_s)
        limits = partial(
            RateLimits(deps.across_projects).of_caller, deps.settings.embedding_model or ""
        )
        return [
            _service(VectorStoreServicer(stores, self.search, deps.clock, limits)),
            _service(VectorStoreFileServicer(VectorFiles(*shared), limits)),
        ]

    def handler(self) -> IngestHandler:
        """Build the job handler that ingests files."""
        deps = self._deps
        extractor = TextExtractor(
            deps.blobs, deps.sandbox, data_folder(deps.settings), self._bounds.file_bytes
        )
        limits = self._bounds.files_at_once, self._bounds.file_timeout_s
        return IngestHandler(deps.transactions, extractor, self._embedder, self._adder, *limits)


RETRIES: Final[Mapping[str, Retry]] = {
    service.KIND: retry_batch,
    service.CLOSING_KIND: retry_batch,
    membership.KIND: retry_file,
    prefix_cleanup.KIND: retry_from_start,
    EXPIRY_KIND: retry_expiry,
    runs_worker.KIND: retry_run,
    responses_worker.KIND: retry_response,
}
"""Retry hooks of dead jobs, by kind; there is one for each kind."""
