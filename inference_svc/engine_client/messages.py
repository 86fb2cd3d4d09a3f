"""Messages of the pipe beside commands and events: configuration and start of the engine."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from inference_svc.engine.embedding_request import EmbeddingLimits
from inference_svc.engine.scheduler.policy import Policy
from inference_svc.llama.backend import BackendSettings
from inference_svc.llama.embeddings import EmbeddingSettings
from inference_svc.llama.warmup import WarmUp
from inference_svc.models.file_identity import FileStamp
from inference_svc.models.memory_plan import Layout
from inference_svc.snapshots.snapshot import Snapshot
from inference_svc.snapshots.store import NO_SNAPSHOTS, FolderLimits, FolderUse
from svc_kit.errors import DomainError


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model to load. `warm_up` holds what an earlier process measured, so that a restart need not
    measure again. `saved_bytes` are for prefixes that lost their slot. One that does not generate
    has a context for embeddings only. `stamps` are those of its files as they were described,
    `digest` is theirs, once it is known."""

    name: str
    backend: BackendSettings
    chunk_cap: int
    threads: int | None
    warm_up: WarmUp | None = None
    saved_bytes: int = 0
    policy: Policy = Policy.BALANCED
    token_target_s: float = 0.1
    adapter_wait_s: float = 0.05
    embedding: EmbeddingSettings | None = None
    generates: bool = True
    stamps: tuple[FileStamp, ...] = ()
    digest: str = ""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The first message to an engine process. `stream_interval_s`: see `Outbox`, None as
    `usual_interval_s` says; `abort_on` is a fault for tests: at a request with this stop text the
    process aborts."""

    model: ModelConfig
    cores: int
    log_level: str
    log_json: bool | None
    warm_up_budget_s: float
    snapshots: FolderLimits = NO_SNAPSHOTS
    archive: FolderLimits = NO_SNAPSHOTS
    stream_interval_s: float | None = 0.0
    abort_on: str | None = None


@dataclass(frozen=True, slots=True)
class ModelReady:
    """A model answers. `slot_tokens` may be above what was asked for: llama.cpp rounds up. One that
    does not generate has no slots. In the unified layout all slots share `shared_cells`.
    `device_bytes` is what it took of the memory of each GPU."""

    name: str
    slots: int
    slot_tokens: int
    batch_tokens: int
    warm_up: WarmUp
    load_s: float
    embedding: EmbeddingLimits | None = None
    pooling: str = ""
    shared_cells: int | None = None
    device_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """The layout of its KV cache."""
        if not self.slots:
            return Layout.AUTO
        return Layout.STREAMS if self.shared_cells is None else Layout.UNIFIED

    @property
    def num_cells(self) -> int:
        """Tokens that all slots hold together."""
        return self.shared_cells or self.slots * self.slot_tokens


class LoadPhase(enum.Enum):
    """What is being done to load a model: waiting for another load or for memory, reading weights,
    or making its context and measuring."""

    WAITING = "waiting"
    WEIGHTS = "weights"
    WARM_UP = "warm_up"


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a model is loaded; `fraction` is how much of the weights is read, 0 to 1."""

    phase: LoadPhase
    fraction: float = 0.0


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded and warm; `snapshots` are in the folder."""

    model: ModelReady
    system_info: str
    snapshots: FolderUse


class DevicesTaken(NamedTuple):
    """What an engine has of each GPU since it took more, or gave some back."""

    device_bytes: Mapping[str, int]


class SnapshotDone(NamedTuple):
    """What became of a snapshot command: the snapshot, how many were dropped, or why not; and what
    the folder holds since (None: as before)."""

    job_id: int
    outcome: Snapshot | int | DomainError
    use: FolderUse | None


@dataclass(frozen=True, slots=True)
class EngineStartFailed:
    """The process cannot serve; it exits after this."""

    problem: str
