"""Metadata of a snapshot, and whether it fits a model."""

from collections.abc import Container
from dataclasses import dataclass, fields
from typing import NamedTuple

from inference_svc.engine.saved_state import Origin
from svc_kit.errors import SnapshotIncompatible


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What cells depend on beside their tokens. `model` is the SHA-256 of its file, in hex; `cache`
    names the types of keys and values, and positions where they are not the file's; `llama_cpp` the
    version whose state format it is."""

    architecture: str
    model: str
    cache: str
    llama_cpp: str


class RestoreTarget(NamedTuple):
    """Whoever is to take in a snapshot: its fingerprint, the digests of the adapters it has, and
    the context of one slot in tokens."""

    fingerprint: Fingerprint
    adapters: Container[str]
    slot_tokens: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A saved sequence without its cells. The first `num_computed` of its tokens have cells, of
    `state_bytes`; `key` is whose they are, `created_at` seconds since 1970. `kept_for` is the
    stored object that an archived one is part of."""

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

    def check(self, receiver: RestoreTarget) -> None:
        """Raise `SnapshotIncompatible` for the first thing that differs."""
        for field in fields(Fingerprint):
            found = getattr(self.fingerprint, field.name)
            expected = getattr(receiver.fingerprint, field.name)
            if found != expected:
                raise self._misfit(field.name, expected, found)
        for digest, _ in self.origin.adapters:
            if digest not in receiver.adapters:
                raise self._misfit("adapters", "one that is loaded", digest)
        # One token more must fit: the cells of the last one give no logits.
        if self.num_computed >= receiver.slot_tokens:
            found = f"{self.num_computed + 1} tokens or more"
            raise self._misfit("context", f"{receiver.slot_tokens} tokens", found)

    def _misfit(self, aspect: str, expected: str, found: str) -> SnapshotIncompatible:
        return SnapshotIncompatible(
            snapshot=self.snapshot_id, aspect=aspect, expected=expected, found=found
        )
