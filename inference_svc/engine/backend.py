"""The interface between the engine and a loaded model: decoding, sampling and KV-cache slots.

The engine guarantees to a backend:
- every batch has passed `check_native_limits`;
- rows are in ascending slot order, and the positions of a slot are consecutive;
- `trim` is never called between building a batch and its `decode`;
- `save`, `restore` and `copy` are called in an order that `kv_cache.copies.CacheCopier` allows;
- `score` and `sample` get rows of the last `decode`, `sample` each row at most once;
- `use_adapters` receives only loaded adapters, and only unused adapters are unloaded;
- all methods are called from the step thread.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from inference_svc.engine.batch import NativeLimits, TokenBatch
from inference_svc.engine.constraint import Constraint, Guide, TokenMask
from inference_svc.engine.events import ChosenLogprob
from inference_svc.engine.request import AdapterStack, SequenceRequest


class DecodeError(Exception):
    """`llama_decode` rejected a batch or failed; `code` is its return value."""

    def __init__(self, code: int) -> None:
        super().__init__(f"llama_decode returned {code}")
        self.code = code


class AdapterLoadError(Exception):
    """The native library could not load an adapter file; the message has the reason, if known."""


class SampledToken(NamedTuple):
    """A sampled token, with log probabilities if the request asked for them."""

    token: int
    logprob: ChosenLogprob | None


class SampleFailure(NamedTuple):
    """No token could be sampled for this sequence; other sequences are not affected."""

    problem: str


class Sampler(Protocol):
    """Sampling state of one sequence. All of it except `hidden` can be rebuilt from the request
    and the output tokens."""

    def accept(self, token: int) -> None:
        """Record an output token, for penalties."""

    @property
    def hidden(self) -> tuple[float, ...]:
        """State that cannot be derived from the tokens; empty for most samplers."""

    def restore_state(self, hidden: tuple[float, ...]) -> None:
        """Set the `hidden` state saved from another sampler of the same request."""

    def close(self) -> None:
        """Free native memory."""


class SampleTask(NamedTuple):
    """A request to sample a token from one row of logits. `draw` is the number of output tokens so
    far; `mask` has the tokens that the constraint allows."""

    row: int
    sampler: Sampler
    draw: int
    mask: TokenMask | None = None


class ScoreTask(NamedTuple):
    """A request for the log probabilities of a prompt's token, and of the `num_top` best ones, in
    one row of logits."""

    row: int
    token: int
    num_top: int


class EncoderInput(NamedTuple):
    """What the encoder reads for the sequence of a slot."""

    slot: int
    tokens: Sequence[int]


class Backend(Protocol):
    """A loaded model with its KV cache."""

    @property
    def limits(self) -> NativeLimits:
        """Limits on the size of a batch."""

    @property
    def can_trim(self) -> bool:
        """Whether the end of a slot can be dropped. False for models with recurrent state, whose
        slots must be copied by `save` and `restore` instead of `copy`."""

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Queue a copy of a whole slot. Lengths change now; cells are copied when the next
        `decode` starts. In the unified layout, `target` must be empty and immediately references
        the first `tokens` cells of `source`."""

    @property
    def used_cells(self) -> int:
        """Number of cells in use by all slots; a cell shared by several slots counts once."""

    def freed_by(self, slot: int) -> int:
        """Number of cells that emptying a slot would free."""

    def state_bytes(self, slot: int) -> int:
        """Size of the state that `save` would return."""

    def save(self, slot: int) -> bytearray:
        """Serialize the cells in use of a slot, without waiting for the next `decode`."""

    def restore(self, slot: int, state: bytearray) -> bool:
        """Replace the cells of a slot by a saved state, without waiting for the next `decode`.
        Returns False if the model rejects the state."""

    def load_adapter(self, digest: str, path: Path) -> None:
        """Load an adapter file under its digest. Raises `AdapterLoadError`."""

    def unload_adapter(self, digest: str) -> None:
        """Free an adapter."""

    def use_adapters(self, stack: AdapterStack) -> None:
        """Apply these adapters to all following decodes, instead of the current ones."""

    def decode(self, batch: TokenBatch) -> None:
        """Compute a batch. After a `DecodeError`, the slots may contain part of the batch."""

    def encode(self, sources: Sequence[EncoderInput]) -> None:
        """Compute the sources of all sequences, at most `limits.source_tokens` together, which the
        following decodes attend to. Raises `DecodeError`."""

    def sample(self, tasks: Sequence[SampleTask]) -> Sequence[SampledToken | SampleFailure]:
        """Sample a token for each task, in order."""

    def score(self, tasks: Sequence[ScoreTask]) -> Sequence[ChosenLogprob]:
        """The log probabilities for each task, in order, with ranks. Rows are not changed."""

    def new_sampler(self, request: SequenceRequest) -> Sampler:
        """Create the sampler of a sequence, with the prompt already accepted."""

    def new_guide(self, constraint: Constraint) -> Guide:
        """Create the guide of a constraint; its grammar is compiled on another thread."""

    def trim(self, slot: int, length: int) -> bool:
        """Truncate a slot to `length` tokens. Returns False, and leaves the slot unchanged, if
        `can_trim_to` is false; 0 is always possible."""

    def can_trim_to(self, slot: int, length: int) -> bool:
        """Whether a slot has everything on which the token after its first `length` ones depends: a
        sliding window may have moved past it, and a recurrent state is that of all tokens."""

    def min_restored(self, tokens: int) -> int:
        """The fewest tokens, besides 0, to which a slot can be truncated into which a state of this
        many tokens was restored: 0 if to any number, `tokens` if to no other."""

    def slot_length(self, slot: int) -> int:
        """Number of tokens in a slot, read from the native cache."""

    def piece(self, token: int, *, special: bool) -> bytes:
        """Bytes of a token; empty for control tokens unless `special`."""

    def is_eog(self, token: int) -> bool:
        """Whether this is an end-of-generation token."""
