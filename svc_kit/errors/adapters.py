"""Errors of adapters and their files."""

from svc_kit.errors.kinds import AlreadyExists, FailedPrecondition, NotFound


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
    """The engine crashed while loading the adapter '{adapter}', which is not loaded again
    automatically. Replace its file or retry it."""

    reason = "ADAPTER_CRASHED_ENGINE"
    adapter: str


class TooManyAdapters(FailedPrecondition):
    """The project has {limit} adapters, the maximum. Delete one first."""

    reason = "TOO_MANY_ADAPTERS"
    limit: int


class AdapterNotFound(NotFound):
    """The adapter '{adapter}' does not exist."""

    reason = "ADAPTER_NOT_FOUND"
    adapter: str


class AdapterExists(AlreadyExists):
    """An adapter named '{adapter}' already exists."""

    reason = "ADAPTER_EXISTS"
    adapter: str
