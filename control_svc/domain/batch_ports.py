"""What the use cases of batches need from the outside."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from control_svc.domain.batch_results import LineResult, PendingLine
from control_svc.domain.batches import Batch


class Portion(NamedTuple):
    """The most that is read at once; of lines that are larger than that, one."""

    num_lines: int
    num_bytes: int

    def of(self, sizes: Sequence[int]) -> int:
        """How many of the first lines it holds, by their bytes."""
        total = 0
        for count, size in enumerate(sizes[: self.num_lines]):
            total += size
            if count and total > self.num_bytes:
                return count
        return min(len(sizes), self.num_lines)


READ_AT_ONCE: Final = Portion(32, 8 << 20)


class LineRunner(Protocol):
    """Carries out the requests of lines."""

    async def run(self, project: str, batch: Batch, line: PendingLine) -> LineResult:
        """How the line ended; an error that its request deserves is an end like another.

        Raises what another try may end better: ResourceExhausted, Unavailable, Aborted. Of an
        engine that died while it had the request: EngineRestarting with a phase.
        """
