"""Encrypts, per project, reasoning and summaries that clients store and send back."""

from dataclasses import dataclass, replace
from typing import Final

from pydantic import TypeAdapter

from control_svc.items.model import Item, Message, Text
from control_svc.responses.model import Summary
from svc_kit.encryption import Sealer

_SUMMARY: Final = TypeAdapter(Summary)


@dataclass(frozen=True)
class ContentCipher:
    """Encrypts and decrypts with the key of the installation."""

    sealer: Sealer

    def seal_reasoning(self, project: str, text: str) -> str:
        """Encrypt reasoning. Deterministic."""
        return self.sealer.seal(f"thought/{project}", text)

    def open_reasoning(self, project: str, sealed: str) -> str | None:
        """Decrypt reasoning; None if it was not encrypted here for the project, or was changed."""
        return self.sealer.open(f"thought/{project}", sealed)

    def seal_summary(self, project: str, summary: Summary) -> str:
        """Encrypt a summary, without the log probabilities of its items."""
        stored = replace(summary, kept=tuple(map(_without_logprobs, summary.kept)))
        return self.sealer.seal(f"summary/{project}", _SUMMARY.dump_json(stored).decode())

    def open_summary(self, project: str, sealed: str) -> Summary | None:
        """Decrypt a summary; None as in `open_reasoning`."""
        document = self.sealer.open(f"summary/{project}", sealed)
        return None if document is None else _SUMMARY.validate_json(document)


def _without_logprobs(item: Item) -> Item:
    """Remove log probabilities: token bytes need not be UTF-8, as JSON requires."""
    if not isinstance(item.content, Message):
        return item
    parts = (
        replace(part, logprobs=()) if isinstance(part, Text) else part
        for part in item.content.content
    )
    return replace(item, content=replace(item.content, content=tuple(parts)))
