"""A deterministic backend without a model, for unit and property tests of the engine.

Token ids 0 to 255 are bytes; 256 is the end token. The next token is a hash of the previous tokens
and of the adapters with which each was computed, so an error in slots, positions, order or adapters
changes the output. Draws depend on the seed and the draw count, as in the real samplers. Copies are
queued as in llama.cpp: lengths change at once, cells with the next decode, so that a wrong order
reads the tokens of another sequence.
"""

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from inference_svc.engine.backend import (
    AdapterLoadError,
    DecodeError,
    EncoderInput,
    SampledToken,
    SampleFailure,
    SampleTask,
    ScoreTask,
)
from inference_svc.engine.batch import NativeLimits, TokenBatch
from inference_svc.engine.constraint import Constraint, GuideError, TokenMask
from inference_svc.engine.events import ChosenLogprob, Logprob
from inference_svc.engine.kv_cache.copies import CellRefCounts
from inference_svc.engine.request import NO_ADAPTERS, AdapterStack, SequenceRequest

END_TOKEN = 256
_MAX_DRAW = 0xFFFF
VOCABULARY_SIZE = 257
FAILING_SEED = 666
FAILING_ADAPTER = Path("damaged.gguf")
_LETTERS = range(97, 123)


def cell_value(token: int, stack: AdapterStack) -> int:
    """The content of the KV cell of a token that was computed with these adapters."""
    if not stack:
        return token
    digest = hashlib.blake2b(repr(stack).encode(), digest_size=2).digest()
    return token + VOCABULARY_SIZE * (1 + int.from_bytes(digest, "little"))


REPEATED_DRAWS = 24
"""With `repeats`, draws after which the next token of each token changes."""


def next_token(
    tokens: Sequence[int],
    seed: int,
    choice: int,
    draw: int,
    *,
    end_after: int,
    repeats: bool = False,
) -> int:
    """Return the next token of the fake model; about one in `end_after` is the end token, none
    where that is above 65,535.

    With `repeats`, the next token depends on the last token only, and changes every
    `REPEATED_DRAWS` draws, so that drafts are accepted for a while and then rejected.
    """
    text = f"{list(tokens)}|{seed}|{choice}|{draw}"
    if repeats:
        text = f"{tokens[-1]}|{seed}|{choice}|{draw // REPEATED_DRAWS}"
    digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
    if end_after <= _MAX_DRAW and int.from_bytes(digest[:2], "little") % end_after == 0:
        return END_TOKEN
    return 97 + digest[2] % 26


def token_score(before: Sequence[int], token: int) -> tuple[int, float]:
    """The rank and log probability of a token after others in the fake model."""
    digest = hashlib.blake2b(f"{list(before)}|{token}".encode(), digest_size=4).digest()
    return 1 + digest[0], -int.from_bytes(digest, "little") / 2**32


@dataclass(slots=True)
class FakeSampler:
    """A sampler that records the accepted tokens and the restored state."""

    request: SequenceRequest
    accepted: list[int] = field(default_factory=list)
    restored: tuple[float, ...] = ()
    closed: bool = False

    @property
    def hidden(self) -> tuple[float, ...]:
        return (float(len(self.accepted)),) if self.request.sampling.has_hidden_state else ()

    def restore_state(self, hidden: tuple[float, ...]) -> None:
        self.restored = hidden

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def close(self) -> None:
        self.closed = True


class FakeGuide:
    """A guide for a pattern: "?" is any lowercase letter, "*" at the end any number of them.

    The pattern "!" cannot be built. The guide is built after `builds_after` calls of `wait`.
    """

    def __init__(self, grammar: str, builds_after: int = 0) -> None:
        self._pattern = grammar.removesuffix("*")
        self._is_open = grammar.endswith("*")
        self._at = 0
        self._waits_until_built = builds_after
        self.waits: list[float] = []
        self.closed = False

    def wait(self, timeout_s: float) -> bool:
        if self._pattern == "!":
            raise GuideError("it cannot be built")
        self.waits.append(timeout_s)
        self._waits_until_built -= 1
        return self._waits_until_built < 0

    @property
    def is_finished(self) -> bool:
        """Whether the pattern is complete and has no open end."""
        return self._at >= len(self._pattern) and not self._is_open

    def prepare(self) -> None:
        """Do nothing; masks are computed on demand."""

    def mask(self) -> TokenMask:
        few = np.array(self._allowed(), np.int32)
        allowed = np.zeros(VOCABULARY_SIZE, np.bool_)
        allowed[few] = True
        return TokenMask(allowed, few)

    def _allowed(self) -> Sequence[int]:
        if self._at >= len(self._pattern):
            return [*_LETTERS, END_TOKEN] if self._is_open else [END_TOKEN]
        character = self._pattern[self._at]
        return _LETTERS if character == "?" else [ord(character)]

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if token not in self._allowed():
                raise GuideError(f"{token} is not allowed at {self._at}")
            self._at += 1

    def forced_tokens(self, limit: int) -> Sequence[int]:
        """Accept and return the text up to the next "?"."""
        run = self._pattern[self._at :].partition("?")[0][: max(limit, 0)]
        self._at += len(run)
        return [ord(character) for character in run]

    def close(self) -> None:
        self.closed = True


class FakeBackend:
    """Slots as arrays of cells with a length.

    `fails` returns the error code of a batch, 0 for success. `builds_after` is the number of waits
    until a guide is built. `end_after` and `repeats` are parameters of `next_token`. If
    `refuses_states` is set, `restore` fails.

    With a `window`, each token depends on the last `window` ones, itself included, in a second
    cache. As in llama.cpp, a batch may overwrite what no token after those of earlier batches
    depends on (here in every other slot), and states have only what their last token depends on. A
    decode that lacks cells fails the test.
    """

    def __init__(
        self,
        limits: NativeLimits | None = None,
        *,
        end_after: int = 1000,
        can_trim: bool = True,
        fails: Callable[[TokenBatch], int] = lambda _: 0,
        builds_after: int = 0,
        repeats: bool = False,
        window: int | None = None,
    ) -> None:
        self.limits = limits or NativeLimits(64, 4, 4, 128, VOCABULARY_SIZE)
        self.can_trim = can_trim
        self.num_copies = 0
        self.refuses_states = False
        self._cells = [array("i", bytes(4 * self.limits.slot_tokens)) for _ in self._all_slots]
        self._lengths = [0 for _ in self._all_slots]
        self._window = window
        self._firsts = [0 for _ in self._all_slots]  # of the cells in the window's cache
        self._queued: list[tuple[int, int]] = []
        self._ref_counts = CellRefCounts(self.limits.slots)
        self.batches: list[TokenBatch] = []
        self._fails = fails
        self._end_after = end_after
        self._repeats = repeats
        self._builds_after = builds_after
        self.guides: list[FakeGuide] = []
        self._rows: list[array[int]] = []
        self.adapters: set[str] = set()
        self._stack = NO_ADAPTERS
        self.stacks: list[AdapterStack] = []

    @property
    def _all_slots(self) -> range:
        return range(self.limits.slots)

    def encode(self, sources: Sequence[EncoderInput]) -> None:
        raise AssertionError("a decoder has no sources")

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the length now and the cells with the next decode; both now if slots share cells."""
        self.num_copies += 1
        self._firsts[target] = self._firsts[source]
        if self.limits.cells is None:
            self._lengths[target] = self._lengths[source]
            self._queued.append((source, target))
            return
        if self._lengths[target]:
            raise AssertionError(f"slot {target} is not empty")
        self._cells[target][:tokens] = self._cells[source][:tokens]
        self._lengths[target] = tokens
        self._ref_counts.share(source, target, tokens)

    @property
    def used_cells(self) -> int:
        """Cells in use; shared ones count once."""
        return self._ref_counts.used(self._lengths)

    def freed_by(self, slot: int) -> int:
        """Cells that clearing a slot would free."""
        return self._ref_counts.freed_by(slot, self._lengths)

    def _lacks_cells(self, tokens: int) -> bool:
        return self.limits.cells is not None and self.used_cells + tokens > self.limits.cells

    def state_bytes(self, slot: int) -> int:
        """Four bytes per cell, and four for the start of a window."""
        return 4 * (self._lengths[slot] + (self._window is not None))

    def save(self, slot: int) -> bytearray:
        """Return the current cells, without queued copies, after the start of a window."""
        state = self._cells[slot][: self._lengths[slot]]
        if self._window is not None:
            state.insert(0, max(self._firsts[slot], self._window_start(len(state) - 1)))
        return bytearray(state.tobytes())

    def restore(self, slot: int, state: bytearray) -> bool:
        """Restore the cells now; queued copies overwrite them. False if refused or out of cells."""
        tokens = array("i", bytes(state))
        first = 0 if self._window is None else tokens.pop(0)
        self.trim(slot, 0)
        if self.refuses_states or self._lacks_cells(len(tokens)):
            return False
        self._cells[slot][: len(tokens)] = tokens
        self._lengths[slot], self._firsts[slot] = len(tokens), first
        return True

    def load_adapter(self, digest: str, path: Path) -> None:
        """Record an adapter; `FAILING_ADAPTER` fails."""
        if path == FAILING_ADAPTER:
            raise AdapterLoadError("asked to")
        self.adapters.add(digest)

    def unload_adapter(self, digest: str) -> None:
        self.adapters.remove(digest)
        if digest in {adapter.digest for adapter in self._stack}:
            self._stack = NO_ADAPTERS

    def use_adapters(self, stack: AdapterStack) -> None:
        """Set the stack of the following decodes."""
        if not {adapter.digest for adapter in stack} <= self.adapters:
            raise AssertionError(f"{stack} is not loaded")
        self._stack = stack

    def decode(self, batch: TokenBatch) -> None:
        """Append tokens to their slots, and record the tokens before each output row."""
        self._check_vectors(batch)
        code = 1 if self._lacks_cells(len(batch.tokens)) else self._fails(batch)
        if code != -1:
            self._execute_copies()
        if code < -1:
            self._apply(batch, len(batch.tokens) // 2)
        if code:
            self._drop_grids(batch)
            raise DecodeError(code)
        self.batches.append(batch)
        self.stacks.append(self._stack)
        self._rows = self._apply(batch, len(batch.tokens))

    @staticmethod
    def _check_vectors(batch: TokenBatch) -> None:
        """Check that vectors, which have the bits of their numbers, are given for all negative
        tokens or for none."""
        if batch.vectors is None:
            is_valid = (batch.tokens >= 0).all()
        else:
            numbers, is_chunk = batch.vectors[:, 0].view(np.int32), batch.tokens < 0
            is_valid = (numbers[is_chunk] == batch.tokens[is_chunk]).all()
        if not is_valid:
            raise AssertionError("the vectors of a batch are not those of its tokens")

    def _drop_grids(self, batch: TokenBatch) -> None:
        """Drop pictures with a grid as a whole, since their cells have the same position."""
        for row in batch.vector_rows:
            if any(span.grid is not None for span in row.spans):
                length = self._lengths[row.slot] = min(self._lengths[row.slot], row.spans[0].start)
                if not length:
                    self._firsts[row.slot] = 0
                self._ref_counts.cut(row.slot, length)

    def _execute_copies(self) -> None:
        for source, target in self._queued:
            self._cells[target][:] = self._cells[source]
        self._queued.clear()

    def _apply(self, batch: TokenBatch, count: int) -> "list[array[int]]":
        rows = []
        for slot in set(batch.slots[:count].tolist()):
            length = self._lengths[slot]
            if self._firsts[slot] > self._window_start(length):
                raise AssertionError(f"slot {slot} lacks the window of its token {length}")
            if slot % 2:
                self._firsts[slot] = self._window_start(length)
        for i in range(count):
            slot = int(batch.slots[i])
            length = self._lengths[slot]
            if batch.positions[i] != length:
                raise AssertionError(f"position {batch.positions[i]} in a slot of {length} cells")
            self._cells[slot][length] = cell_value(int(batch.tokens[i]), self._stack)
            self._lengths[slot] = length + 1
            if batch.outputs[i]:
                rows.append(self._cells[slot][: length + 1])
        return rows

    def sample(self, tasks: Sequence[SampleTask]) -> list[SampledToken | SampleFailure]:
        """Return `next_token` for each task; the seed `FAILING_SEED` fails."""
        return [self._choose(task) for task in tasks]

    def score(self, tasks: Sequence[ScoreTask]) -> list[ChosenLogprob]:
        """Log probabilities and ranks that depend on the tokens before and on the token."""
        return [self._score(task) for task in tasks]

    def _score(self, task: ScoreTask) -> ChosenLogprob:
        rank, value = token_score(self._rows[task.row], task.token)
        logprob = Logprob(task.token, self.piece(task.token, special=True), value)
        return ChosenLogprob(logprob, (logprob,) * task.num_top, rank)

    def _choose(self, task: SampleTask) -> SampledToken | SampleFailure:
        if not isinstance(task.sampler, FakeSampler):
            raise TypeError("the sampler is not a FakeSampler")
        request = task.sampler.request
        if request.seed == FAILING_SEED:
            return SampleFailure("asked to")
        token = next_token(
            self._rows[task.row],
            request.seed,
            request.choice,
            task.draw,
            end_after=self._end_after,
            repeats=self._repeats,
        )
        if task.mask is not None and not task.mask.allowed[token]:
            allowed = np.flatnonzero(task.mask.allowed)
            token = int(allowed[token % len(allowed)])
        if request.top_logprobs is None:
            return SampledToken(token, None)
        logprob = Logprob(token, self.piece(token, special=False), -1.0)
        return SampledToken(token, ChosenLogprob(logprob, (logprob,) * request.top_logprobs))

    def new_sampler(self, request: SequenceRequest) -> FakeSampler:
        return FakeSampler(request)

    def new_guide(self, constraint: Constraint) -> FakeGuide:
        guide = FakeGuide(constraint.grammar, self._builds_after)
        self.guides.append(guide)
        return guide

    def trim(self, slot: int, length: int) -> bool:
        """Truncate a slot to `length`. False if the backend can only clear slots, or if its window
        has moved past the length."""
        if not self.can_trim_to(slot, length):
            return False
        self._lengths[slot] = min(self._lengths[slot], length)
        if not self._lengths[slot]:
            self._firsts[slot] = 0
        self._ref_counts.cut(slot, length)
        return True

    def can_trim_to(self, slot: int, length: int) -> bool:
        """Whether the next token has its window, and the backend can drop the others."""
        kept = min(length, self._lengths[slot])
        has_window = self._firsts[slot] <= self._window_start(kept)
        return not kept or (has_window and (self.can_trim or kept == self._lengths[slot]))

    def min_restored(self, tokens: int) -> int:
        """As many tokens as have the first cell of the window in their own."""
        if not self.can_trim:
            return tokens
        return tokens - 1 if self._window_start(tokens - 1) else 0

    def _window_start(self, position: int) -> int:
        return 0 if self._window is None else max(position - self._window + 1, 0)

    def slot_length(self, slot: int) -> int:
        return self._lengths[slot]

    def piece(self, token: int, *, special: bool) -> bytes:
        if token == END_TOKEN:
            return b"<end>" if special else b""
        return bytes([token])

    def is_eog(self, token: int) -> bool:
        return token == END_TOKEN
