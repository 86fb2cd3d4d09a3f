"""Requests and commands to the engine, and the adapters that they use.

Adapters are identified by the digests of their files. An adapter stack is a set: llama.cpp sums the
effects of the adapters in an unspecified order.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.detokenizer import ContentFinder, Detokenizer
from inference_svc.engine.embedding_request import SubmitEmbedding
from inference_svc.engine.media import MediaSpan
from inference_svc.engine.reasoning_tracker import ReasoningSpec
from inference_svc.engine.sampling_params import Sampling


class AppliedAdapter(NamedTuple):
    """An adapter and the scale of its effect. `digest` is the hexadecimal SHA-256 of its file, or
    its name at an engine of others."""

    digest: str
    scale: float


AdapterStack = tuple[AppliedAdapter, ...]
NO_ADAPTERS: AdapterStack = ()


def adapter_stack(applied: Iterable[AppliedAdapter]) -> AdapterStack:
    """Return the canonical form of a stack: sorted, and without adapters of scale 0.

    The scales of an adapter that occurs twice are added, since its effect is linear.
    """
    scales: dict[str, float] = defaultdict(float)
    for adapter in applied:
        scales[adapter.digest] += adapter.scale
    return tuple(AppliedAdapter(digest, scale) for digest, scale in sorted(scales.items()) if scale)


class LoadAdapter(NamedTuple):
    """Load a validated adapter file. The result is `AdapterLoadDone`."""

    digest: str
    path: Path


class UnloadAdapter(NamedTuple):
    """Unload an adapter that no sequence uses; unknown ones are ignored."""

    digest: str


MAX_DRAFT = 31
"""Maximum length of a draft. With the token before it, a row has 32 tokens; in llama.cpp the logits
of longer rows depend on the length of the row."""


class ArchiveOwner(NamedTuple):
    """For whom a sequence may be archived, the id of a stored object or `project_archive`, and the
    SHA-256 (hexadecimal) of the model."""

    name: str
    digest: str


_PROJECT: Final = "project:"


def project_archive(project: str) -> str:
    """The name under which the stateless requests of a project are archived. No id of a stored
    object has a colon."""
    return _PROJECT + project


def is_of_project(owner: str) -> bool:
    """Whether this is the name of a project, not the id of a stored object."""
    return owner.startswith(_PROJECT)


def archived_project(owner: str) -> str:
    """The project of `project_archive`; empty for the id of a stored object."""
    return owner.removeprefix(_PROJECT) if is_of_project(owner) else ""


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One choice of one generation, as the engine receives it.

    `prompt` and `resumed` are token ids (`array("i")`, which pickles compactly). `resumed` are
    output tokens of an earlier attempt: they count as output, the samplers are replayed over them
    and they are not emitted again. `snapshot_id` names a restored snapshot of exactly these tokens,
    with the sampler state that the tokens alone do not determine.

    `source` are the tokens that the encoder of an encoder-decoder model reads; the prompt is then
    what the decoder starts with, and no prefix is reused.

    `media` are the chunks of pictures and sounds in the prompt, in order: there the prompt has the
    `media_tokens` of their digests.

    `deadline` and `queue_deadline` (the time by which it must have a slot) are on the machine's
    monotonic clock. `cache_key` separates the cached prefixes of different owners; prefixes
    computed with different `adapters` are separate too. With `keep` the KV state is retained after
    the sequence ends; with `keep_for` it may be archived for that owner. Slots are shared fairly
    between the values of `project`.

    With `prompt_logprobs` the log probability of each prompt token is computed, with those of this
    many alternatives. Since cached cells have no logits, the prompt then does not start from a
    cached prefix.

    With `is_gathered` nobody reads the output before its end, so that an engine of others may send
    several tokens at once.

    A draft has up to `max_draft` tokens, 0 for none; `predicted` is the caller's predicted output.
    A `deterministic` sequence is computed alone (`Planner.solo_plan`), and must neither `reuse` a
    prefix nor draft. The tokens of the `reasoning` are counted; None if the model has none.
    `request_id` is that of the RPC, for errors.

    For an upstream in text mode `chat` are the fields of a chat completion (OpenAI's), and the
    prompt has no tokens, but an estimated number of them, `estimated_tokens`; `media_bytes` is the
    size of its pictures in base64.

    The text ends at the first of `stop`, which with `content` counts only in the content of the
    turn (`Detokenizer`), or at the first of `end_texts`, which end the turns of the model.
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
    end_texts: tuple[str, ...] = ()
    content: Callable[[], ContentFinder] | None = None
    stop_tokens: frozenset[int] = frozenset()
    ignore_eos: bool = False
    include_stop: bool = False
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    special_tokens: bool = False
    is_gathered: bool = False
    visible_tokens: frozenset[int] = frozenset()
    priority: int = 2
    project: str = ""
    deadline: float | None = None
    queue_deadline: float | None = None
    reuse: bool = True
    keep: bool = False
    keep_for: ArchiveOwner | None = None
    snapshot_id: str = ""
    max_draft: int = MAX_DRAFT
    predicted: "array[int]" = field(default_factory=lambda: array("i"))
    request_id: str = ""
    constraint: Constraint | None = None
    reasoning: ReasoningSpec | None = None
    deterministic: bool = False
    adapters: AdapterStack = NO_ADAPTERS
    media: tuple[MediaSpan, ...] = ()
    source: "array[int]" = field(default_factory=lambda: array("i"))
    chat: Mapping[str, Any] | None = None
    estimated_tokens: int = 0
    media_bytes: int = 0

    def new_detokenizer(self) -> Detokenizer:
        return Detokenizer(
            self.stop,
            ends=self.end_texts,
            include_stop=self.include_stop,
            content=self.content() if self.content is not None and self.stop else None,
        )

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that count as the prompt: those of the source, if there is one."""
        return len(self.source) or len(self.prompt) or self.estimated_tokens

    @property
    def input_digest(self) -> str:
        """Stands for the prompt with its media, the adapters and the sampling, on which the output
        depends beside the weights and the seed. Empty in text mode.

        Services of two releases compare it, so a sampling parameter at its default, which another
        release may lack, is not in it.
        """
        if self.chat is not None:
            return ""
        changed = [
            (each.name, value)
            for each in fields(Sampling)
            if (value := getattr(self.sampling, each.name)) != each.default
        ]
        adapters = [tuple(each) for each in self.adapters]
        digest = blake2b(self.prompt.tobytes(), digest_size=16)
        digest.update(repr((self.source.tolist(), adapters, changed)).encode())
        return digest.hexdigest()

    @property
    def may_start_cached(self) -> bool:
        """Whether its prompt may start from a cached prefix."""
        return self.reuse and self.prompt_logprobs is None


class Submit(NamedTuple):
    """Queue a sequence."""

    request: SequenceRequest


class Cancel(NamedTuple):
    """Cancel a sequence in any phase; unknown ids are ignored."""

    sequence_id: int


class Pause(NamedTuple):
    """Exclude a sequence from plans, because its client reads too slowly, or include it again."""

    sequence_id: int
    paused: bool


class ShareCores(NamedTuple):
    """Leave the cores to the process of the encoder between steps, and stop it in those of streams;
    without `encoder_pid` do so no longer. The result is `SnapshotDone`."""

    job_id: int
    encoder_pid: int | None


class Flush(NamedTuple):
    """Drop all cached prefixes. The result is `Flushed`."""

    job_id: int


class SaveSnapshot(NamedTuple):
    """Save the state of a choice of a request to a file. The result is `SnapshotDone`.

    `digest` is the hexadecimal SHA-256 of the model.
    """

    job_id: int
    request_id: str
    choice: int
    digest: str


class RestoreSnapshot(NamedTuple):
    """Restore a saved state into memory. The result is `SnapshotDone`."""

    job_id: int
    snapshot_id: str
    digest: str


class DropCachedPrefixes(NamedTuple):
    """Delete the archived prefixes of owners, and archive no more of what they have now.

    The result is `SnapshotDone` with the number of deleted files.
    """

    job_id: int
    owners: tuple[str, ...]


class ArchivePrefixes(NamedTuple):
    """Archive all prefixes in slots and memory, since the engine is about to end. The result is
    `SnapshotDone` with the number of written files."""

    job_id: int


SnapshotCommand = SaveSnapshot | RestoreSnapshot
FileCommand = SnapshotCommand | DropCachedPrefixes | ArchivePrefixes
AdapterCommand = LoadAdapter | UnloadAdapter
Command = (
    Submit | SubmitEmbedding | Cancel | Pause | ShareCores | Flush | FileCommand | AdapterCommand
)
