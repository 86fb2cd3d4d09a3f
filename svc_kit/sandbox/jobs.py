"""Jobs for sandboxed children: functions, their limits, and failures."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

MIB = 1 << 20
SANDBOX: Final = "sandbox"
"""The service that UpstreamUnavailable names for faults of the sandbox."""
WAITING_FACTOR: Final = 10.0
"""A job that has not computed for its deadline within this many times the deadline is stopped as
well. It is not to blame, because it has waited for a processor or a disk that others use."""


class FailureKind(StrEnum):
    """Why a job has no result."""

    REFUSED = "refused"
    DEADLINE = "deadline"
    MEMORY = "memory"
    OUTPUT = "output"
    CRASHED = "crashed"
    UNAVAILABLE = "unavailable"
    """Because of the state of the server. `SandboxPool.run` raises another error for it."""


class JobRefused(Exception):
    """Raised by a job in the child to reject its input; the message is for the caller."""


class JobFailed(Exception):
    """A job has no result. `problem` is safe to return to the caller: no paths, no stack traces."""

    def __init__(self, kind: FailureKind, problem: str) -> None:
        super().__init__(kind, problem)
        self.kind = kind
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


@dataclass(frozen=True, slots=True)
class Job:
    """A function to run in a child process, and its limits.

    Args:
        module: the module of the function.
        function: its name. It takes the decoded payload and returns a JSON value. Values of a
            payload or a result that is a dict may also be bytes.
        deadline_s: seconds that it may compute before the child is killed, for which it has
            `WAITING_FACTOR` times as long.
        memory_bytes: address space the job may use in addition to the imported module.
        output_bytes: maximum size of the result as JSON and bytes.
    """

    module: str
    function: str
    deadline_s: float = 2.0
    memory_bytes: int = 512 * MIB
    output_bytes: int = 64 * MIB


class JobRunner(Protocol):
    """Runs jobs: `SandboxPool` in child processes, or a double in tests."""

    async def run(self, job: Job, payload: dict[str, Any], *, key: str = "") -> Any:
        """Run one job and return its result; `key` and errors as in `SandboxPool.run`."""
