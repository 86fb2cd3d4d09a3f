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
    INFERENCE = "inference"
    """Inference and stored objects of the caller's own project."""
    ADMIN = "admin"
    """Administration: models, adapters, drain, requests of all projects, projects, keys, usage."""
    SERVICE = "service"
    """The service token, used on a service's own behalf. Keys cannot have this scope."""


GRANTABLE: Final = frozenset({Scope.INFERENCE, Scope.ADMIN})
"""The scopes that a key can have."""


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
        # Limited to the caller's project; the servicer gives admins access to all projects.
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
            "corral.control.v1.LimitService",
            Scope.ADMIN,
            "CreateLimit",
            "ListLimits",
            "UpdateLimit",
            "DeleteLimit",
        ),
        **_rows("corral.control.v1.LimitService", Scope.SERVICE, "LeaseLimits"),
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
        # Adapters of all projects, for inference frontends.
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
        # Load balancers and kubelets send no credential.
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
"""Full method name ("/package.Service/Method") to scope."""


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
