"""LoRA adapters: the registered object, its changes, and what frontends should load and report."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from control_svc.base.ids import ADAPTER, is_id
from control_svc.base.validation import SHA256_DIGITS, check_digest, check_request_id, check_text
from control_svc.base.versioning import check_etag, etag_of
from model_files.adapter_facts import AdapterFacts
from svc_kit.adapter_rules import check_adapter_name, check_scale
from svc_kit.errors import InvalidField

MAX_DESCRIPTION_CHARACTERS: Final = 512
MAX_MODEL_CHARACTERS: Final = 255
REPORTS_COUNT_FOR: Final = timedelta(minutes=2)
"""Reports of a frontend that has not reported for so long are ignored."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """A registered adapter."""

    id: str
    name: str
    """What requests of its project call it."""
    model: str
    """Its base model's name; empty: each frontend's first."""
    description: str
    default_scale: float
    standing_scale: float
    """What it is applied with where a request names no adapter; 0: it is not."""
    # its bytes
    sha256: str
    file_bytes: int
    blob_key: str
    facts: AdapterFacts
    # its life
    attempt: int = 0
    """How often a retry was requested."""
    revision: int = 0
    """Of the registry, when it last changed."""
    created_at: datetime
    updated_at: datetime

    @property
    def etag(self) -> str:
        """Another one after each change; the number itself would count other projects' changes."""
        return etag_of(self.id, self.revision)

    def check_etag(self, etag: str) -> None:
        """Raises StaleGeneration."""
        check_etag(etag, self.etag, self.name)


@dataclass(frozen=True, kw_only=True)
class NewAdapter:
    """The request to register an adapter."""

    name: str
    model: str = ""
    description: str = ""
    default_scale: float = 1.0
    file_id: str = ""
    path: str = ""
    sha256: str = ""
    replace: bool = False
    request_id: str = ""

    def check(self) -> None:
        """Validate what is known before the bytes. Raises MissingField, TooLong, InvalidField or
        OutOfRange.
        """
        check_adapter_name(self.name)
        if is_id(self.name, ADAPTER):
            raise InvalidField(field="name", problem="it looks like an id")
        _check_optional("model", self.model, MAX_MODEL_CHARACTERS)
        _check_optional("description", self.description, MAX_DESCRIPTION_CHARACTERS)
        check_scale("default_scale", self.default_scale)
        check_digest("sha256", self.sha256, SHA256_DIGITS)
        check_request_id(self.request_id)
        if self.file_id and self.path:
            raise InvalidField(field="path", problem="it cannot stand beside a file_id")


@dataclass(frozen=True, kw_only=True)
class AdapterChanges:
    """What a caller changes of an adapter; None: it stays as it is."""

    default_scale: float | None = None
    standing_scale: float | None = None
    description: str | None = None

    def check(self) -> None:
        """Raises TooLong, InvalidField or OutOfRange."""
        for field in ("default_scale", "standing_scale"):
            scale = getattr(self, field)
            if scale is not None:
                check_scale(field, scale)
        _check_optional("description", self.description or "", MAX_DESCRIPTION_CHARACTERS)

    def applied_to(self, adapter: Adapter) -> Adapter:
        """The adapter as it should be."""
        changed = {name: value for name, value in asdict(self).items() if value is not None}
        return replace(adapter, **changed)


def _check_optional(field: str, text: str, limit: int) -> None:
    if text:
        check_text(field, text, limit)


# ---- what frontends should have


@dataclass(frozen=True, kw_only=True)
class DesiredAdapter:
    """An adapter as every frontend should have it."""

    id: str
    project: str
    name: str
    model: str
    sha256: str
    file_bytes: int
    default_scale: float
    standing_scale: float
    attempt: int


@dataclass(frozen=True)
class DesiredState:
    """Everything that every frontend should have."""

    revision: int
    adapters: Mapping[str, DesiredAdapter]
    """By id."""

    def change_from(self, earlier: "DesiredState") -> "DesiredChange":
        """What is different."""
        return DesiredChange(
            self.revision,
            [each for each in self.adapters.values() if earlier.adapters.get(each.id) != each],
            sorted(earlier.adapters.keys() - self.adapters.keys()),
        )


@dataclass(frozen=True)
class DesiredChange:
    """The difference of two states; several changes may have become one."""

    revision: int
    adapters: Sequence[DesiredAdapter]
    removed_ids: Sequence[str]


# ---- what frontends say


class ReportedState(StrEnum):
    """Where an adapter is in its life in one engine."""

    FETCHING = "fetching"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"

    @property
    def is_settled(self) -> bool:
        """Whether nothing more happens by itself."""
        return self in (ReportedState.READY, ReportedState.FAILED)


@dataclass(frozen=True, kw_only=True)
class AdapterReport:
    """How an adapter is in one engine of a frontend."""

    adapter_id: str
    project: str
    frontend: str
    address: str
    model: str
    state: ReportedState
    reason: str
    problem: str
    sha256: str
    reported_at: datetime


@dataclass(frozen=True)
class AdapterWithReports:
    """An adapter, and how it is in the engines."""

    adapter: Adapter
    reports: Sequence[AdapterReport] = ()

    @property
    def is_settled(self) -> bool:
        """Whether a frontend has taken it up and none is still busy with it."""
        return bool(self.reports) and all(
            report.state.is_settled and report.sha256 == self.adapter.sha256
            for report in self.reports
        )


ADAPTERS_TOPIC: Final = "adapters"
"""What is announced when the registry of adapters changes, or a frontend reports."""
