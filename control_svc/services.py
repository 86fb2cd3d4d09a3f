"""Files and uploads."""

from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from importlib.metadata import version
from typing import Final, NamedTuple

from corral.control.v1 import (
    adapter_service_pb2_grpc,
    assistant_service_pb2_grpc,
    batch_service_pb2_grpc,
    conversation_service_pb2_grpc,
    file_service_pb2_grpc,
    job_service_pb2_grpc,
    key_service_pb2_grpc,
    message_service_pb2_grpc,
    project_service_pb2_grpc,
    response_service_pb2_grpc,
    run_service_pb2_grpc,
    thread_service_pb2_grpc,
    upload_service_pb2_grpc,
    usage_service_pb2_grpc,
    vector_store_file_service_pb2_grpc,
    vector_store_service_pb2_grpc,
)

from control_svc.adapters.ingest import AdapterBytes
from control_svc.adapters.service import Adapters
from control_svc.adapters.servicer import AdapterServicer
from control_svc.adapters.sync import AdapterSync
from control_svc.agent.loop import AgentLoop
from control_svc.agent.mcp_client import mcp_servers
from control_svc.assistants.assistants import Assistants
from control_svc.assistants.messages import Messages
from control_svc.assistants.servicers import AssistantServicer, MessageServicer, ThreadServicer
from control_svc.assistants.threads import Threads
from control_svc.batches.concurrency import AdaptiveConcurrency
from control_svc.batches.executor import BatchRunner
from control_svc.batches.input_file import BatchReader
from control_svc.batches.line_client import LineClient, ResponseRunner
from control_svc.batches.lines import LineLimits
from control_svc.batches.output import BatchWriter
from control_svc.batches.service import CLOSING_KIND, KIND, Batches
from control_svc.batches.servicer import BatchServicer
from control_svc.batches.worker import BatchHandler
from control_svc.conversations.service import Conversations
from control_svc.conversations.servicer import ConversationServicer
from control_svc.deps import Deps, data_folder, or_no_start, shared_secret
from control_svc.files.model import FileLimits
from control_svc.files.service import Files
from control_svc.files.servicers import FileServicer, UploadServicer
from control_svc.files.uploads import Uploads
from control_svc.inference.embeddings import EmbeddingClient
from control_svc.inference.models import Models, RpcModels
from control_svc.inference.prefix_cleanup import (
    PrefixCleanup,
    PrefixCleanupWorker,
    RpcDiskPrefixCache,
)
from control_svc.inference.turn_client import RpcTokenCounter, RpcTurnClient, TokenCounter
from control_svc.inference.turns import TurnClient
from control_svc.job_retry import RETRIES
from control_svc.jobs.handler import JobHandler
from control_svc.jobs.service import Jobs
from control_svc.jobs.servicer import JobServicer
from control_svc.projects.keys import Keys
from control_svc.projects.projects import Projects
from control_svc.projects.servicers import KeyServicer, ProjectServicer, UsageServicer
from control_svc.projects.usage import Usage
from control_svc.responses.compaction import AutoCompaction, Compactor
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.context import Requests
from control_svc.responses.ephemeral import EphemeralResponses
from control_svc.responses.event_codec import RESPONSE_EVENTS
from control_svc.responses.service import Responses
from control_svc.responses.servicer import ResponseLines, ResponseServicer
from control_svc.responses.tools import McpPreparing, ResponseTools
from control_svc.responses.transitions import Endings
from control_svc.responses.worker import ResponseHandler, ResponseWorker
from control_svc.runs.queries import RunEventDocuments, delete_streams_of_thread
from control_svc.runs.service import Runs
from control_svc.runs.servicer import RunServicer
from control_svc.runs.transitions import RunExpiry
from control_svc.runs.worker import RunHandler, RunTools
from control_svc.vector_stores.files import VectorFiles
from control_svc.vector_stores.ingest.extraction_job import DocumentTexts
from control_svc.vector_stores.ingest.worker import FileReading
from control_svc.vector_stores.membership import FileAdder, remove_from_all
from control_svc.vector_stores.search.model import Search
from control_svc.vector_stores.search.service import VectorSearch
from control_svc.vector_stores.search.vector_index import VectorIndex
from control_svc.vector_stores.service import VectorStores
from control_svc.vector_stores.servicers import VectorStoreFileServicer, VectorStoreServicer
from svc_kit.auth.authenticator import Authenticator
from svc_kit.encryption import KEY_BYTES, Sealer
from svc_kit.local_files import AllowedFolders
from svc_kit.rpc.server import Service


def file_services(ground: Deps) -> list[Service]:
    """What callers do with files, whole or in parts."""
    bounds = ground.settings.files
    files = Files(
        ground.transactions,
        ground.blobs,
        ground.ids,
        ground.tokens,
        FileLimits(bounds.file_bytes, bounds.batch_bytes),
        ground.clock,
        on_delete=[remove_from_all],
    )
    uploads = Uploads(
        ground.transactions,
        ground.blobs,
        ground.ids,
        FileLimits(bounds.upload_bytes, bounds.batch_bytes),
        bounds.part_bytes,
        ground.clock,
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


def adapter_service(ground: Deps) -> Service:
    """What callers register, and what frontends should have."""
    settings = ground.settings
    source = AdapterBytes(
        ground.transactions,
        ground.blobs,
        ground.sandbox,
        AllowedFolders([*settings.adapter_folders, settings.data_dir / "adapters"]),
        scratch=data_folder(settings),
        limit=settings.adapters.file_bytes,
        clock=ground.clock,
    )
    adapters = Adapters(
        ground.transactions,
        ground.blobs,
        source,
        ground.ids,
        ground.tokens,
        settings.adapters.per_project,
        ground.notices,
        ground.clock,
    )
    desired = AdapterSync(ground.transactions, ground.blobs, ground.notices)
    return Service(
        adapter_service_pb2_grpc.add_AdapterServiceServicer_to_server,
        AdapterServicer(adapters, desired, ground.clock),
        "corral.control.v1.AdapterService",
    )


def archives(ground: Deps) -> PrefixCleanup:
    """What has deleted objects forgotten. Only our own services name objects, by their token."""
    return PrefixCleanup(ground.ids, is_used=ground.token is not None)


def archive_handlers(ground: Deps) -> Sequence[JobHandler]:
    """What does the jobs of it."""
    if ground.token is None:
        return []
    return [PrefixCleanupWorker(RpcDiskPrefixCache(ground.inference, ground.token))]


class ModelParts(NamedTuple):
    """What calls models, knows them, and counts what they would be shown."""

    turns: TurnClient
    models: Models
    counter: TokenCounter


def model_parts(ground: Deps, turn_timeout_s: float) -> ModelParts:
    """Those of the inference service; a turn takes at most so long."""
    return ModelParts(
        RpcTurnClient(ground.inference, ground.token, timeout_s=turn_timeout_s),
        RpcModels(ground.inference, ground.token),
        RpcTokenCounter(ground.inference, ground.token, timeout_s=turn_timeout_s),
    )


_CLOSING_AT_ONCE: Final = 2


def batch_service(ground: Deps) -> Service:
    """What callers do with batches."""
    batches = Batches(
        ground.transactions,
        ground.notices,
        ground.ids,
        ground.tokens,
        ground.settings.jobs.poll_interval_s,
    )
    return Service(
        batch_service_pb2_grpc.add_BatchServiceServicer_to_server,
        BatchServicer(batches),
        "corral.control.v1.BatchService",
    )


def batch_handlers(ground: Deps, responses: ResponseRunner) -> list[BatchHandler]:
    """What does the jobs of batches: of those that run lines, and of those that run no more.

    `responses` answers lines of that endpoint.
    """
    bounds = ground.settings.batches
    lines = LineClient(
        ground.inference,
        ground.token,
        fingerprint=f"corral-{version('corral')}",
        timeout_s=bounds.line_timeout_s,
        responses=responses,
    )
    limits = LineLimits(bounds.lines, bounds.line_bytes, bounds.embedding_inputs)
    reader = BatchReader(ground.transactions, ground.blobs, limits)
    runner = BatchRunner(ground.transactions, lines, AdaptiveConcurrency(bounds.lines_at_once))
    writer = BatchWriter(ground.transactions, ground.blobs, ground.ids)
    return [
        BatchHandler(kind, reader, runner, writer, ground.ids, concurrency)
        for kind, concurrency in ((KIND, bounds.batches_at_once), (CLOSING_KIND, _CLOSING_AT_ONCE))
    ]


def conversation_service(ground: Deps) -> Service:
    """What callers do with conversations."""
    conversations = Conversations(
        ground.transactions, ground.ids, ground.tokens, ground.clock, archives(ground)
    )
    return Service(
        conversation_service_pb2_grpc.add_ConversationServiceServicer_to_server,
        ConversationServicer(conversations),
        "corral.control.v1.ConversationService",
    )


def job_service(ground: Deps) -> Service:
    """What operators do with jobs."""
    return Service(
        job_service_pb2_grpc.add_JobServiceServicer_to_server,
        JobServicer(Jobs(ground.transactions, ground.tokens, RETRIES)),
        "corral.control.v1.JobService",
    )


async def operator_services(
    ground: Deps, keys: Keys, authenticator: Authenticator
) -> list[Service]:
    """Their services. Raises StartupError."""
    projects = Projects(ground.transactions, ground.tokens, ground.clock)
    await or_no_start(projects.prepare())
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
            UsageServicer(Usage(ground.transactions, ground.tokens, ground.clock)),
            "corral.control.v1.UsageService",
        ),
    ]


class ResponseParts(NamedTuple):
    """The service, and what works."""

    service: Service
    handler: ResponseHandler
    lines: ResponseLines
    """Answers lines of batches."""


async def response_parts(
    ground: Deps, search: Search, model: ModelParts | None = None
) -> ResponseParts:
    """`model` stands in for the inference service. Raises StartupError."""
    bounds = ground.settings.responses
    cipher = ContentCipher(Sealer(await shared_secret(ground.database, "seal_key", KEY_BYTES)))
    model = model or model_parts(ground, bounds.turn_timeout_s)
    servers = mcp_servers(ground.settings.mcp_servers)
    tools = ResponseTools(search, servers)
    compactor = Compactor(model.turns, cipher, ground.ids, ground.clock, bounds.summary_tokens)
    worker = ResponseWorker(
        AgentLoop(model.turns, ground.ids, ground.clock),
        model.counter,
        AutoCompaction(compactor, model.counter),
        cipher,
        tools,
        McpPreparing(servers, ground.ids, ground.clock),
        ground.clock,
    )
    endings = Endings(RESPONSE_EVENTS, cipher)
    requests = Requests(
        model.models, cipher, tools, ground.ids, ground.clock, timedelta(seconds=bounds.keep_s)
    )
    responses = Responses(
        ground.transactions,
        ground.streams.followers,
        requests,
        endings,
        RESPONSE_EVENTS,
        ground.ids,
        ground.tokens,
        ground.clock,
        archives(ground),
    )
    answering = EphemeralResponses(
        ground.transactions,
        responses,
        requests,
        worker,
        model.turns,
        model.counter,
        compactor,
        cipher,
        tools,
        RESPONSE_EVENTS,
        ground.ids,
        ground.clock,
    )
    handler = ResponseHandler(
        ground.transactions,
        ground.streams.writers,
        worker,
        endings,
        RESPONSE_EVENTS,
        cipher,
        bounds.at_once,
    )
    servicer = ResponseServicer(responses, answering)
    service = Service(
        response_service_pb2_grpc.add_ResponseServiceServicer_to_server,
        servicer,
        "corral.control.v1.ResponseService",
    )
    return ResponseParts(service, handler, ResponseLines(answering))


def run_service(ground: Deps) -> Service:
    """What callers do with runs."""
    runs = Runs(
        ground.transactions,
        ground.streams.followers,
        RunEventDocuments(),
        ground.ids,
        ground.tokens,
        ground.clock,
        wait=_wait(ground),
        embedding_model=ground.settings.embedding_model,
    )
    return Service(
        run_service_pb2_grpc.add_RunServiceServicer_to_server,
        RunServicer(runs),
        "corral.control.v1.RunService",
    )


def run_handlers(
    ground: Deps, search: Search, model: ModelParts | None = None
) -> Sequence[JobHandler]:
    """What does the jobs of runs; `model` stands in for the inference service."""
    codec, bounds = RunEventDocuments(), ground.settings.runs
    model = model or model_parts(ground, bounds.turn_timeout_s)
    handler = RunHandler(
        ground.transactions,
        ground.streams.writers,
        codec,
        AgentLoop(model.turns, ground.ids, ground.clock),
        model.counter,
        RunTools(search),
        ground.ids,
        ground.clock,
        wait=_wait(ground),
        concurrency=bounds.runs_at_once,
    )
    return [handler, RunExpiry(codec)]


def _wait(ground: Deps) -> timedelta:
    return timedelta(seconds=ground.settings.runs.expire_after_s)


def thread_services(ground: Deps) -> list[Service]:
    """What callers do with assistants, threads and messages."""
    shared = ground.transactions, ground.ids, ground.tokens, ground.clock
    embedding_model = ground.settings.embedding_model
    return [
        Service(
            assistant_service_pb2_grpc.add_AssistantServiceServicer_to_server,
            AssistantServicer(Assistants(*shared, embedding_model)),
            "corral.control.v1.AssistantService",
        ),
        Service(
            thread_service_pb2_grpc.add_ThreadServiceServicer_to_server,
            ThreadServicer(
                Threads(*shared, embedding_model, archives(ground), [delete_streams_of_thread])
            ),
            "corral.control.v1.ThreadService",
        ),
        Service(
            message_service_pb2_grpc.add_MessageServiceServicer_to_server,
            MessageServicer(Messages(*shared, embedding_model)),
            "corral.control.v1.MessageService",
        ),
    ]


class Vectors:
    """The parts of vector stores, which share an embedding model and its client."""

    def __init__(self, ground: Deps) -> None:
        self._ground = ground
        self._bounds = ground.settings.vector_stores
        self._embedder = EmbeddingClient(
            ground.inference, ground.token, self._bounds.call_timeout_s
        )
        self._adder = FileAdder(ground.ids, ground.clock, ground.settings.embedding_model)

    @cached_property
    def search(self) -> Search:
        """What `file_search` asks; one for the process, because it keeps vectors in memory."""
        ground = self._ground
        index = VectorIndex(ground.transactions, self._bounds.index_bytes)
        return VectorSearch(ground.transactions, self._embedder, index, self._adder, ground.clock)

    def services(self) -> list[Service]:
        """What callers do with stores and their files."""
        ground = self._ground
        shared = (ground.transactions, self._adder, ground.ids, ground.tokens, ground.clock)
        return [
            Service(
                vector_store_service_pb2_grpc.add_VectorStoreServiceServicer_to_server,
                VectorStoreServicer(
                    VectorStores(*shared, ground.notices, ground.settings.jobs.poll_interval_s),
                    self.search,
                    ground.clock,
                ),
                "corral.control.v1.VectorStoreService",
            ),
            Service(
                vector_store_file_service_pb2_grpc.add_VectorStoreFileServiceServicer_to_server,
                VectorStoreFileServicer(VectorFiles(*shared)),
                "corral.control.v1.VectorStoreFileService",
            ),
        ]

    def handler(self) -> FileReading:
        """What does the jobs of files."""
        ground = self._ground
        reader = DocumentTexts(
            ground.blobs, ground.sandbox, data_folder(ground.settings), self._bounds.file_bytes
        )
        return FileReading(
            ground.transactions, reader, self._embedder, self._adder, self._bounds.files_at_once
        )
