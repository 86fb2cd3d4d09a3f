"""Snapshots of what a request has computed, and the state that they are taken of."""

from svc_kit.errors.kinds import FailedPrecondition, NotFound


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
