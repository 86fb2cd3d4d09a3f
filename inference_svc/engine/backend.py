"""What the step loop needs of a model: a decode call, samplers, slots.

Invariants a backend may rely on, because the engine keeps them:
- every batch has passed `check_native_limits`;
- rows are in ascending slot order, and positions of a slot follow each other without a gap;
- `trim` is never called between building a batch and its `decode`;
- `save`, `restore` and `copy` come in the orders that `cells.Cells` allows;
- `sample` is called with rows of the last `decode` only, at most once a row;
- `use_adapters` names loaded adapters only, and only unused ones are unloaded.
All methods are called from the one step thread.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from inference_svc.engine.batch import NativeLimits, TokenBatch
from inference_svc.engine.constraint import Constraint, Guide, TokenMask
from inference_svc.engine.events import ChosenLogprob
from inference_svc.engine.request import AdapterStack, SequenceRequest


class DecodeError(Exception):
    """The native decode refused or failed a batch; `code` is what it returned."""

    def __init__(self, code: int) -> None:
        super().__init__(f"llama_decode returned {code}")
        self.code = code


class AdapterLoadError(Exception):
    """The native library refused an adapter's file; the message has the reason, if known."""


class SampledToken(NamedTuple):
    """A sampled token, with log probabilities where the request asked for them."""

    token: int
    logprob: ChosenLogprob | None


class SampleFailure(NamedTuple):
    """No token could be chosen for this sequence; the others have theirs."""

    problem: str


class Sampler(Protocol):
    """The sampling state of one sequence; all of it but `hidden` can be rebuilt from the request
    and the output tokens."""

    def accept(self, token: int) -> None:
        """Take note of an output token (for penalties)."""

    @property
    def hidden(self) -> tuple[float, ...]:
        """State that cannot be derived from the tokens; empty for most samplers."""

    def restore_state(self, hidden: tuple[float, ...]) -> None:
        """Know again what another one of the same request knew."""

    def close(self) -> None:
        """Free native memory."""


class SampleTask(NamedTuple):
    """Choose a token for a sequence from one row of logits; `draw` counts its output tokens so
    far, `mask` says which tokens its constraint allows."""

    row: int
    sampler: Sampler
    draw: int
    mask: TokenMask | None = None


class Backend(Protocol):
    """A loaded model with its KV cache."""

    @property
    def limits(self) -> NativeLimits:
        """What a batch may hold."""

    @property
    def can_trim(self) -> bool:
        """Whether the end of a slot can be dropped (attention-only models)."""

    @property
    def copies_by_state(self) -> bool:
        """Whether `copy` is not to be used (models with a state instead of, or beside, cells)."""

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Queue a copy of a whole slot: lengths change now, the cells with the next `decode`,
        before its rows. In the unified layout `target`, which must be empty, refers to the first
        `tokens` cells of `source` at once."""

    @property
    def used_cells(self) -> int:
        """Cells in use in all slots, those that several refer to once."""

    def freed_by(self, slot: int) -> int:
        """How many cells emptying a slot would free."""

    def state_bytes(self, slot: int) -> int:
        """The size of what `save` would return."""

    def save(self, slot: int) -> bytearray:
        """The cells in use of a slot, now."""

    def restore(self, slot: int, state: bytearray) -> bool:
        """Replace a slot's cells by saved ones, now; False where they were refused."""

    def load_adapter(self, digest: str, path: Path) -> None:
        """Read an adapter, to be known by its digest. Raises `AdapterLoadError`."""

    def unload_adapter(self, digest: str) -> None:
        """Free an adapter."""

    def use_adapters(self, stack: AdapterStack) -> None:
        """Compute with these adapters from the next decode on."""

    def decode(self, batch: TokenBatch) -> None:
        """Compute a batch. Raises `DecodeError`; the slots may then hold a part of it."""

    def sample(self, tasks: Sequence[SampleTask]) -> Sequence[SampledToken | SampleFailure]:
        """Choose a token for each task, in order."""

    def new_sampler(self, request: SequenceRequest) -> Sampler:
        """The sampler of a sequence, having seen the prompt."""

    def new_guide(self, constraint: Constraint) -> Guide:
        """What holds a sequence to its constraint; the grammar is built on another thread."""

    def trim(self, slot: int, length: int) -> bool:
        """Keep the first `length` tokens of a slot; False where the model cannot (the slot is then
        unchanged)."""

    def slot_length(self, slot: int) -> int:
        """How many tokens a slot holds, as the native cache sees it."""

    def reusable_from(self, slot: int) -> int:
        """The first position still attended to (above 0 after a sliding window moved on)."""

    def piece(self, token: int, *, special: bool) -> bytes:
        """A token's bytes; a control token has none unless `special`."""

    def is_eog(self, token: int) -> bool:
        """Whether the model ends its text with this token."""
