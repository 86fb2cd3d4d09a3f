"""LoRA adapters: the registered object, the desired state of frontends, and their reports."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from control_svc.base.ids import ADAPTER, is_id
from control_svc.base.validation import SHA256_DIGITS, check_digest
from control_svc.base.versioning import check_etag, etag_of
from model_files.adapter_facts import AdapterFacts
from svc_kit.adapter_rules import check_adapter_name
from svc_kit.errors import InvalidField

DEFAULT_SCALE: Final = 1.0
REPORT_TTL: Final = timedelta(minutes=2)
"""Older reports of a frontend are ignored."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """A registered adapter."""

    id: str
    name: str
    """Model name by which requests of the project select the adapter."""
    model: str
    """Name of the base model; empty for the first model of each frontend."""
    description: str
    default_scale: float
    standing_scale: float
    """Scale for requests that name no adapter; 0 disables it."""
    sha256: str
    file_bytes: int
    blob_key: str
    facts: AdapterFacts
    attempt: int = 0
    """Number of requested retries."""
    revision: int = 0
    """Revision of the registry at the last change of this adapter."""
    created_at: datetime
    updated_at: datetime

    @property
    def etag(self) -> str:
        """Changes with each update, without revealing how often other projects change theirs."""
        return etag_of(self.id, self.revision)

    def check_etag(self, etag: str) -> None:
        """Raise StaleGeneration unless `etag` is empty or current."""
        check_etag(etag, self.etag, self.name)


@dataclass(frozen=True, kw_only=True)
class NewAdapter:
    name: str
    model: str = ""
    description: str = ""
    default_scale: float = DEFAULT_SCALE
    file_id: str = ""
    path: str = ""
    sha256: str = ""
    replace: bool = False
    request_id: str = ""

    def check(self) -> None:
        """Validate the fields, before any bytes arrive.

        Raises MissingField, TooLong, InvalidField or OutOfRange.
        """
        check_adapter_name(self.name)
        if is_id(self.name, ADAPTER):
            raise InvalidField(field="name", problem="must not have the form of an adapter id")
        check_digest("sha256", self.sha256, SHA256_DIGITS)
        if self.file_id and self.path:
            raise InvalidField(field="path", problem="cannot be combined with 'file_id'")


# ---- desired state


@dataclass(frozen=True, kw_only=True)
class DesiredAdapter:
    """An adapter that every frontend should load."""

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
    """All adapters that every frontend should load."""

    revision: int
    adapters: Mapping[str, DesiredAdapter]
    """By id."""

    def diff(self, earlier: "DesiredState") -> "DesiredChange":
        """Return the changes since an earlier state."""
        return DesiredChange(
            self.revision,
            [each for each in self.adapters.values() if earlier.adapters.get(each.id) != each],
            sorted(earlier.adapters.keys() - self.adapters.keys()),
        )


@dataclass(frozen=True)
class DesiredChange:
    """The difference of two states, which may combine several changes."""

    revision: int
    adapters: Sequence[DesiredAdapter]
    removed_ids: Sequence[str]


# ---- reports of frontends


class ReportedState(StrEnum):
    """State of an adapter in one engine."""

    FETCHING = "fetching"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"

    @property
    def is_settled(self) -> bool:
        """Whether the state changes only after another update."""
        return self in (ReportedState.READY, ReportedState.FAILED)


@dataclass(frozen=True, kw_only=True)
class Frontend:
    """An inference frontend that has reported its adapters.

    `revision` is that of the last desired state whose removed adapters it has unloaded, 0 for none.
    """

    frontend: str
    address: str
    revision: int
    reported_at: datetime


@dataclass(frozen=True, kw_only=True)
class AdapterReport:
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
    """An adapter and its state in each engine."""

    adapter: Adapter
    reports: Sequence[AdapterReport] = ()
    frontend_count: int = 0
    """Frontends that are alive, with a report of this adapter or without."""

    @property
    def ready_frontend_count(self) -> int:
        """Frontends whose engines all have the adapter."""
        return self._count(lambda state: state is ReportedState.READY)

    @property
    def is_settled(self) -> bool:
        """Whether there are frontends, and all of them have loaded the adapter or failed to."""
        return 0 < self.frontend_count <= self._count(lambda state: state.is_settled)

    def _count(self, is_wanted: Callable[[ReportedState], bool]) -> int:
        """Count the frontends all of whose reports are of this file and in a wanted state."""
        frontends = {report.frontend for report in self.reports}
        others = {
            report.frontend
            for report in self.reports
            if report.sha256 != self.adapter.sha256 or not is_wanted(report.state)
        }
        return len(frontends - others)


ADAPTERS_TOPIC: Final = "adapters"
"""Notification topic for changes of the registry and for reports of frontends."""
