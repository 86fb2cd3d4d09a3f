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

    reason = "MODEL_CANNOT"
    model: str
    model_class: str
    operation: str


class ModelTooLarge(FailedPrecondition):
    """The model '{model}' needs {needed_bytes} bytes of memory, but only {available_bytes} are
    available."""

    reason = "MODEL_TOO_LARGE"
    model: str
    needed_bytes: int
    available_bytes: int


class ModelInUse(FailedPrecondition):
    """'{name}' has running requests. Wait until they finish, or abort them."""

    reason = "MODEL_IN_USE"
    name: str


class ModelLoadFailed(FailedPrecondition):
    """The model '{model}' could not be loaded: {problem}"""

    reason = "MODEL_LOAD_FAILED"
    model: str
    problem: str


class ModelNotLoaded(FailedPrecondition):
    """The model '{model}' is not loaded. Ask an operator to load it."""

    reason = "MODEL_NOT_LOADED"
    model: str


class ModelNotFound(NotFound):
    """The model '{model}' does not exist or you do not have access to it."""

    reason = "MODEL_NOT_FOUND"
    model: str


class ModelExists(AlreadyExists):
    """A model named '{model}' already exists. Choose another name."""

    reason = "MODEL_EXISTS"
    model: str


class MemoryInUse(ResourceExhausted):
    """The model '{model}' needs {needed_bytes} bytes of memory, but only {available_bytes} are
    available while other models are in use. Retry later."""

    reason = "MEMORY_IN_USE"
    model: str
    needed_bytes: int
    available_bytes: int


class ModelLoading(Unavailable):
    """The model '{model}' is still loading. Retry later."""

    reason = "MODEL_LOADING"
    model: str


class EngineRestarting(Unavailable):
    """The inference engine stopped and is being restarted. Retry the request."""

    reason = "ENGINE_RESTARTING"
    phase: str | None = None
    """ "running" if the request was in the engine when it died, else None."""


class ModelUnloaded(Unavailable):
    """The model '{model}' was unloaded. Retry the request."""

    reason = "MODEL_UNLOADED"
    model: str


class DecodeFailed(Internal):
    """The model failed to compute this request. The cause is in the server's log under the request
    id {request_id}."""

    reason = "DECODE_FAILED"
    request_id: str


class EngineCrashed(Internal):
    """The inference engine crashed {times} times while computing this request. It is not
    retried again."""

    reason = "ENGINE_CRASHED"
    times: int


class ContextLengthExceeded(InvalidArgument):
    """This model's maximum context length is {context_tokens} tokens. However, your messages
    resulted in {prompt_tokens} tokens. Please reduce the length of the messages."""

    reason = "CONTEXT_LENGTH_EXCEEDED"
    field: str
    prompt_tokens: int
    context_tokens: int


class TokenOutOfVocabulary(InvalidArgument):
    """Invalid '{field}': the token id {token} is not in the model's vocabulary of {vocabulary_size}
    tokens."""

    reason = "TOKEN_OUT_OF_VOCABULARY"
    field: str
    token: int
    vocabulary_size: int


class TemplateFailed(InvalidArgument):
    """The model's chat template cannot render these messages: {problem}"""

    reason = "TEMPLATE_FAILED"
    problem: str


class GrammarInvalid(InvalidArgument):
    """Invalid grammar in '{field}': {problem}"""

    reason = "GRAMMAR_INVALID"
    field: str
    problem: str


class SchemaInvalid(InvalidArgument):
    """Invalid or unsupported JSON Schema in '{field}' at {pointer}: {problem}"""

    reason = "SCHEMA_INVALID"
    field: str
    pointer: str
    """A JSON Pointer (RFC 6901) into the schema."""
    problem: str


class SnapshotIncompatible(FailedPrecondition):
    """The snapshot '{snapshot}' cannot be restored here: its {aspect} is {found}, expected
    {expected}."""

    reason = "SNAPSHOT_INCOMPATIBLE"
    snapshot: str
    aspect: str
    """What differs: "format", "architecture", "model", "cache", "llama_cpp", "adapters" or
    "context"."""
    expected: str
    found: str


class SnapshotCorrupt(FailedPrecondition):
    """The snapshot '{snapshot}' cannot be read: its file is {fault}. Save it again."""

    reason = "SNAPSHOT_CORRUPT"
    snapshot: str
    fault: str
    """ "foreign" (not a snapshot, or written by another installation), "truncated" or "altered"."""


class SnapshotTooLarge(FailedPrecondition):
    """The snapshot '{snapshot}' has {size_bytes} bytes, but the setting '{setting}' leaves only
    {limit_bytes}."""

    reason = "SNAPSHOT_TOO_LARGE"
    snapshot: str
    size_bytes: int
    limit_bytes: int
    setting: str


class SnapshotNotFound(NotFound):
    """The snapshot '{snapshot}' does not exist."""

    reason = "SNAPSHOT_NOT_FOUND"
    snapshot: str


class StateNotFound(NotFound):
    """The state of choice {index} of the request '{request}' does not exist: the choice has not
    started, or has ended without `cache.keep`."""

    reason = "STATE_NOT_FOUND"
    request: str
    index: int
