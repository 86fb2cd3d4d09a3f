"""Errors of models, engines, prompts and snapshots."""

from svc_kit.errors.kinds import (
    AlreadyExists,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)


class ModelCannot(FailedPrecondition):
    """The model '{model}' has the class {model_class}, which does not support the operation
    '{operation}'. Use another model."""

    model: str
    model_class: str
    operation: str
    field: str | None = None
    """The field that asks for the operation, if the call can do without."""


class ModelTooLarge(FailedPrecondition):
    """The model '{model}' needs {needed_bytes} bytes of memory, but only {available_bytes} are
    available."""

    model: str
    needed_bytes: int
    available_bytes: int


class ModelInUse(FailedPrecondition):
    """'{name}' has running requests. Wait until they finish, or abort them."""

    name: str


class ModelLoadFailed(FailedPrecondition):
    """The model '{model}' could not be loaded: {problem}"""

    model: str
    problem: str


class ModelNotLoaded(FailedPrecondition):
    """The model '{model}' is not loaded. Ask an operator to load it."""

    model: str


class ModelNotFound(NotFound):
    """The model '{model}' does not exist or you do not have access to it."""

    model: str


class ModelExists(AlreadyExists):
    """A model named '{model}' already exists. Choose another name."""

    model: str


class ModelInSettings(FailedPrecondition):
    """'{model}' is in the settings of the inference service. Change it there, and restart."""

    model: str


class ReplicaFull(Unavailable):
    """This replica is full: as many requests wait for the model '{model}' as it has slots. Another
    replica may have room."""

    model: str


class DownloadFailed(Unavailable):
    """The file '{file}' cannot be downloaded: {problem}. Add the model again to continue."""

    file: str
    problem: str


class MemoryInUse(ResourceExhausted):
    """The model '{model}' needs {needed_bytes} bytes of memory, but only {available_bytes} are
    available while other models are in use. Retry later."""

    model: str
    needed_bytes: int
    available_bytes: int


class ModelLoading(Unavailable):
    """The model '{model}' is still loading. Retry later."""

    model: str


class EngineRestarting(Unavailable):
    """The inference engine stopped and is being restarted. Retry the request."""

    phase: str | None = None
    """ "running" if the request was in the engine when it died, else None."""


class GenerationLost(Unavailable):
    """The replica that wrote this answer was lost, and no other one can continue it exactly:
    {problem}. Retry the request."""

    problem: str


class ModelUnloaded(Unavailable):
    """The model '{model}' was unloaded. Retry the request."""

    model: str


class DecodeFailed(Internal):
    """The model failed to compute this request. The cause is in the server's log under the request
    id {request_id}."""

    request_id: str


class EngineCrashed(Internal):
    """The inference engine crashed {times} times while computing this request. It is not
    retried again."""

    times: int


class ContextLengthExceeded(InvalidArgument):
    """This model's maximum context length is {context_tokens} tokens. However, your messages
    resulted in {prompt_tokens} tokens. Please reduce the length of the messages."""

    field: str
    prompt_tokens: int
    context_tokens: int


class TokenOutOfVocabulary(InvalidArgument):
    """Invalid '{field}': the token id {token} is not in the model's vocabulary of {vocabulary_size}
    tokens."""

    field: str
    token: int
    vocabulary_size: int


class TemplateFailed(InvalidArgument):
    """The model's chat template cannot render these messages: {problem}"""

    problem: str


class GrammarInvalid(InvalidArgument):
    """Invalid grammar in '{field}': {problem}"""

    field: str
    problem: str


class SchemaInvalid(InvalidArgument):
    """Invalid or unsupported JSON Schema in '{field}' at {pointer}: {problem}"""

    field: str
    pointer: str
    """A JSON Pointer (RFC 6901) into the schema."""
    problem: str


class SnapshotIncompatible(FailedPrecondition):
    """The snapshot '{snapshot}' cannot be restored here: its {aspect} is {found}, expected
    {expected}."""

    snapshot: str
    aspect: str
    """What differs: "format", "architecture", "model", "cache", "llama_cpp", "adapters" or
    "context"."""
    expected: str
    found: str


class SnapshotCorrupt(FailedPrecondition):
    """The snapshot '{snapshot}' cannot be read: its file is {fault}. Save it again."""

    snapshot: str
    fault: str
    """ "foreign" (not a snapshot, or written by another installation), "truncated" or "altered"."""


class SnapshotTooLarge(FailedPrecondition):
    """The snapshot '{snapshot}' has {size_bytes} bytes, but the setting '{setting}' leaves only
    {limit_bytes}."""

    snapshot: str
    size_bytes: int
    limit_bytes: int
    setting: str


class SnapshotNotFound(NotFound):
    """The snapshot '{snapshot}' does not exist."""

    snapshot: str


class StateNotFound(NotFound):
    """The state of choice {index} of the request '{request}' does not exist: the choice has not
    started, or has ended without `cache.keep`."""

    request: str
    index: int
