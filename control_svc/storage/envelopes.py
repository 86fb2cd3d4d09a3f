"""What callers keep for us: documents, sealed for one project and one use."""

from typing import Final

from pydantic import TypeAdapter

from control_svc.domain.compactions import Summary
from svc_kit.sealing import Sealer

_SUMMARY: Final = TypeAdapter(Summary)


class Envelopes:
    """Seals and opens with the installation's key."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def seal_thought(self, project: str, thought: str) -> str:
        """A thought; always sealed alike."""
        return self._sealer.seal(f"thought/{project}", thought)

    def open_thought(self, project: str, sealed: str) -> str | None:
        """The thought again; None: it was not sealed here for the project, or was changed."""
        return self._sealer.open(f"thought/{project}", sealed)

    def seal_summary(self, project: str, summary: Summary) -> str:
        """What stands for earlier items."""
        return self._sealer.seal(f"summary/{project}", _SUMMARY.dump_json(summary).decode())

    def open_summary(self, project: str, sealed: str) -> Summary | None:
        """The summary again; None: as with thoughts."""
        document = self._sealer.open(f"summary/{project}", sealed)
        return None if document is None else _SUMMARY.validate_json(document)
