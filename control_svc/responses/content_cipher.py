"""Encrypts reasoning and summaries that callers keep and send back, per project."""

from dataclasses import replace
from typing import Final

from pydantic import TypeAdapter

from control_svc.items.model import Item, Message, Text
from control_svc.responses.model import Summary
from svc_kit.encryption import Sealer

_SUMMARY: Final = TypeAdapter(Summary)


class ContentCipher:
    """Encrypts and decrypts with the installation's key."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def seal_thought(self, project: str, thought: str) -> str:
        """Encrypt reasoning; equal texts give equal results."""
        return self._sealer.seal(f"thought/{project}", thought)

    def open_thought(self, project: str, sealed: str) -> str | None:
        """Decrypt reasoning; None if it was not sealed here for the project, or was changed."""
        return self._sealer.open(f"thought/{project}", sealed)

    def seal_summary(self, project: str, summary: Summary) -> str:
        """Encrypt a summary of earlier items, without the log probabilities of those it keeps."""
        stored = replace(summary, kept=tuple(map(_without_logprobs, summary.kept)))
        return self._sealer.seal(f"summary/{project}", _SUMMARY.dump_json(stored).decode())

    def open_summary(self, project: str, sealed: str) -> Summary | None:
        """Decrypt a summary; None as in `open_thought`."""
        document = self._sealer.open(f"summary/{project}", sealed)
        return None if document is None else _SUMMARY.validate_json(document)


def _without_logprobs(item: Item) -> Item:
    """The bytes of their tokens need not be UTF-8, as JSON must be, and no model reads them."""
    if not isinstance(item.content, Message):
        return item
    parts = (
        replace(part, logprobs=()) if isinstance(part, Text) else part
        for part in item.content.content
    )
    return replace(item, content=replace(item.content, content=tuple(parts)))
