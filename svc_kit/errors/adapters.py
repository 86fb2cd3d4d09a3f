"""Errors of adapters and their files."""

from svc_kit.errors.kinds import AlreadyExists, FailedPrecondition, NotFound


class AdapterBaseMismatch(FailedPrecondition):
    """The adapter '{adapter}' was trained for another base model: {problem}"""

    adapter: str
    problem: str


class AdapterInvalid(FailedPrecondition):
    """The file of the adapter '{adapter}' is not a usable LoRA adapter: {problem}"""

    adapter: str
    problem: str


class AdapterDigestMismatch(FailedPrecondition):
    """The file of the adapter '{adapter}' has the SHA-256 digest {actual}, expected {expected}."""

    adapter: str
    expected: str
    actual: str


class AdapterTooLarge(FailedPrecondition):
    """The adapter '{adapter}' needs {needed_bytes} bytes of memory, but only
    {available_bytes} are available."""

    adapter: str
    needed_bytes: int
    available_bytes: int


class AdapterCrashedEngine(FailedPrecondition):
    """The engine crashed while loading the adapter '{adapter}', which is not loaded again
    automatically. Replace its file, or retry the adapter."""

    adapter: str


class TooManyAdapters(FailedPrecondition):
    """The project already has {limit} adapters, the maximum. Delete an adapter first."""

    limit: int


class AdapterNotFound(NotFound):
    """The adapter '{adapter}' does not exist."""

    adapter: str


class AdapterExists(AlreadyExists):
    """An adapter named '{adapter}' already exists. Choose another name."""

    adapter: str
