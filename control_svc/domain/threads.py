"""Threads: conversations that assistants are run on. A thread's row is the lock of its timeline."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from control_svc.domain.checks import check_metadata, check_request_id
from control_svc.domain.messages import NewMessage
from control_svc.domain.revisions import Revised
from control_svc.domain.tool_checks import check_new_stores, check_resources
from control_svc.domain.tools import NO_RESOURCES, ToolResources
from control_svc.domain.vector_stores import NewVectorStore
from svc_kit.errors import ThreadBusy, TooLong

MAX_FIRST_MESSAGES: Final = 1000


@dataclass(frozen=True, kw_only=True)
class ThreadSettings:
    """What its owner says of a thread."""

    resources: ToolResources = NO_RESOURCES
    metadata: Mapping[str, str] = field(default_factory=dict)

    def check(self, path: str = "") -> None:
        """`path` is written before the names of fields.

        Raises MissingField, TooLong or InvalidField.
        """
        check_resources(self.resources, f"{path}tool_resources")
        check_metadata(self.metadata, f"{path}metadata")


@dataclass(frozen=True, kw_only=True)
class NewThread:
    """A thread that a caller begins."""

    settings: ThreadSettings = ThreadSettings()
    messages: tuple[NewMessage, ...] = ()
    new_stores: tuple[NewVectorStore, ...] = ()
    """Made with it, for file_search."""
    request_id: str = ""

    def check(self, path: str = "") -> None:
        """`path` is written before the names of fields.

        Raises MissingField, TooLong, InvalidField, OutOfRange or UnsupportedValue.
        """
        self.settings.check(path)
        check_new_stores(self.new_stores, self.settings.resources, f"{path}tool_resources")
        field, length = f"{path}messages", len(self.messages)
        if length > MAX_FIRST_MESSAGES:
            raise TooLong(field=field, length=length, limit=MAX_FIRST_MESSAGES)
        for index, message in enumerate(self.messages):
            message.check(f"{field}[{index}].")
        check_request_id(self.request_id)


@dataclass(frozen=True, kw_only=True)
class Thread(Revised[ThreadSettings]):
    """A thread."""

    settings: ThreadSettings  # once more: who reads documents does not know what SettingsT is here
    active_run_id: str = ""
    """The run that has not ended; nobody else adds to the timeline, or takes from it."""
    cut: int = 0
    """Truncation: models are shown the timeline from this position on."""

    def check_idle(self, action: str) -> None:
        """`action` is what a run forbids, such as "add messages to". Raises ThreadBusy."""
        if self.active_run_id:
            raise ThreadBusy(thread=self.id, run=self.active_run_id, action=action)
