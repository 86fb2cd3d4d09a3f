"""Finds the first difference between a prompt and the cached prefix of its project with which it
has most in common: no token behind it is reused.
"""

from array import array
from collections.abc import Iterable
from typing import Final, Protocol

from inference_svc.engine.events import Divergence
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.slots import common_prefix

MIN_LOST_TOKENS: Final = 256
"""Fewer are not worth the second rendering that finds where a prompt was changed."""
_SHOWN_TOKENS: Final = 16
_COMPARED_RUNS: Final = 8
_RUN_TOKENS: Final = 32


class ProjectPrefix(Protocol):
    """Tokens of a project, such as those of a slot or of a saved prefix."""

    @property
    def tokens(self) -> "array[int]": ...
    @property
    def key(self) -> bytes: ...
    @property
    def project(self) -> str: ...


def find_divergence(request: SequenceRequest, cached: Iterable[ProjectPrefix]) -> Divergence | None:
    """Compare a prompt with what is cached under its key for its project, of others with the same
    key nothing. None if fewer than MIN_LOST_TOKENS of the prompt or of what is cached are left
    after the longest common prefix, or if the prompt has none of the cached text behind the
    difference: then it is another conversation that begins alike."""
    prompt, nearest, shared = request.prompt, array("i"), 0
    if not request.project or not request.may_start_cached:
        return None
    for each in cached:
        tokens = each.tokens
        if each.key != request.cache_key or each.project != request.project:
            continue
        if len(tokens) <= shared or len(prompt) <= shared or tokens[shared] != prompt[shared]:
            continue  # it has no more in common than `nearest`
        if (count := common_prefix(tokens, prompt, limit=len(prompt))) > shared:
            nearest, shared = tokens, count
    num_lost = min(len(nearest), len(prompt)) - shared
    if num_lost < MIN_LOST_TOKENS or not _has_run_of(prompt[shared:], nearest[shared:]):
        return None
    return Divergence(shared, num_lost, nearest[shared : shared + _SHOWN_TOKENS])


def _has_run_of(prompt: "array[int]", cached: "array[int]") -> bool:
    """Whether one of a few runs of tokens, spread over `cached`, is also in `prompt`."""
    sent, last = prompt.tobytes(), len(cached) - _RUN_TOKENS
    return any(
        cached[at : at + _RUN_TOKENS].tobytes() in sent
        for at in range(0, last + 1, last // (_COMPARED_RUNS - 1))
    )
