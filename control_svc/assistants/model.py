"""Assistants and threads: settings and validation."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from control_svc.assistants.message_model import NewMessage
from control_svc.base.versioning import Versioned
from control_svc.inference.generation_options import NO_OPTIONS, GenerationOptions
from control_svc.tools.model import (
    NO_RESOURCES,
    FileSearchTool,
    FunctionTool,
    ResponseFormat,
    Tool,
    ToolResources,
)
from control_svc.tools.tool_validation import (
    check_effort,
    check_format,
    check_new_stores,
    check_resources,
    check_tools,
)
from control_svc.vector_stores.model import NewVectorStore
from svc_kit.errors import MissingField, ThreadBusy, UnsupportedValue


@dataclass(frozen=True, kw_only=True)
class AssistantSettings:
    model: str
    name: str = ""
    description: str = ""
    instructions: str = ""
    tools: tuple[Tool, ...] = ()
    resources: ToolResources = NO_RESOURCES
    metadata: Mapping[str, str] = field(default_factory=dict)
    options: GenerationOptions = NO_OPTIONS
    format: ResponseFormat | None = None
    """None means "auto", unless the options set a format."""
    reasoning_effort: str = ""

    def check(self) -> None:
        """Raises MissingField, TooLong, InvalidField, InvalidJson, OutOfRange or
        UnsupportedValue."""
        if not self.model:
            raise MissingField(field="model")
        check_assistant_tools(self.tools)
        check_resources(self.resources)
        check_format(self.format)
        check_effort(self.reasoning_effort)


@dataclass(frozen=True, kw_only=True)
class NewAssistant:
    settings: AssistantSettings
    new_stores: tuple[NewVectorStore, ...] = ()
    """Vector stores to create for file_search."""
    request_id: str = ""

    def check(self) -> None:
        """Raises the errors of `AssistantSettings.check` and `check_new_stores`."""
        self.settings.check()
        check_new_stores(self.new_stores, self.settings.resources)


class Assistant(Versioned[AssistantSettings]):
    """An assistant."""


def check_assistant_tools(tools: tuple[Tool, ...]) -> None:
    """Validate the tools of an assistant or a run: functions and file_search.

    Raises UnsupportedValue, and the errors of `check_tools`.
    """
    for index, tool in enumerate(tools):
        if not isinstance(tool, FunctionTool | FileSearchTool):
            raise UnsupportedValue(field=f"tools[{index}].type", value=tool.kind)
    check_tools(tools)


@dataclass(frozen=True, kw_only=True)
class ThreadSettings:
    resources: ToolResources = NO_RESOURCES
    metadata: Mapping[str, str] = field(default_factory=dict)

    def check(self, path: str = "") -> None:
        """Validate the settings; `path` is a prefix for field names in errors.

        Raises MissingField, TooLong or InvalidField.
        """
        check_resources(self.resources, f"{path}tool_resources")


@dataclass(frozen=True, kw_only=True)
class NewThread:
    settings: ThreadSettings = ThreadSettings()
    messages: tuple[NewMessage, ...] = ()
    new_stores: tuple[NewVectorStore, ...] = ()
    """Vector stores to create for file_search."""
    request_id: str = ""

    def check(self, path: str = "") -> None:
        """Validate the request; `path` is a prefix for field names in errors.

        Raises MissingField, TooLong, InvalidField, OutOfRange or UnsupportedValue.
        """
        self.settings.check(path)
        check_new_stores(self.new_stores, self.settings.resources, f"{path}tool_resources")
        for index, message in enumerate(self.messages):
            message.check(f"{path}messages[{index}].")


@dataclass(frozen=True, kw_only=True)
class Thread(Versioned[ThreadSettings]):
    settings: ThreadSettings  # repeated since pydantic does not resolve SettingsT
    active_run_id: str = ""
    """Id of the active run, which alone may change the timeline; empty if there is none."""
    cut: int = 0
    """Position in the timeline of the first item in prompts; increased by truncation."""

    def check_idle(self, action: str) -> None:
        """Raises ThreadBusy while a run is active; `action`, such as "delete", is for its text."""
        if self.active_run_id:
            raise ThreadBusy(thread=self.id, run=self.active_run_id, action=action)
