"""What the engine is asked: commands from the frontend, crossing the pipe."""

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from inference_svc.engine.adapter_stack import BASE, AdapterStack, LoadAdapter, UnloadAdapter
from inference_svc.engine.embedding import SubmitEmbedding
from inference_svc.engine.guide import Constraint
from inference_svc.engine.sampling import Sampling

MAX_DRAFT = 31
"""The longest draft: 32 tokens with the one before it, up to which the logits of a row do not
depend on its length."""


class KeepFor(NamedTuple):
    """The stored object that a sequence is part of; `digest` is the SHA-256, in hex, of the model
    that is served."""

    object_id: str
    digest: str


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One choice of one generation: everything the engine needs to know of it.

    `prompt` and `resumed` are token ids (`array("i")`, to travel compactly). `resumed` are output
    tokens that were produced before: they count as output, samplers are replayed over them and
    nothing of them is emitted again; `snapshot_id` is a restored snapshot of just these tokens,
    from which the sampler knows what they do not tell. `deadline` is on the machine's monotonic
    clock, and so is `queue_deadline`, by which it must have a slot. `cache_key` keeps prefixes of
    different owners apart, and those of different `adapters`; with `keep` the state is held when
    the sequence has ended, and with `keep_for` it may be archived as a part of that object.
    `project` shares the engine fairly. `max_draft` bounds the tokens guessed at once, 0 forbids it;
    `predicted` is what the caller expects the output to repeat. A `deterministic` sequence is
    computed by itself (see `solo`) and must neither `reuse` nor guess. `request_id` is the RPC's,
    for errors.
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
    keep_for: KeepFor | None = None
    snapshot_id: str = ""
    max_draft: int = MAX_DRAFT
    predicted: "array[int]" = field(default_factory=lambda: array("i"))
    request_id: str = ""
    constraint: Constraint | None = None
    deterministic: bool = False
    adapters: AdapterStack = BASE


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


class DropArchived(NamedTuple):
    """Delete what is archived for stored objects, and archive no more of what is computed;
    `SnapshotDone` answers with the number of files."""

    job_id: int
    object_ids: tuple[str, ...]


SnapshotCommand = SaveSnapshot | RestoreSnapshot
FileCommand = SnapshotCommand | DropArchived
AdapterCommand = LoadAdapter | UnloadAdapter
Command = Submit | SubmitEmbedding | Cancel | Pause | Unpause | Flush | FileCommand | AdapterCommand
