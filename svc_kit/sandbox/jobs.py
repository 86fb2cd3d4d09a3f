"""Jobs of sandboxed children: module and function, limits, failures."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

MIB = 1 << 20


class FailureKind(StrEnum):
    """Why a job gave no result."""

    REFUSED = "refused"
    DEADLINE = "deadline"
    MEMORY = "memory"
    OUTPUT = "output"
    CRASHED = "crashed"


class JobRefused(Exception):
    """Raised by a job in the child: the input cannot be used, for the reason given."""


class JobFailed(Exception):
    """A job gave no result. `problem` is a text for the caller, without paths or stack traces."""

    def __init__(self, kind: FailureKind, problem: str) -> None:
        super().__init__(kind, problem)
        self.kind = kind
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


@dataclass(frozen=True, slots=True)
class Job:
    """A function of a child process and its limits.

    Args:
        module: where the function is.
        function: its name; it takes the decoded payload and returns what JSON can hold.
        deadline_s: wall-clock seconds before the child is killed.
        memory_bytes: address space it may take beyond what the child has with its module.
        output_bytes: the longest result as JSON.
    """

    module: str
    function: str
    deadline_s: float = 2.0
    memory_bytes: int = 512 * MIB
    output_bytes: int = 64 * MIB


class JobRunner(Protocol):
    """Runs jobs in limited child processes: `SandboxPool`, or a stand-in."""

    async def run(self, job: Job, payload: dict[str, Any], *, key: str = "") -> Any:
        """Run one job and return its result; those of one key share a reputation.

        Raises:
            JobFailed: it gave none.
        """
