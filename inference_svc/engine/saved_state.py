"""A saved state of a slot: tokens, cells and their origin."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from inference_svc.engine.events import CacheSource
from inference_svc.engine.slots import common_prefix


@dataclass(frozen=True, slots=True)
class Origin:
    """The sequence that a state is of, as plain values.

    `tokens` are its prompt, `num_prompt` tokens, and its output, which may go beyond what is
    computed. `recipe` is all that chose the output, as JSON text: who continues it exactly has the
    same. `hidden` is what its sampler knows beside the tokens. `adapters` are digests and scales.
    """

    request_id: str
    choice: int
    project: str
    tokens: "array[int]"
    num_prompt: int
    recipe: str
    hidden: tuple[float, ...]
    adapters: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class SavedPrefix:
    """A slot's cells. `whole` ones cannot be shortened: they serve prompts that begin with all of
    it. `snapshot_id` names the file that it was restored from, `kept_for` the stored object that it
    is part of."""

    key: bytes
    tokens: "array[int]"
    state: bytearray
    whole: bool
    origin: Origin | None = None
    snapshot_id: str = ""
    kept_for: str = ""

    @property
    def source(self) -> CacheSource:
        """The source that usage reports for its reuse."""
        return CacheSource.DISK if self.snapshot_id else CacheSource.MEMORY

    def shared(self, prompt: Sequence[int], key: bytes, *, limit: int) -> int:
        """How many tokens of a prompt, at most `limit`, it can give."""
        if key != self.key:
            return 0
        count = common_prefix(self.tokens, prompt, limit=limit)
        return 0 if self.whole and count < len(self.tokens) else count
