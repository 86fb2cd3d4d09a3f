"""One generation of an adapter, as the frontend knows it."""

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from model_files.adapter_file import AdapterDescription
from svc_kit.errors import DomainError
from svc_kit.private_file import PrivateFile


class AdapterKey(NamedTuple):
    """A name in its project; that of an operator's adapter is empty."""

    project: str
    name: str


class AdapterState(enum.Enum):
    """Where a generation is in its life."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Adapter:
    """One generation of an adapter: a checked file for a model, under a name."""

    name: str
    model: str
    file: PrivateFile
    description: AdapterDescription
    default_scale: float
    project: str = ""
    """Whose requests may use it; empty: everybody's."""
    standing_scale: float = 0.0
    """What its project's requests that name no adapter use it with; 0: they do not."""
    generation: int = 0
    state: AdapterState = AdapterState.LOADING
    error: DomainError | None = None
    """Why it failed."""
    ready_at: datetime | None = None

    @property
    def key(self) -> "AdapterKey":
        """What it is found by."""
        return AdapterKey(self.project, self.name)

    @property
    def problem(self) -> str:
        """Why it failed, in words; empty: it did not."""
        error = self.error
        return "" if error is None else error.metadata.get("problem", error.message)

    @property
    def digest(self) -> str:
        """The SHA-256 of its file, in hex."""
        return self.file.digest

    @property
    def content(self) -> tuple[str, str]:
        """What it is in the engine."""
        return self.model, self.digest
