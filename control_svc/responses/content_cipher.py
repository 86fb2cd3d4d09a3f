"""Encrypts reasoning and summaries that callers keep and send back, per project."""

from typing import Final

from pydantic import TypeAdapter

from control_svc.responses.model import Summary
from svc_kit.encryption import Sealer

_SUMMARY: Final = TypeAdapter(Summary)


class ContentCipher:
    """ContentCipher and opens with the installation's key."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def seal_thought(self, project: str, thought: str) -> str:
        """Encrypt reasoning; equal texts give equal results."""
        return self._sealer.seal(f"thought/{project}", thought)

    def open_thought(self, project: str, sealed: str) -> str | None:
        """Decrypt reasoning; None if it was not sealed here for the project, or was changed."""
        return self._sealer.open(f"thought/{project}", sealed)

    def seal_summary(self, project: str, summary: Summary) -> str:
        """Encrypt a summary of earlier items."""
        return self._sealer.seal(f"summary/{project}", _SUMMARY.dump_json(summary).decode())

    def open_summary(self, project: str, sealed: str) -> Summary | None:
        """Decrypt a summary; None as in `open_thought`."""
        document = self._sealer.open(f"summary/{project}", sealed)
        return None if document is None else _SUMMARY.validate_json(document)
