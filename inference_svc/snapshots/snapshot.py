"""Metadata of a snapshot, and its compatibility with a model."""

from collections.abc import Container
from dataclasses import dataclass, fields
from typing import NamedTuple

from inference_svc.engine.saved_state import Origin, SavedPrefix
from inference_svc.snapshots.cell_blocks import CellBlocks
from svc_kit.errors import SnapshotIncompatible


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything that KV cells depend on besides tokens. `model` is the SHA-256 of the model file
    in hex; `cache` has the types of keys and values, and RoPE settings that override the file's;
    `llama_cpp` is the version that defines the state format."""

    architecture: str
    model: str
    cache: str
    llama_cpp: str


class RestoreTarget(NamedTuple):
    """The engine that restores a snapshot: fingerprint, digests of its loaded adapters, and tokens
    per slot."""

    fingerprint: Fingerprint
    adapters: Container[str]
    slot_tokens: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A saved sequence without its KV cells. The first `num_computed` tokens have cells, which take
    `state_bytes` in its file. `whole`, whether there is a length to which they cannot be truncated,
    is written but not used: earlier releases ignored sliding windows. `key` is the cache key
    (tenant), `created_at` is Unix time in seconds. `kept_for` is the id of the stored object, for a
    prefix of the disk prefix cache, most of whose cells are in `blocks`."""

    snapshot_id: str
    created_at: float
    model: str
    fingerprint: Fingerprint
    key: bytes
    num_computed: int
    whole: bool
    origin: Origin
    state_bytes: int
    kept_for: str = ""
    blocks: CellBlocks | None = None

    def saved_prefix(self, state: bytearray, min_tokens: int) -> SavedPrefix:
        """Return the prefix with these KV cells, which serves `min_tokens` or more of them."""
        return SavedPrefix(
            self.key,
            self.origin.tokens[: self.num_computed],
            state,
            min_tokens,
            self.origin,
            self.snapshot_id,
            self.kept_for,
        )

    def check_compatible(self, target: RestoreTarget) -> None:
        """Raise `SnapshotIncompatible` for the first difference."""
        for field in fields(Fingerprint):
            actual = getattr(self.fingerprint, field.name)
            expected = getattr(target.fingerprint, field.name)
            if actual != expected:
                raise self._incompatible(field.name, expected, actual)
        for digest, _ in self.origin.adapters:
            if digest not in target.adapters:
                raise self._incompatible("adapters", "a loaded adapter", digest)
        # One more token must fit: restored cells have no logits, so the next token is computed.
        if self.num_computed >= target.slot_tokens:
            actual = f"{self.num_computed + 1} tokens or more"
            raise self._incompatible("context", f"{target.slot_tokens} tokens", actual)

    def _incompatible(self, aspect: str, expected: str, found: str) -> SnapshotIncompatible:
        return SnapshotIncompatible(
            snapshot=self.snapshot_id, aspect=aspect, expected=expected, found=found
        )
