"""Every way a request can fail, as one tree of exceptions.

The standard library is all these classes need, so that the engine and the domain may raise them
without knowing of gRPC or HTTP; `svc_kit.error_table` maps them to both.

    DomainError
    ├── InvalidArgument      the request is wrong, whatever the state of the server
    ├── FailedPrecondition   the request is right, the state of the server is not
    ├── Unauthenticated      who calls is not known
    ├── PermissionDenied     who calls is known and may not
    ├── NotFound             the named thing does not exist
    ├── AlreadyExists        the name is taken
    ├── Aborted              a conflict with something concurrent; try again
    ├── ResourceExhausted    a bound is reached; try again later
    ├── Cancelled            the caller or an operator ended it
    ├── DeadlineExceeded     the time is over
    ├── Unavailable          not now; try again later
    ├── Unimplemented        not in this release
    └── Internal             a defect of ours

Below each kind stand the concrete classes, one for each value of `corral.error.v1.ErrorReason`. The
docstring of a concrete class is its message, with the metadata as placeholders; its annotations are
the metadata keys.

The module is long because it is a catalogue, in the order of the enum that it mirrors: nobody reads
it from top to bottom, and whoever adds a reason finds one place for it.
"""

from collections.abc import Iterator
from typing import Final

from svc_kit.domain_error import MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES
from svc_kit.domain_error import MAX_VALUE_BYTES as MAX_VALUE_BYTES
from svc_kit.domain_error import DomainError as DomainError

# ---- INVALID_ARGUMENT


class InvalidArgument(DomainError):
    """The request is wrong, whatever the state of the server."""


class InvalidField(InvalidArgument):
    """Invalid '{field}': {problem}"""

    reason = "INVALID_FIELD"
    field: str
    problem: str


class MissingField(InvalidArgument):
    """Missing required parameter: '{field}'."""

    reason = "MISSING_FIELD"
    field: str


class OutOfRange(InvalidArgument):
    """Invalid '{field}': {value} is outside its limits."""

    reason = "OUT_OF_RANGE"
    field: str
    value: float | str
    minimum: float | str | None = None
    maximum: float | str | None = None

    def _describe(self) -> str:
        limits = [
            f"at {word} {self.metadata[key]}"
            for key, word in (("minimum", "least"), ("maximum", "most"))
            if key in self.metadata
        ]
        wanted = " and ".join(limits) or "a finite number"
        return f"Invalid '{self.field}': {self.metadata['value']} must be {wanted}."


class TooLong(InvalidArgument):
    """Invalid '{field}': {length} {unit} are too many, the limit is {limit}."""

    reason = "TOO_LONG"
    field: str
    length: int
    limit: int
    unit: str = "items"
    """What is counted: "items", "characters", "bytes" or "tokens"."""


class UnknownField(InvalidArgument):
    """Unknown parameter: '{field}'."""

    reason = "UNKNOWN_FIELD"
    field: str


class InvalidType(InvalidArgument):
    """Invalid type for '{field}': expected {expected}."""

    reason = "INVALID_TYPE"
    field: str
    expected: str


class InvalidJson(InvalidArgument):
    """The JSON of '{field}' cannot be parsed: {problem}"""

    reason = "INVALID_JSON"
    field: str | None = None
    """None: the body as a whole."""
    problem: str

    def _describe(self) -> str:
        if self.field is not None:
            return super()._describe()
        return f"We could not parse the JSON body of your request. ({self.problem})"


class ContextLengthExceeded(InvalidArgument):
    """This model's maximum context length is {context_tokens} tokens. However, your messages
    resulted in
    {prompt_tokens} tokens. Please reduce the length of the messages."""

    reason = "CONTEXT_LENGTH_EXCEEDED"
    field: str
    prompt_tokens: int
    context_tokens: int


class TokenOutOfVocabulary(InvalidArgument):
    """Invalid '{field}': the model has no token {token}, its vocabulary has {vocabulary_size}."""

    reason = "TOKEN_OUT_OF_VOCABULARY"
    field: str
    token: int
    vocabulary_size: int


class TemplateFailed(InvalidArgument):
    """The model's chat template cannot render these messages: {problem}"""

    reason = "TEMPLATE_FAILED"
    problem: str


class GrammarInvalid(InvalidArgument):
    """The grammar in '{field}' cannot be used: {problem}"""

    reason = "GRAMMAR_INVALID"
    field: str
    problem: str


class SchemaInvalid(InvalidArgument):
    """The JSON Schema in '{field}' cannot be used, at {pointer}: {problem}"""

    reason = "SCHEMA_INVALID"
    field: str
    pointer: str
    """A JSON Pointer (RFC 6901) into the schema."""
    problem: str


class RequestTooLarge(InvalidArgument):
    """The request has {size} bytes, the limit is {limit}."""

    reason = "REQUEST_TOO_LARGE"
    size: int
    limit: int


class UnsupportedMediaType(InvalidArgument):
    """The content type '{media_type}' is not supported; send {expected}."""

    reason = "UNSUPPORTED_MEDIA_TYPE"
    media_type: str
    expected: str = "application/json"


class UnsupportedValue(InvalidArgument):
    """Unsupported value: '{field}' does not support '{value}' on this server."""

    reason = "UNSUPPORTED_VALUE"
    field: str
    value: str


class UnsupportedField(InvalidArgument):
    """Unsupported parameter: '{field}' is not supported by this server."""

    reason = "UNSUPPORTED_FIELD"
    field: str


class MethodNotAllowed(InvalidArgument):
    """Invalid method for URL ({method} {path})"""

    reason = "METHOD_NOT_ALLOWED"
    method: str
    path: str


class SizeMismatch(InvalidArgument):
    """{actual_bytes} bytes were sent where {expected_bytes} were announced."""

    reason = "SIZE_MISMATCH"
    expected_bytes: int
    actual_bytes: int


class ChecksumMismatch(InvalidArgument):
    """The bytes do not have the digest given in '{field}'."""

    reason = "CHECKSUM_MISMATCH"
    field: str


class ToolOutputsIncomplete(InvalidArgument):
    """Expected tool outputs for call_ids [{expected}], got [{got}]."""

    reason = "TOOL_OUTPUTS_INCOMPLETE"
    field: str
    expected: str
    got: str


class RangeNotSatisfiable(InvalidArgument):
    """Invalid '{field}': the range begins beyond the end, which is at {size} bytes."""

    reason = "RANGE_NOT_SATISFIABLE"
    field: str
    size: int


class PreviousResponseNotFound(InvalidArgument):
    """Previous response with id '{response}' not found."""

    reason = "PREVIOUS_RESPONSE_NOT_FOUND"
    response: str
    field: str = "previous_response_id"
    """What named the response."""


class ToolCallMissing(InvalidArgument):
    """No tool call found for function call output with call_id {call}."""

    reason = "TOOL_CALL_MISSING"
    call: str
    field: str = "input"
    """What holds the output."""


class ToolOutputMissing(InvalidArgument):
    """No tool output found for function call {call}."""

    reason = "TOOL_OUTPUT_MISSING"
    call: str
    field: str = "input"
    """What ought to hold the output."""


class SealInvalid(InvalidArgument):
    """The encrypted content of '{field}' could not be verified: it was not made here for this
    project, or has been changed."""

    reason = "SEAL_INVALID"
    field: str


# ---- FAILED_PRECONDITION


class FailedPrecondition(DomainError):
    """The request is right, the state of the server is not."""


class ModelCannot(FailedPrecondition):
    """The model '{model}' is of class {model_class} and cannot do this: {operation}."""

    reason = "MODEL_CANNOT"
    model: str
    model_class: str
    operation: str


class AdapterBaseMismatch(FailedPrecondition):
    """The adapter '{adapter}' was made for another model: {problem}"""

    reason = "ADAPTER_BASE_MISMATCH"
    adapter: str
    problem: str


class AdapterInvalid(FailedPrecondition):
    """The file of the adapter '{adapter}' cannot be used: {problem}"""

    reason = "ADAPTER_INVALID"
    adapter: str
    problem: str


class AdapterDigestMismatch(FailedPrecondition):
    """The file of the adapter '{adapter}' has the SHA-256 {actual}, not {expected}."""

    reason = "ADAPTER_DIGEST_MISMATCH"
    adapter: str
    expected: str
    actual: str


class AdapterTooLarge(FailedPrecondition):
    """The adapter '{adapter}' needs {needed_bytes} bytes of memory, {available_bytes} are
    available."""

    reason = "ADAPTER_TOO_LARGE"
    adapter: str
    needed_bytes: int
    available_bytes: int


class AdapterCrashedEngine(FailedPrecondition):
    """The engine ended while it loaded the adapter '{adapter}', which is not loaded again by
    itself."""

    reason = "ADAPTER_CRASHED_ENGINE"
    adapter: str


class TooManyAdapters(FailedPrecondition):
    """The project has {limit} adapters, as many as it may."""

    reason = "TOO_MANY_ADAPTERS"
    limit: int


class SnapshotIncompatible(FailedPrecondition):
    """The snapshot '{snapshot}' cannot be restored here: its {aspect} is {found}, wanted is
    {expected}."""

    reason = "SNAPSHOT_INCOMPATIBLE"
    snapshot: str
    aspect: str
    """What differs: "format", "architecture", "model", "cache", "llama_cpp", "adapters" or
    "context"."""
    expected: str
    found: str


class SnapshotCorrupt(FailedPrecondition):
    """The snapshot '{snapshot}' is damaged: its file is {fault}."""

    reason = "SNAPSHOT_CORRUPT"
    snapshot: str
    fault: str
    """ "foreign" (no snapshot, or of another installation), "truncated" or "altered"."""


class SnapshotTooLarge(FailedPrecondition):
    """The snapshot '{snapshot}' has {size_bytes} bytes, '{setting}' leaves {limit_bytes}."""

    reason = "SNAPSHOT_TOO_LARGE"
    snapshot: str
    size_bytes: int
    limit_bytes: int
    setting: str


class ModelTooLarge(FailedPrecondition):
    """The model '{model}' needs {needed_bytes} bytes of memory, {available_bytes} are available."""

    reason = "MODEL_TOO_LARGE"
    model: str
    needed_bytes: int
    available_bytes: int


class ModelInUse(FailedPrecondition):
    """'{name}' has running requests."""

    reason = "MODEL_IN_USE"
    name: str


class ModelLoadFailed(FailedPrecondition):
    """The model '{model}' could not be loaded: {problem}"""

    reason = "MODEL_LOAD_FAILED"
    model: str
    problem: str


class ModelNotLoaded(FailedPrecondition):
    """The model '{model}' is not loaded, and only an operator loads it."""

    reason = "MODEL_NOT_LOADED"
    model: str


class UploadNotPending(FailedPrecondition):
    """The upload '{upload}' is {state} and takes no further changes."""

    reason = "UPLOAD_NOT_PENDING"
    upload: str
    state: str
    """"completed", "cancelled" or "expired"."""


class BatchNotCancellable(FailedPrecondition):
    """Cannot cancel the batch '{batch}' with status '{state}'."""

    reason = "BATCH_NOT_CANCELLABLE"
    batch: str
    state: str
    """ "finalizing", "completed", "failed" or "expired"."""


class VectorStoreExpired(FailedPrecondition):
    """The vector store '{vector_store}' has expired: nobody used it for as long as it said."""

    reason = "VECTOR_STORE_EXPIRED"
    vector_store: str


class EmbeddingModelMissing(FailedPrecondition):
    """This server has no embedding model, so it cannot search files. Add one: {command}"""

    reason = "EMBEDDING_MODEL_MISSING"
    command: str


class EmbeddingModelChanged(FailedPrecondition):
    """The vector store '{vector_store}' was made with the embedding model '{model}', which this
    server does not serve as it was. Serve it again, or put the files into a new store."""

    reason = "EMBEDDING_MODEL_CHANGED"
    vector_store: str
    model: str


class StreamExpired(FailedPrecondition):
    """The events of '{stream}' are not kept any more; the object itself can still be read."""

    reason = "STREAM_EXPIRED"
    stream: str


class JobNotRetriable(FailedPrecondition):
    """The job '{job}' cannot begin again: {problem}"""

    reason = "JOB_NOT_RETRIABLE"
    job: str
    problem: str


class ThreadBusy(FailedPrecondition):
    """Can't {action} {thread} while a run {run} is active."""

    reason = "THREAD_BUSY"
    thread: str
    run: str
    action: str
    """ "add messages to", "change messages of", "delete messages of", "delete" or "migrate"."""


class WebsocketConnectionLimitReached(FailedPrecondition):
    """This WebSocket has been open for {limit_s} seconds, as long as it may. Open another one to go
    on."""

    reason = "WEBSOCKET_CONNECTION_LIMIT_REACHED"
    limit_s: int


class ConversationLocked(FailedPrecondition):
    """The conversation '{conversation}' is being written to by the response '{response}'. Try again
    once that has ended."""

    reason = "CONVERSATION_LOCKED"
    conversation: str
    response: str
    field: str = "conversation"
    """What named the conversation."""


class RunActive(FailedPrecondition):
    """Thread {thread} already has an active run {run}."""

    reason = "RUN_ACTIVE"
    thread: str
    run: str


class RunNotCancellable(FailedPrecondition):
    """Cannot cancel run with status '{state}'."""

    reason = "RUN_NOT_CANCELLABLE"
    run: str
    state: str


class ToolOutputsNotAccepted(FailedPrecondition):
    """Runs in status "{state}" do not accept tool outputs."""

    reason = "TOOL_OUTPUTS_NOT_ACCEPTED"
    run: str
    state: str


class ResponseNotCancellable(FailedPrecondition):
    """Cannot cancel a synchronous response."""

    reason = "RESPONSE_NOT_CANCELLABLE"
    response: str


class PreviousResponseUnfinished(FailedPrecondition):
    """The previous response '{response}' is {state}; what it will say is not known yet."""

    reason = "PREVIOUS_RESPONSE_UNFINISHED"
    response: str
    state: str
    """"queued" or "in_progress"."""
    field: str = "previous_response_id"
    """What named the response."""


# ---- UNAUTHENTICATED


class Unauthenticated(DomainError):
    """Who calls is not known."""


class ApiKeyMissing(Unauthenticated):
    """You didn't provide an API key. Send it in the Authorization header: "Bearer YOUR_KEY"."""

    reason = "API_KEY_MISSING"


class ApiKeyInvalid(Unauthenticated):
    """Incorrect API key provided."""

    reason = "API_KEY_INVALID"


class ApiKeyExpired(Unauthenticated):
    """The API key has expired."""

    reason = "API_KEY_EXPIRED"


class ApiKeyRevoked(Unauthenticated):
    """The API key was revoked."""

    reason = "API_KEY_REVOKED"


# ---- PERMISSION_DENIED


class PermissionDenied(DomainError):
    """Who calls is known and may not."""


class ScopeMissing(PermissionDenied):
    """The API key lacks the scope '{scope}', which {method} needs."""

    reason = "SCOPE_MISSING"
    scope: str
    method: str


class ServiceOnly(PermissionDenied):
    """'{field}' is believed from services of this installation only."""

    reason = "SERVICE_ONLY"
    field: str


class HostNotAllowed(PermissionDenied):
    """The Host '{host}' is not served here. Allow it in the settings (allowed_hosts)."""

    reason = "HOST_NOT_ALLOWED"
    host: str


class OriginNotAllowed(PermissionDenied):
    """Requests from the site '{origin}' are not allowed. Allow it in the settings
    (allowed_origins)."""

    reason = "ORIGIN_NOT_ALLOWED"
    origin: str


class ProjectArchived(PermissionDenied):
    """The project '{project}' is archived."""

    reason = "PROJECT_ARCHIVED"
    project: str


# ---- NOT_FOUND


class NotFound(DomainError):
    """The named thing does not exist."""


class ModelNotFound(NotFound):
    """The model '{model}' does not exist or you do not have access to it."""

    reason = "MODEL_NOT_FOUND"
    model: str


class AdapterNotFound(NotFound):
    """The adapter '{adapter}' does not exist."""

    reason = "ADAPTER_NOT_FOUND"
    adapter: str


class SnapshotNotFound(NotFound):
    """The snapshot '{snapshot}' does not exist."""

    reason = "SNAPSHOT_NOT_FOUND"
    snapshot: str


class StateNotFound(NotFound):
    """No state is held for choice {index} of the request '{request}': it has not begun, or has
    ended and was not kept."""

    reason = "STATE_NOT_FOUND"
    request: str
    index: int


class RouteNotFound(NotFound):
    """Invalid URL ({method} {path})"""

    reason = "ROUTE_NOT_FOUND"
    method: str
    path: str


class FileNotFound(NotFound):
    """No such File object: {file}"""

    reason = "FILE_NOT_FOUND"
    file: str
    field: str = "id"
    """What named the file."""


class UploadNotFound(NotFound):
    """No such Upload object: {upload}"""

    reason = "UPLOAD_NOT_FOUND"
    upload: str
    field: str = "id"
    """What named the upload."""


class ProjectNotFound(NotFound):
    """No such project: {project}"""

    reason = "PROJECT_NOT_FOUND"
    project: str
    field: str = "project_id"
    """What named the project."""


class ApiKeyNotFound(NotFound):
    """No such API key: {key}"""

    reason = "API_KEY_NOT_FOUND"
    key: str
    field: str = "key_id"
    """What named the key."""


class BatchNotFound(NotFound):
    """No such Batch object: {batch}"""

    reason = "BATCH_NOT_FOUND"
    batch: str
    field: str = "id"
    """What named the batch."""


class VectorStoreNotFound(NotFound):
    """No vector store found with id '{vector_store}'."""

    reason = "VECTOR_STORE_NOT_FOUND"
    vector_store: str
    field: str = "vector_store_id"
    """What named the store."""


class VectorStoreFileNotFound(NotFound):
    """No file found with id '{file}' in this vector store."""

    reason = "VECTOR_STORE_FILE_NOT_FOUND"
    file: str
    field: str = "file_id"
    """What named the file."""


class VectorStoreFileBatchNotFound(NotFound):
    """No file batch found with id '{batch}' in this vector store."""

    reason = "VECTOR_STORE_FILE_BATCH_NOT_FOUND"
    batch: str
    field: str = "batch_id"
    """What named the batch."""


class JobNotFound(NotFound):
    """There is no job '{job}', or no longer."""

    reason = "JOB_NOT_FOUND"
    job: str
    field: str = "job_id"
    """What named the job."""


class AssistantNotFound(NotFound):
    """No assistant found with id '{assistant}'."""

    reason = "ASSISTANT_NOT_FOUND"
    assistant: str


class ThreadNotFound(NotFound):
    """No thread found with id '{thread}'."""

    reason = "THREAD_NOT_FOUND"
    thread: str


class MessageNotFound(NotFound):
    """No message found with id '{message_id}'."""

    reason = "MESSAGE_NOT_FOUND"
    message_id: str


class ConversationNotFound(NotFound):
    """Conversation with id '{conversation}' not found."""

    reason = "CONVERSATION_NOT_FOUND"
    conversation: str
    field: str = "conversation_id"
    """What named the conversation."""


class ItemNotFound(NotFound):
    """Item with id '{item}' not found."""

    reason = "ITEM_NOT_FOUND"
    item: str
    field: str = "item_id"
    """What named the item."""


class RunNotFound(NotFound):
    """No run found with id '{run}'."""

    reason = "RUN_NOT_FOUND"
    run: str


class RunStepNotFound(NotFound):
    """No run step found with id '{step}'."""

    reason = "RUN_STEP_NOT_FOUND"
    step: str


class ResponseNotFound(NotFound):
    """Response with id '{response}' not found."""

    reason = "RESPONSE_NOT_FOUND"
    response: str
    field: str = "response_id"
    """What named the response."""


# ---- ALREADY_EXISTS


class AlreadyExists(DomainError):
    """The name is taken."""


class ModelExists(AlreadyExists):
    """The name '{model}' is taken by another model."""

    reason = "MODEL_EXISTS"
    model: str


class AdapterExists(AlreadyExists):
    """The name '{adapter}' is taken by another adapter."""

    reason = "ADAPTER_EXISTS"
    adapter: str


class ProjectExists(AlreadyExists):
    """The id '{project}' is taken by another project."""

    reason = "PROJECT_EXISTS"
    project: str
    field: str = "project_id"
    """What named the project."""


class RequestIdReused(AlreadyExists):
    """Another request had the id '{request_id}' within the last day; choose a new one."""

    reason = "REQUEST_ID_REUSED"
    field: str
    request_id: str


# ---- ABORTED


class Aborted(DomainError):
    """A conflict with something concurrent; try again."""


class SlowReader(Aborted):
    """The stream was left unread for {limit_s} s with {unread_events} events waiting."""

    reason = "SLOW_READER"
    unread_events: int
    limit_s: float | str


class StaleGeneration(Aborted):
    """'{resource}' changed meanwhile; read it again."""

    reason = "STALE_GENERATION"
    resource: str


# ---- RESOURCE_EXHAUSTED


class ResourceExhausted(DomainError):
    """A bound is reached; try again later."""

    retry_after: float | None = 1.0


class QueueFull(ResourceExhausted):
    """The server is busy: its queue holds {depth} of at most {limit} {bound}. Try again later."""

    reason = "QUEUE_FULL"
    bound: str
    """What is counted: "requests", "tokens" or "characters"."""
    depth: int
    limit: int


class RateLimited(ResourceExhausted):
    """Rate limit reached: {limit}. Try again later."""

    reason = "RATE_LIMITED"
    limit: str
    """The limit in words, such as "60 requests a minute"."""


class MemoryInUse(ResourceExhausted):
    """The model '{model}' needs {needed_bytes} bytes of memory, {available_bytes} are available
    while other models are in use. Try again later."""

    reason = "MEMORY_IN_USE"
    model: str
    needed_bytes: int
    available_bytes: int


# ---- CANCELLED


class Cancelled(DomainError):
    """The caller or an operator ended it."""


class CallerCancelled(Cancelled):
    """The caller cancelled the request or went away."""

    reason = "CALLER_CANCELLED"


class AbortedByOperator(Cancelled):
    """An operator aborted the request."""

    reason = "ABORTED_BY_OPERATOR"


# ---- DEADLINE_EXCEEDED


class DeadlineExceeded(DomainError):
    """The time is over."""


class DeadlineExpired(DeadlineExceeded):
    """The request's deadline passed (phase: {phase})."""

    reason = "DEADLINE_EXPIRED"
    phase: str
    """What the request was in: "queued", "prefill", "decode" or "call"."""


# ---- UNAVAILABLE


class Unavailable(DomainError):
    """Not now; try again later."""

    retry_after: float | None = 1.0


class Draining(Unavailable):
    """The server is shutting down and takes no new requests."""

    reason = "DRAINING"


class ModelLoading(Unavailable):
    """The model '{model}' is still loading."""

    reason = "MODEL_LOADING"
    model: str


class EngineRestarting(Unavailable):
    """The inference engine stopped and is being restarted."""

    reason = "ENGINE_RESTARTING"
    phase: str | None = None
    """ "running" where the request was in the engine when it died; None where it never was."""


class UpstreamUnavailable(Unavailable):
    """The service '{service}' cannot be reached."""

    reason = "UPSTREAM_UNAVAILABLE"
    service: str


class StorageFailed(Unavailable):
    """The server's storage failed: {problem}"""

    reason = "STORAGE_FAILED"
    problem: str


class ModelUnloaded(Unavailable):
    """The model '{model}' was unloaded."""

    reason = "MODEL_UNLOADED"
    model: str


# ---- UNIMPLEMENTED


class Unimplemented(DomainError):
    """Not in this release."""


class FeatureUnsupported(Unimplemented):
    """This release does not support: {feature}."""

    reason = "FEATURE_UNSUPPORTED"
    feature: str


# ---- INTERNAL


class Internal(DomainError):
    """A defect of ours."""


class InternalError(Internal):
    """The server had an error while processing your request. Its log has the cause under request id
    {request_id}."""

    reason = "INTERNAL"
    request_id: str


class DecodeFailed(Internal):
    """The model could not compute this request. The server's log has the cause under request id
    {request_id}."""

    reason = "DECODE_FAILED"
    request_id: str


class EngineCrashed(Internal):
    """The inference engine ended {times} times while it computed this work, which is not tried
    again."""

    reason = "ENGINE_CRASHED"
    times: int


class WorkAbandoned(Internal):
    """The process that did this work ended before it, {attempts} times in a row."""

    reason = "WORK_ABANDONED"
    attempts: int


def _concrete(cls: type[DomainError]) -> Iterator[type[DomainError]]:
    for child in cls.__subclasses__():
        if "reason" in vars(child):
            yield child
        yield from _concrete(child)


KINDS: Final[tuple[type[DomainError], ...]] = tuple(DomainError.__subclasses__())
"""The thirteen kinds, in the order of the tree."""

ERROR_CLASSES: Final[tuple[type[DomainError], ...]] = tuple(_concrete(DomainError))
"""Every concrete class: one for each value of `ErrorReason`."""


def kind_of(error: DomainError | type[DomainError]) -> type[DomainError]:
    """The kind an error belongs to: the class directly below DomainError."""
    cls = error if isinstance(error, type) else type(error)
    return cls.__mro__[cls.__mro__.index(DomainError) - 1]
