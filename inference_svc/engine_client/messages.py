"""Messages of the engine's pipe other than commands and events: configuration and startup."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from inference_svc.engine.embedding_request import EmbeddingLimits
from inference_svc.engine.events import Event
from inference_svc.engine.scheduler.policy import Policy
from inference_svc.engine_client.features import Features
from inference_svc.llama.backend import BackendSettings
from inference_svc.llama.embeddings import EmbeddingSettings
from inference_svc.llama.warmup import WarmUp
from inference_svc.models.file_identity import FileStamp
from inference_svc.models.memory_plan import Layout
from inference_svc.snapshots.snapshot import Snapshot
from inference_svc.snapshots.store import NO_SNAPSHOTS, FolderLimits, FolderUsage
from svc_kit.errors import DomainError


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The first message to an engine process: the model to load, and how to serve it.

    `threads` are the configured compute threads; None is chosen from the `cores`. `warm_up` are the
    measurements of an earlier process, so that a restart does not measure again. `saved_bytes` is
    the memory for prefixes without a slot. A model that does not generate has an embedding context
    only. `stamps` identify its files as they were described; `digest` is the SHA-256 of the files,
    or empty if it is not computed yet. `draft` is its draft model, if any. With `takes_media` it
    computes pictures or sounds. `stream_interval_s` is that of the output batcher; None is its
    default. `abort_on` injects a fault for tests: a request with this stop text aborts the process.
    """

    name: str
    backend: BackendSettings
    chunk_cap: int
    threads: int | None
    cores: int
    log_level: str = "info"
    warm_up_budget_s: float = 0.0
    warm_up: WarmUp | None = None
    saved_bytes: int = 0
    policy: Policy = Policy.BALANCED
    token_target_s: float = 0.1
    adapter_wait_s: float = 0.05
    embedding: EmbeddingSettings | None = None
    generates: bool = True
    draft: BackendSettings | None = None
    takes_media: bool = False
    stamps: tuple[FileStamp, ...] = ()
    digest: str = ""
    snapshots: FolderLimits = NO_SNAPSHOTS
    archive: FolderLimits = NO_SNAPSHOTS
    stream_interval_s: float | None = 0.0
    abort_on: str | None = None


@dataclass(frozen=True, slots=True)
class ModelReady:
    """A loaded model.

    `slot_tokens` may be more than requested, because llama.cpp rounds up. A model that does not
    generate has no slots. In the unified layout all slots share `shared_cells`. `device_bytes` is
    the memory that it uses on each GPU, `source_tokens` what an encoder reads at once for all
    sequences. `features` are those of an upstream engine, None for a local one. The size of its KV
    cache is not known.
    """

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
    source_tokens: int = 0
    features: Features | None = None

    @property
    def layout(self) -> Layout:
        """The layout of its KV cache."""
        if not self.slots or self.features is not None:
            return Layout.AUTO
        return Layout.STREAMS if self.shared_cells is None else Layout.UNIFIED

    @property
    def num_cells(self) -> int:
        """The tokens that all slots can hold together; 0 if that is not known."""
        if self.features is not None:
            return 0
        return self.shared_cells or self.slots * self.slot_tokens


class LoadPhase(enum.Enum):
    """Phase of a load: waiting for another load or for memory, reading weights, or creating the
    context and measuring step times."""

    WAITING = "waiting"
    WEIGHTS = "weights"
    WARM_UP = "warm_up"


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Progress of a load; `fraction` is the part of the weights that is read, 0 to 1."""

    phase: LoadPhase
    fraction: float = 0.0


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded and warm; `snapshots` is the content of the snapshot folder."""

    model: ModelReady
    system_info: str
    snapshots: FolderUsage


class DeviceMemoryReport(NamedTuple):
    """The memory that an engine uses on each GPU, sent when it has changed."""

    device_bytes: Mapping[str, int]


class SnapshotDone(NamedTuple):
    """The answer to a snapshot command: the snapshot, the number of dropped ones, or an error; and
    the folder's content (None: unchanged). Also the answer to `ShareCores`."""

    job_id: int
    outcome: Snapshot | int | DomainError
    use: FolderUsage | None


EngineMessage = Ready | LoadProgress | SnapshotDone | DeviceMemoryReport | list[Event]
