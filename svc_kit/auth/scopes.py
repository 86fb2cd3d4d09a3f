"""The scope of every RPC. A service refuses to start if one of its methods is missing here."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from google.protobuf import descriptor_pool

from svc_kit.lifecycle import StartupError


class Scope(StrEnum):
    """What a caller needs in order to call a method."""

    PUBLIC = "public"
    """No credential."""
    KNOWN = "known"
    """Any valid credential."""
    GENERATE = "generate"
    """Calls of models (chat, completions, embeddings), without stored objects."""
    FILES = "files"
    """Files, uploads and vector stores of the caller's own project."""
    FILES_READ = "files_read"
    """Reading and searching them."""
    READ = "read"
    """Reading of all stored objects of the caller's own project."""
    INFERENCE = "inference"
    """Everything in the caller's own project; includes the above."""
    ADMIN_READ = "admin_read"
    """Reading in the area of the scope admin."""
    ADMIN = "admin"
    """Administration: models, adapters, drain, requests of all projects, projects, keys, usage."""
    MODELS_READ = "generate or admin_read"
    """Reading what models there are. Keys cannot have this scope, but those that include it."""
    REQUESTS_READ = "inference or admin_read"
    """Reading running requests, of the caller's own project or, for operators, of all."""
    REQUESTS = "inference or admin"
    """Ending them."""
    SERVICE = "service"
    """The service token, used on a service's own behalf. Keys cannot have this scope."""


GRANTABLE: Final = frozenset(
    {
        Scope.GENERATE,
        Scope.FILES,
        Scope.FILES_READ,
        Scope.READ,
        Scope.INFERENCE,
        Scope.ADMIN_READ,
        Scope.ADMIN,
    }
)
"""The scopes that a key can have."""
ALL_SCOPES: Final = frozenset({Scope.INFERENCE, Scope.ADMIN})
"""The scopes that include all others of keys."""
INCLUDED: Final[Mapping[Scope, frozenset[Scope]]] = MappingProxyType(
    {
        Scope.GENERATE: frozenset({Scope.INFERENCE}),
        Scope.FILES: frozenset({Scope.INFERENCE}),
        Scope.FILES_READ: frozenset({Scope.FILES, Scope.READ, Scope.INFERENCE}),
        Scope.READ: frozenset({Scope.INFERENCE}),
        Scope.ADMIN_READ: frozenset({Scope.ADMIN}),
        Scope.MODELS_READ: frozenset(
            {Scope.GENERATE, Scope.INFERENCE, Scope.ADMIN_READ, Scope.ADMIN}
        ),
        Scope.REQUESTS_READ: frozenset({Scope.INFERENCE, Scope.ADMIN_READ, Scope.ADMIN}),
        Scope.REQUESTS: frozenset({Scope.INFERENCE, Scope.ADMIN}),
    }
)
"""Which other scopes include a scope."""


def _rows(service: str, scope: Scope, methods: str) -> dict[str, Scope]:
    return {f"/{service}/{method}": scope for method in methods.split()}


METHOD_SCOPES: Final[Mapping[str, Scope]] = MappingProxyType(
    {
        **_rows(
            "corral.inference.v1.InferenceService",
            Scope.GENERATE,
            "Generate Chat Embed Rerank Tokenize Detokenize CountTokens RenderChat",
        ),
        **_rows("corral.inference.v1.InferenceService", Scope.MODELS_READ, "ListModels GetModel"),
        # The servicer limits both to the caller's project, except for operators.
        **_rows("corral.inference.v1.EngineService", Scope.REQUESTS_READ, "ListRequests"),
        **_rows("corral.inference.v1.EngineService", Scope.REQUESTS, "Abort"),
        **_rows(
            "corral.inference.v1.EngineService",
            Scope.ADMIN_READ,
            "GetServerInfo GetLoad WatchLoad ExplainModel WatchModels ListAdapters",
        ),
        **_rows(
            "corral.inference.v1.EngineService",
            Scope.ADMIN,
            "LoadModel UnloadModel AddModel UpdateModel AddModelAlias RemoveModel"
            " LoadAdapter UnloadAdapter SaveSnapshot RestoreSnapshot"
            " DropSnapshots FlushCache Drain Undrain",
        ),
        **_rows("corral.control.v1.FileService", Scope.FILES, "CreateFile DeleteFile"),
        **_rows(
            "corral.control.v1.FileService",
            Scope.FILES_READ,
            "GetFile ListFiles DownloadFile",
        ),
        **_rows(
            "corral.control.v1.UploadService",
            Scope.FILES,
            "CreateUpload AddUploadPart CompleteUpload CancelUpload",
        ),
        **_rows("corral.control.v1.UploadService", Scope.FILES_READ, "GetUpload"),
        **_rows("corral.control.v1.ProjectService", Scope.ADMIN, "CreateProject ArchiveProject"),
        **_rows("corral.control.v1.ProjectService", Scope.ADMIN_READ, "GetProject ListProjects"),
        **_rows("corral.control.v1.ProjectService", Scope.SERVICE, "VerifyProject"),
        **_rows("corral.control.v1.KeyService", Scope.ADMIN, "CreateKey RevokeKey RotateKey"),
        **_rows("corral.control.v1.KeyService", Scope.ADMIN_READ, "GetKey ListKeys"),
        **_rows("corral.control.v1.KeyService", Scope.SERVICE, "VerifyKey"),
        **_rows("corral.control.v1.AuditService", Scope.ADMIN_READ, "ListAuditEvents"),
        **_rows("corral.control.v1.AuditService", Scope.SERVICE, "ReportAuditEvents"),
        **_rows("corral.control.v1.UsageService", Scope.ADMIN_READ, "ListUsage"),
        **_rows("corral.control.v1.UsageService", Scope.SERVICE, "ReportUsage"),
        **_rows(
            "corral.control.v1.LimitService",
            Scope.ADMIN,
            "CreateLimit UpdateLimit DeleteLimit",
        ),
        **_rows("corral.control.v1.LimitService", Scope.ADMIN_READ, "ListLimits ListLimitBuckets"),
        **_rows("corral.control.v1.LimitService", Scope.SERVICE, "LeaseLimits"),
        **_rows(
            "corral.control.v1.AdapterService",
            Scope.INFERENCE,
            "CreateAdapter UpdateAdapter DeleteAdapter RetryAdapter",
        ),
        **_rows("corral.control.v1.AdapterService", Scope.READ, "GetAdapter ListAdapters"),
        # Adapters of all projects, for inference frontends.
        **_rows(
            "corral.control.v1.AdapterService",
            Scope.SERVICE,
            "WatchDesired ReportAdapters DownloadAdapter",
        ),
        **_rows(
            "corral.control.v1.RunService",
            Scope.INFERENCE,
            "CreateRun CreateThreadAndRun UpdateRun CancelRun SubmitToolOutputs",
        ),
        **_rows(
            "corral.control.v1.RunService",
            Scope.READ,
            "GetRun ListRuns GetRunStep ListRunSteps WatchRun",
        ),
        **_rows(
            "corral.control.v1.BatchService",
            Scope.INFERENCE,
            "CreateBatch CancelBatch DeleteBatch",
        ),
        **_rows("corral.control.v1.BatchService", Scope.READ, "GetBatch ListBatches WatchBatch"),
        **_rows(
            "corral.control.v1.VectorStoreService",
            Scope.FILES,
            "CreateVectorStore UpdateVectorStore DeleteVectorStore",
        ),
        **_rows(
            "corral.control.v1.VectorStoreService",
            Scope.FILES_READ,
            "GetVectorStore ListVectorStores SearchVectorStore WatchVectorStore",
        ),
        **_rows(
            "corral.control.v1.VectorStoreFileService",
            Scope.FILES,
            "CreateVectorStoreFile UpdateVectorStoreFile DeleteVectorStoreFile"
            " CreateVectorStoreFileBatch CancelVectorStoreFileBatch",
        ),
        **_rows(
            "corral.control.v1.VectorStoreFileService",
            Scope.FILES_READ,
            "GetVectorStoreFile ListVectorStoreFiles ListVectorStoreFileContents"
            " GetVectorStoreFileBatch",
        ),
        **_rows("corral.control.v1.JobService", Scope.ADMIN_READ, "GetJob ListJobs"),
        **_rows("corral.control.v1.JobService", Scope.ADMIN, "RetryJob"),
        **_rows(
            "corral.control.v1.AssistantService",
            Scope.INFERENCE,
            "CreateAssistant UpdateAssistant DeleteAssistant",
        ),
        **_rows("corral.control.v1.AssistantService", Scope.READ, "GetAssistant ListAssistants"),
        **_rows(
            "corral.control.v1.ThreadService",
            Scope.INFERENCE,
            "CreateThread UpdateThread DeleteThread MigrateThread",
        ),
        **_rows("corral.control.v1.ThreadService", Scope.READ, "GetThread ListThreads"),
        **_rows(
            "corral.control.v1.MessageService",
            Scope.INFERENCE,
            "CreateMessage UpdateMessage DeleteMessage",
        ),
        **_rows("corral.control.v1.MessageService", Scope.READ, "GetMessage ListMessages"),
        **_rows(
            "corral.control.v1.ResponseService",
            Scope.INFERENCE,
            "CreateResponse StreamResponse WatchResponse GetResponse ListResponses"
            " DeleteResponse CancelResponse CountInputTokens PrepareResponse CompactResponse",
        ),
        **_rows(
            "corral.control.v1.ResponseService",
            Scope.READ,
            "WatchResponse GetResponse ListInputItems",
        ),
        **_rows(
            "corral.control.v1.ConversationService",
            Scope.INFERENCE,
            "CreateConversation GetConversation ListConversations UpdateConversation"
            " DeleteConversation CreateConversationItems DeleteConversationItem",
        ),
        **_rows(
            "corral.control.v1.ConversationService",
            Scope.READ,
            "GetConversation GetConversationItem ListConversationItems",
        ),
        # Load balancers and kubelets send no credential.
        **_rows("grpc.health.v1.Health", Scope.PUBLIC, "Check Watch List"),
        **_rows("grpc.reflection.v1.ServerReflection", Scope.KNOWN, "ServerReflectionInfo"),
        **_rows("grpc.reflection.v1alpha.ServerReflection", Scope.KNOWN, "ServerReflectionInfo"),
        **_rows(
            "grpc.channelz.v1.Channelz",
            Scope.ADMIN_READ,
            "GetTopChannels GetServers GetServer GetServerSockets GetChannel GetSubchannel"
            " GetSocket",
        ),
    }
)
"""Full method name ("/package.Service/Method") to scope."""
LONG_LIVED: Final = frozenset(
    {
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/corral.inference.v1.EngineService/WatchLoad",
        "/corral.inference.v1.EngineService/WatchModels",
        "/corral.control.v1.AdapterService/WatchDesired",
    }
)
"""Unbounded streams: they have no default deadline, and a drain ends them at once."""


def check_scopes_cover(
    service_names: Iterable[str], scopes: Mapping[str, Scope] = METHOD_SCOPES
) -> None:
    """Raise StartupError if a method of one of the services has no scope."""
    pool = descriptor_pool.Default()
    methods = [
        f"/{name}/{method.name}"
        for name in service_names
        for method in pool.FindServiceByName(name).methods
    ]
    missing = [method for method in methods if method not in scopes]
    if missing:
        raise StartupError(
            "Methods without a scope in svc_kit/auth/scopes.py: " + ", ".join(sorted(missing))
        )
