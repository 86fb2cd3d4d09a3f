"""Requests and commands to the engine, and the adapters that they use.

An adapter stack is a set: llama.cpp adds what each adapter adds, in an order of its own. Adapters
are identified by the digests of their files.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.embedding_request import SubmitEmbedding
from inference_svc.engine.sampling_params import Sampling


class AppliedAdapter(NamedTuple):
    """An adapter by the SHA-256 of its file, in hex, and what its effect is multiplied by."""

    digest: str
    scale: float


AdapterStack = tuple[AppliedAdapter, ...]
NO_ADAPTERS: AdapterStack = ()


def adapter_stack(applied: Iterable[AppliedAdapter]) -> AdapterStack:
    """The stack in its one form, by which it is compared and keyed: sorted, an adapter that comes
    twice once with the sum of its scales (the effect is linear), none at scale 0."""
    scales: dict[str, float] = defaultdict(float)
    for adapter in applied:
        scales[adapter.digest] += adapter.scale
    return tuple(AppliedAdapter(digest, scale) for digest, scale in sorted(scales.items()) if scale)


class LoadAdapter(NamedTuple):
    """Read an adapter's file, which was checked before; `AdapterLoaded` or `AdapterFailed`
    answers."""

    model: str
    digest: str
    path: Path


class UnloadAdapter(NamedTuple):
    """Free an adapter that no sequence uses any more; an unknown one is no error."""

    model: str
    digest: str


MAX_DRAFT = 31
"""The longest draft: 32 tokens with the one before it, up to which the logits of a row do not
depend on its length."""


class StoredObjectRef(NamedTuple):
    """The stored object that a sequence is part of; `digest` is the SHA-256, in hex, of the model
    that is served."""

    object_id: str
    digest: str


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One choice of one generation, as the engine receives it.

    `prompt` and `resumed` are token ids (`array("i")`, which pickles compactly). `resumed` are
    output tokens of an earlier attempt: they count as output, the samplers are replayed over them
    and they are not emitted again. `snapshot_id` names a restored snapshot of exactly these tokens,
    which holds the sampler state that the tokens alone do not determine.

    `deadline` and `queue_deadline` (the time by which it must have a slot) are on the machine's
    monotonic clock. `cache_key` separates the cached prefixes of different owners; prefixes
    computed with different `adapters` are separate too. With `keep` the KV state is retained after
    the sequence ends; with `keep_for` it may be archived for that object. Slots are shared fairly
    between the values of `project`.

    `max_draft` is the number of tokens speculated at once at most, 0 for none; `predicted` is the
    caller's predicted output. A `deterministic` sequence is computed alone (see `solo`) and must
    neither `reuse` a prefix nor speculate. `request_id` is the RPC's, for errors.
    """

    sequence_id: int
    model: str
    prompt: "array[int]"
    sampling: Sampling
    seed: int
    choice: int
    max_tokens: int
    cache_key: bytes
    resumed: "array[int]"
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    ignore_eos: bool = False
    include_stop: bool = False
    top_logprobs: int | None = None
    special_tokens: bool = False
    visible_tokens: frozenset[int] = frozenset()
    priority: int = 2
    project: str = ""
    deadline: float | None = None
    queue_deadline: float | None = None
    reuse: bool = True
    keep: bool = False
    keep_for: StoredObjectRef | None = None
    snapshot_id: str = ""
    max_draft: int = MAX_DRAFT
    predicted: "array[int]" = field(default_factory=lambda: array("i"))
    request_id: str = ""
    constraint: Constraint | None = None
    deterministic: bool = False
    adapters: AdapterStack = NO_ADAPTERS


class Submit(NamedTuple):
    """Queue a sequence."""

    request: SequenceRequest


class Cancel(NamedTuple):
    """End a sequence, in whatever phase; unknown ids are no error."""

    sequence_id: int


class Pause(NamedTuple):
    """Plan nothing for a sequence until `Unpause`: its reader is behind."""

    sequence_id: int


class Unpause(NamedTuple):
    """Plan a paused sequence again."""

    sequence_id: int


class Flush(NamedTuple):
    """Forget everything that is only kept for reuse; `Flushed` answers."""

    flush_id: int


class SaveSnapshot(NamedTuple):
    """Write what a choice of a request has computed to a file; `SnapshotDone` answers.

    `digest` is the SHA-256, in hex, of the model that is served.
    """

    job_id: int
    request_id: str
    choice: int
    digest: str


class RestoreSnapshot(NamedTuple):
    """Read a file back into the memory of its model; `SnapshotDone` answers. `digest` as above."""

    job_id: int
    snapshot_id: str
    digest: str


class DropCachedPrefixes(NamedTuple):
    """Delete what is archived for stored objects, and archive no more of what is computed;
    `SnapshotDone` answers with the number of files."""

    job_id: int
    object_ids: tuple[str, ...]


SnapshotCommand = SaveSnapshot | RestoreSnapshot
FileCommand = SnapshotCommand | DropCachedPrefixes
AdapterCommand = LoadAdapter | UnloadAdapter
Command = Submit | SubmitEmbedding | Cancel | Pause | Unpause | Flush | FileCommand | AdapterCommand
