"""The scope of every RPC, in one table; a service with a method that is missing here does not
start.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from google.protobuf import descriptor_pool

from svc_kit.lifecycle import StartupError


class Scope(StrEnum):
    """What a caller must hold to call a method."""

    PUBLIC = "public"
    """Nothing: the method answers anybody, without a credential."""
    KNOWN = "known"
    """Any valid credential."""
    INFERENCE = "inference"
    """Generate, embed, tokenize; see and abort one's own project's requests; keep its files."""
    ADMIN = "admin"
    """Operate the service: models, adapters, drain, everybody's requests, projects, keys, usage."""
    SERVICE = "service"
    """Be one of our own services, calling for itself; no key holds it."""


GRANTABLE: Final = frozenset({Scope.INFERENCE, Scope.ADMIN})
"""The scopes that a key can hold."""


def _rows(service: str, scope: Scope, *methods: str) -> dict[str, Scope]:
    return {f"/{service}/{method}": scope for method in methods}


METHOD_SCOPES: Final[Mapping[str, Scope]] = MappingProxyType(
    {
        **_rows(
            "corral.inference.v1.InferenceService",
            Scope.INFERENCE,
            "Generate",
            "Chat",
            "Embed",
            "Rerank",
            "Tokenize",
            "Detokenize",
            "CountTokens",
            "RenderChat",
            "ListModels",
            "GetModel",
        ),
        # Callers see and abort requests of their own project; the servicer lets admins see all.
        **_rows(
            "corral.inference.v1.EngineService",
            Scope.INFERENCE,
            "ListRequests",
            "Abort",
        ),
        **_rows(
            "corral.inference.v1.EngineService",
            Scope.ADMIN,
            "GetServerInfo",
            "GetLoad",
            "WatchLoad",
            "LoadModel",
            "UnloadModel",
            "WatchModels",
            "LoadAdapter",
            "UnloadAdapter",
            "ListAdapters",
            "SaveSnapshot",
            "RestoreSnapshot",
            "DropSnapshots",
            "FlushCache",
            "Drain",
            "Undrain",
        ),
        **_rows(
            "corral.control.v1.FileService",
            Scope.INFERENCE,
            "CreateFile",
            "GetFile",
            "ListFiles",
            "DeleteFile",
            "DownloadFile",
        ),
        **_rows(
            "corral.control.v1.UploadService",
            Scope.INFERENCE,
            "CreateUpload",
            "GetUpload",
            "AddUploadPart",
            "CompleteUpload",
            "CancelUpload",
        ),
        **_rows(
            "corral.control.v1.ProjectService",
            Scope.ADMIN,
            "CreateProject",
            "GetProject",
            "ListProjects",
            "ArchiveProject",
        ),
        **_rows(
            "corral.control.v1.KeyService",
            Scope.ADMIN,
            "CreateKey",
            "GetKey",
            "ListKeys",
            "RevokeKey",
        ),
        **_rows("corral.control.v1.KeyService", Scope.SERVICE, "VerifyKey"),
        **_rows("corral.control.v1.UsageService", Scope.ADMIN, "ListUsage"),
        **_rows("corral.control.v1.UsageService", Scope.SERVICE, "ReportUsage"),
        **_rows(
            "corral.control.v1.AdapterService",
            Scope.INFERENCE,
            "CreateAdapter",
            "GetAdapter",
            "ListAdapters",
            "UpdateAdapter",
            "DeleteAdapter",
            "RetryAdapter",
        ),
        # All projects' adapters: for inference frontends.
        **_rows(
            "corral.control.v1.AdapterService",
            Scope.SERVICE,
            "WatchDesired",
            "ReportAdapters",
            "DownloadAdapter",
        ),
        **_rows(
            "corral.control.v1.RunService",
            Scope.INFERENCE,
            "CreateRun",
            "CreateThreadAndRun",
            "GetRun",
            "ListRuns",
            "UpdateRun",
            "CancelRun",
            "SubmitToolOutputs",
            "GetRunStep",
            "ListRunSteps",
            "WatchRun",
        ),
        **_rows(
            "corral.control.v1.BatchService",
            Scope.INFERENCE,
            "CreateBatch",
            "GetBatch",
            "ListBatches",
            "CancelBatch",
            "WatchBatch",
        ),
        **_rows(
            "corral.control.v1.VectorStoreService",
            Scope.INFERENCE,
            "CreateVectorStore",
            "GetVectorStore",
            "ListVectorStores",
            "UpdateVectorStore",
            "DeleteVectorStore",
            "SearchVectorStore",
            "WatchVectorStore",
        ),
        **_rows(
            "corral.control.v1.VectorStoreFileService",
            Scope.INFERENCE,
            "CreateVectorStoreFile",
            "GetVectorStoreFile",
            "ListVectorStoreFiles",
            "UpdateVectorStoreFile",
            "DeleteVectorStoreFile",
            "ListVectorStoreFileContents",
            "CreateVectorStoreFileBatch",
            "GetVectorStoreFileBatch",
            "CancelVectorStoreFileBatch",
        ),
        **_rows("corral.control.v1.JobService", Scope.ADMIN, "GetJob", "ListJobs", "RetryJob"),
        **_rows(
            "corral.control.v1.AssistantService",
            Scope.INFERENCE,
            "CreateAssistant",
            "GetAssistant",
            "ListAssistants",
            "UpdateAssistant",
            "DeleteAssistant",
        ),
        **_rows(
            "corral.control.v1.ThreadService",
            Scope.INFERENCE,
            "CreateThread",
            "GetThread",
            "ListThreads",
            "UpdateThread",
            "DeleteThread",
            "MigrateThread",
        ),
        **_rows(
            "corral.control.v1.MessageService",
            Scope.INFERENCE,
            "CreateMessage",
            "GetMessage",
            "ListMessages",
            "UpdateMessage",
            "DeleteMessage",
        ),
        **_rows(
            "corral.control.v1.ResponseService",
            Scope.INFERENCE,
            "CreateResponse",
            "StreamResponse",
            "WatchResponse",
            "GetResponse",
            "DeleteResponse",
            "CancelResponse",
            "ListInputItems",
            "CountInputTokens",
            "PrepareResponse",
            "CompactResponse",
        ),
        **_rows(
            "corral.control.v1.ConversationService",
            Scope.INFERENCE,
            "CreateConversation",
            "GetConversation",
            "UpdateConversation",
            "DeleteConversation",
            "CreateConversationItems",
            "GetConversationItem",
            "ListConversationItems",
            "DeleteConversationItem",
        ),
        # Load balancers and kubelets probe without a credential.
        **_rows("grpc.health.v1.Health", Scope.PUBLIC, "Check", "Watch", "List"),
        **_rows("grpc.reflection.v1.ServerReflection", Scope.KNOWN, "ServerReflectionInfo"),
        **_rows("grpc.reflection.v1alpha.ServerReflection", Scope.KNOWN, "ServerReflectionInfo"),
        **_rows(
            "grpc.channelz.v1.Channelz",
            Scope.ADMIN,
            "GetTopChannels",
            "GetServers",
            "GetServer",
            "GetServerSockets",
            "GetChannel",
            "GetSubchannel",
            "GetSocket",
        ),
    }
)
"""Full method name, as in "/package.Service/Method", to the scope it needs."""


def check_scopes_cover(
    service_names: Iterable[str], scopes: Mapping[str, Scope] = METHOD_SCOPES
) -> None:
    """Raise StartupError where a method of one of the services has no scope."""
    pool = descriptor_pool.Default()
    methods = [
        f"/{name}/{method.name}"
        for name in service_names
        for method in pool.FindServiceByName(name).methods
    ]
    missing = [method for method in methods if method not in scopes]
    if missing:
        raise StartupError(
            "svc_kit/auth/scopes.py names no scope for: " + ", ".join(sorted(missing))
        )
