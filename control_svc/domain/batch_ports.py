"""What the use cases of batches need from the outside."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from control_svc.domain.batch_lines import NewLine
from control_svc.domain.batch_results import EndedLine, LineResult, PendingLine
from control_svc.domain.batches import Batch, LineState
from control_svc.domain.listing import Window


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


class BatchRepository(Protocol):
    """The rows of batches."""

    async def add(self, project: str, batch: Batch) -> None:
        """Keep a new batch."""

    async def get(self, project: str, batch_id: str) -> Batch:
        """Raises BatchNotFound."""

    async def lock(self, project: str, batch_id: str) -> Batch:
        """As `get`; until the end of the transaction nobody else changes the batch."""

    async def update(self, project: str, batch: Batch) -> None:
        """Keep what has changed of a locked batch."""

    async def page(self, project: str, window: Window) -> list[Batch]:
        """The batches of a window, newest first."""


class BatchLineRepository(Protocol):
    """The rows of lines, for the worker that holds the batch's job."""

    async def add(self, project: str, batch_id: str, lines: Sequence[NewLine]) -> None:
        """Keep lines that have been checked."""

    async def drop(self, project: str, batch_id: str, limit: int) -> int:
        """Forget lines of a batch; how many there were."""

    async def pending(
        self, project: str, batch_id: str, after: PendingLine | None, most: Portion
    ) -> list[PendingLine]:
        """The next lines to run, in their order; `after` None: from the start."""

    async def end(self, project: str, batch_id: str, results: Sequence[LineResult]) -> None:
        """Keep how pending lines ended."""

    async def still_pending(
        self, project: str, batch_id: str, numbers: Collection[int]
    ) -> set[int]:
        """Those of the lines that have not ended."""

    async def set_deaths(self, project: str, batch_id: str, deaths: Mapping[int, int]) -> None:
        """How many engines have died while they had a line, by its number."""

    async def close(self, project: str, batch_id: str, state: LineState) -> None:
        """End the pending lines: they will not run."""

    async def reopen(self, project: str, batch_id: str) -> int:
        """Let the lines that a failure of the batch ended be pending again; how many there were."""

    async def ended(
        self, project: str, batch_id: str, *, completed: bool, after: int, most: Portion
    ) -> list[EndedLine]:
        """The next lines that completed, or that did not, in the order of the file."""


class LineRunner(Protocol):
    """Carries out the requests of lines."""

    async def run(self, project: str, batch: Batch, line: PendingLine) -> LineResult:
        """How the line ended; an error that its request deserves is an end like another.

        Raises what another try may end better: ResourceExhausted, Unavailable, Aborted. Of an
        engine that died while it had the request: EngineRestarting with a phase.
        """
