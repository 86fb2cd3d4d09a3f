"""A deterministic backend without a model, for unit and property tests of the engine.

A "text" is bytes: token ids 0 to 255 are bytes, 256 ends it. The next token is a hash of the
sequence's tokens and of the adapters that each was computed with, so every mistake in slots,
positions, order or adapters changes the output. Draws use the
seed and the draw count as the real samplers do. Copies are queued as llama.cpp queues them: lengths
change at once and the cells with the next decode, so a wrong order reads somebody else's tokens.
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
    SampledToken,
    SampleFailure,
    SampleTask,
)
from inference_svc.engine.batch import NativeLimits, TokenBatch
from inference_svc.engine.constraint import Constraint, GuideError, TokenMask
from inference_svc.engine.events import ChosenLogprob, Logprob
from inference_svc.engine.kv_cache.copies import CellRefCounts
from inference_svc.engine.request import NO_ADAPTERS, AdapterStack, SequenceRequest

END_TOKEN = 256
VOCABULARY_SIZE = 257
FAILING_SEED = 666
FAILING_ADAPTER = Path("damaged.gguf")
_LETTERS = range(97, 123)


def cell_of(token: int, stack: AdapterStack) -> int:
    """What a slot remembers of a token that was computed with these adapters."""
    if not stack:
        return token
    digest = hashlib.blake2b(repr(stack).encode(), digest_size=2).digest()
    return token + VOCABULARY_SIZE * (1 + int.from_bytes(digest, "little"))


REPEATED_DRAWS = 24


def next_token(
    tokens: Sequence[int],
    seed: int,
    choice: int,
    draw: int,
    *,
    end_after: int,
    repeats: bool = False,
) -> int:
    """What the fake model says after `tokens`; it ends where a hash says so, about once in
    `end_after` tokens. One that `repeats` looks at the last token only, and changes its mind after
    some draws, so that guesses come true and then fail."""
    text = f"{list(tokens)}|{seed}|{choice}|{draw}"
    if repeats:
        text = f"{tokens[-1]}|{seed}|{choice}|{draw // REPEATED_DRAWS}"
    digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
    if int.from_bytes(digest[:2], "little") % end_after == 0:
        return END_TOKEN
    return 97 + digest[2] % 26


@dataclass(slots=True)
class FakeSampler:
    """Stores accepted tokens, so that tests can compare them with the output."""

    request: SequenceRequest
    seen: list[int] = field(default_factory=list)
    recalled: tuple[float, ...] = ()
    closed: bool = False

    @property
    def hidden(self) -> tuple[float, ...]:
        """As many ones as accepted tokens, if the request has a sampler with hidden state."""
        return (float(len(self.seen)),) if self.request.sampling.has_hidden_state else ()

    def restore_state(self, hidden: tuple[float, ...]) -> None:
        """Remember what was recalled."""
        self.recalled = hidden

    def accept(self, token: int) -> None:
        """Take note of an output token."""
        self.seen.append(token)

    def close(self) -> None:
        """Mark as freed."""
        self.closed = True


class FakeGuide:
    """Follows a grammar of its own: a text in which "?" stands for any small letter, "*" at the
    end for any number of them. It is built after `builds_after` looks at it."""

    def __init__(self, grammar: str, builds_after: int = 0) -> None:
        self._pattern = grammar.removesuffix("*")
        self._is_open = grammar.endswith("*")
        self._at = 0
        self._looks_left = builds_after
        self.waits: list[float] = []
        self.closed = False

    def wait(self, timeout_s: float) -> bool:
        """Whether it was looked at often enough; "!" cannot be built."""
        if self._pattern == "!":
            raise GuideError("it cannot be built")
        self.waits.append(timeout_s)
        self._looks_left -= 1
        return self._looks_left < 0

    @property
    def is_over(self) -> bool:
        """Whether the text is complete."""
        return self._at >= len(self._pattern) and not self._is_open

    def prepare(self) -> None:
        """Nothing to do beforehand."""

    def mask(self) -> TokenMask:
        """The byte that follows, or the letters; behind an open end the end token too."""
        few = np.array(self._next(), np.int32)
        allowed = np.zeros(VOCABULARY_SIZE, np.bool_)
        allowed[few] = True
        return TokenMask(allowed, few)

    def _next(self) -> Sequence[int]:
        if self._at >= len(self._pattern):
            return [*_LETTERS, END_TOKEN] if self._is_open else [END_TOKEN]
        character = self._pattern[self._at]
        return _LETTERS if character == "?" else [ord(character)]

    def accept(self, tokens: Sequence[int]) -> None:
        """Advance; fails for tokens that are not allowed."""
        for token in tokens:
            if token not in self._next():
                raise GuideError(f"{token} is not allowed at {self._at}")
            self._at += 1

    def forced_tokens(self, limit: int) -> Sequence[int]:
        """The text up to the next choice."""
        run = self._pattern[self._at :].partition("?")[0][: max(limit, 0)]
        self._at += len(run)
        return [ord(character) for character in run]

    def close(self) -> None:
        """Mark as done with."""
        self.closed = True


class FakeBackend:
    """Slots as arrays of cells with a length. `fails` may refuse batches: it gets the batch and
    returns a code, 0 for success. `builds_after` is how often a guide is waited for in vain."""

    def __init__(
        self,
        limits: NativeLimits | None = None,
        *,
        end_after: int = 1000,
        can_trim: bool = True,
        fails: Callable[[TokenBatch], int] = lambda _: 0,
        builds_after: int = 0,
        repeats: bool = False,
    ) -> None:
        self.limits = limits or NativeLimits(64, 4, 4, 128, VOCABULARY_SIZE)
        self.can_trim = can_trim
        self.copies_by_state = not can_trim
        self.num_copies = 0
        self.refuses_states = False
        self._cells = [array("i", bytes(4 * self.limits.slot_tokens)) for _ in self._all_slots]
        self._lengths = [0 for _ in self._all_slots]
        self._queued: list[tuple[int, int]] = []
        self._book = CellRefCounts(self.limits.slots)
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

    def copy(self, source: int, target: int, tokens: int) -> None:
        """The length now, the cells with the next decode; both now where slots share cells."""
        self.num_copies += 1
        if self.limits.cells is None:
            self._lengths[target] = self._lengths[source]
            self._queued.append((source, target))
            return
        if self._lengths[target]:
            raise AssertionError(f"slot {target} is not empty")
        self._cells[target][:tokens] = self._cells[source][:tokens]
        self._lengths[target] = tokens
        self._book.share(source, target, tokens)

    @property
    def used_cells(self) -> int:
        """By the book."""
        return self._book.used(self._lengths)

    def freed_by(self, slot: int) -> int:
        """By the book."""
        return self._book.freed_by(slot, self._lengths)

    def _lacks_cells(self, tokens: int) -> bool:
        return self.limits.cells is not None and self.used_cells + tokens > self.limits.cells

    def state_bytes(self, slot: int) -> int:
        """Four bytes a cell."""
        return 4 * self._lengths[slot]

    def save(self, slot: int) -> bytearray:
        """The cells as they are now, whatever is queued."""
        return bytearray(self._cells[slot][: self._lengths[slot]].tobytes())

    def restore(self, slot: int, state: bytearray) -> bool:
        """The cells now; a queued copy overwrites them. Nothing where it `refuses_states`."""
        tokens = array("i", bytes(state))
        self.trim(slot, 0)
        if self.refuses_states or self._lacks_cells(len(tokens)):
            return False
        self._cells[slot][: len(tokens)] = tokens
        self._lengths[slot] = len(tokens)
        return True

    def load_adapter(self, digest: str, path: Path) -> None:
        """Any file will do but one."""
        if path == FAILING_ADAPTER:
            raise AdapterLoadError("asked to")
        self.adapters.add(digest)

    def unload_adapter(self, digest: str) -> None:
        """Forget an adapter; where it was used, nothing is used from now on."""
        self.adapters.remove(digest)
        if digest in {adapter.digest for adapter in self._stack}:
            self._stack = NO_ADAPTERS

    def use_adapters(self, stack: AdapterStack) -> None:
        """Take effect with the next decode."""
        if not {adapter.digest for adapter in stack} <= self.adapters:
            raise AssertionError(f"{stack} is not loaded")
        self._stack = stack

    def decode(self, batch: TokenBatch) -> None:
        """Append tokens to their slots and remember the history behind each output row."""
        code = 1 if self._lacks_cells(len(batch.tokens)) else self._fails(batch)
        if code != -1:
            self._execute_copies()
        if code < -1:
            self._apply(batch, len(batch.tokens) // 2)
        if code:
            raise DecodeError(code)
        self.batches.append(batch)
        self.stacks.append(self._stack)
        self._rows = self._apply(batch, len(batch.tokens))

    def _execute_copies(self) -> None:
        for source, target in self._queued:
            self._cells[target][:] = self._cells[source]
        self._queued.clear()

    def _apply(self, batch: TokenBatch, count: int) -> "list[array[int]]":
        rows = []
        for i in range(count):
            slot = int(batch.slots[i])
            length = self._lengths[slot]
            if batch.positions[i] != length:
                raise AssertionError(f"position {batch.positions[i]} in a slot of {length} cells")
            self._cells[slot][length] = cell_of(int(batch.tokens[i]), self._stack)
            self._lengths[slot] = length + 1
            if batch.outputs[i]:
                rows.append(self._cells[slot][: length + 1])
        return rows

    def sample(self, tasks: Sequence[SampleTask]) -> list[SampledToken | SampleFailure]:
        """The hash of each row's history; the seed `FAILING_SEED` fails."""
        return [self._choose(task) for task in tasks]

    def _choose(self, task: SampleTask) -> SampledToken | SampleFailure:
        if not isinstance(task.sampler, FakeSampler):
            raise TypeError("a sampler of another backend")
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
            left = np.flatnonzero(task.mask.allowed)
            token = int(left[token % len(left)])
        if request.top_logprobs is None:
            return SampledToken(token, None)
        logprob = Logprob(token, self.piece(token, special=False), -1.0)
        return SampledToken(token, ChosenLogprob(logprob, (logprob,) * request.top_logprobs))

    def new_sampler(self, request: SequenceRequest) -> FakeSampler:
        """A sampler that only remembers."""
        return FakeSampler(request)

    def new_guide(self, constraint: Constraint) -> FakeGuide:
        """A guide by a pattern."""
        guide = FakeGuide(constraint.grammar, self._builds_after)
        self.guides.append(guide)
        return guide

    def trim(self, slot: int, length: int) -> bool:
        """Drop the end of a slot."""
        if length and length < self._lengths[slot] and not self.can_trim:
            return False
        self._lengths[slot] = min(self._lengths[slot], length)
        self._book.cut(slot, length)
        return True

    def slot_length(self, slot: int) -> int:
        """Cells in a slot."""
        return self._lengths[slot]

    def reusable_from(self, slot: int) -> int:
        """No sliding window here."""
        return 0

    def piece(self, token: int, *, special: bool) -> bytes:
        """The byte itself."""
        if token == END_TOKEN:
            return b"<end>" if special else b""
        return bytes([token])

    def is_eog(self, token: int) -> bool:
        """Whether this is the end token."""
        return token == END_TOKEN
