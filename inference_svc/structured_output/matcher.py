"""Implements `Guide` with llguidance: token masks, forced tokens, and limits per step."""

import logging
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import islice

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from inference_svc.engine.constraint import Constraint, GuideError, TokenMask, single_token_mask

log = logging.getLogger(__name__)
# A step that would take more than a few milliseconds fails its sequence instead.
_STEP_LEXER_FUEL = 100_000
_MAX_LEXER_STATES = 20_000
# llguidance's error if no token is allowed, and the suffix of a shortened message.
_NOTHING_ALLOWED = "NoExtensionBias"
_NOT_VERBOSE = "<non-verbose/>"
_ANCHOR = re.compile(
    r"lookarounds not supported yet; (Start|End|Word)\w* in (regex /.*?/)(?=\n|$)", re.DOTALL
)
_ANCHORS = {"Start": "^", "End": "$", "Word": r"\b"}
_ONE_OF = "oneOf constraints are not supported"  # an option follows that callers do not have
FEW = 4096
"""Maximum length of the list of allowed tokens; for more it is faster to mask the whole row."""
_MAX_TEMPLATES = 16
_BUILD_THREADS = 2  # so that a large grammar does not block all small ones
_MAX_WARM_UPS = 8  # the cache of a template grows with each text


class GrammarUnusable(Exception):
    """A grammar cannot be built or followed; the message has the reason."""


def build_matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Build a matcher at the start of a grammar. Raises `GrammarUnusable`."""
    limits = LLParserLimits(
        step_lexer_fuel=_STEP_LEXER_FUEL, max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False
    )
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    check_usable(matcher)
    return matcher


def check_usable(matcher: LLMatcher) -> None:
    """Raise `GrammarUnusable` if a matcher has failed, which is permanent."""
    if matcher.is_error():
        raise GrammarUnusable(matcher_error(matcher))


def matcher_error(matcher: LLMatcher) -> str:
    """The error of a failed matcher, without internal markers and options of llguidance."""
    error: str = matcher.get_error()
    if error.startswith(_NOTHING_ALLOWED):
        return "nothing can satisfy it"
    if error.startswith(_ONE_OF):
        return "'oneOf' cannot be enforced where several of its schemas may match"
    error = error.removesuffix(_NOT_VERBOSE).rstrip()
    return _ANCHOR.sub(
        lambda found: f"'{_ANCHORS[found[1]]}' in this place of the {found[2]} cannot be enforced",
        error,
    )


class GrammarGuides:
    """The guides of one model. `new_tokenizer` is called once, on a build thread."""

    def __init__(self, new_tokenizer: Callable[[], LLTokenizer], vocabulary_size: int) -> None:
        self._new_tokenizer = new_tokenizer
        self._vocabulary_size = vocabulary_size
        self._builder = ThreadPoolExecutor(_BUILD_THREADS, "grammars")
        self._masks = ThreadPoolExecutor(1, "masks")
        self._tokenizer: Future[LLTokenizer] | None = None
        self._templates: OrderedDict[str, _Template] = OrderedDict()

    def prepare(self) -> "Future[LLTokenizer]":
        """Create the tokenizer, which takes most of a second for a large vocabulary."""
        if self._tokenizer is None:
            self._tokenizer = self._builder.submit(self._new_tokenizer)
        return self._tokenizer

    def new(self, constraint: Constraint) -> "GrammarGuide":
        """Create a guide at the start of a grammar, which is built in the background."""
        tokenizer = self.prepare()
        template = self._templates.get(constraint.grammar)
        if template is None:
            template = _Template(self._builder.submit(_build, tokenizer, constraint.grammar))
            self._templates[constraint.grammar] = template
            if len(self._templates) > _MAX_TEMPLATES:
                self._templates.popitem(last=False)
        self._templates.move_to_end(constraint.grammar)
        return GrammarGuide(template, self._masks, self._vocabulary_size)

    def close(self) -> None:
        """Stop the threads."""
        self._builder.shutdown(cancel_futures=True)
        self._masks.shutdown(cancel_futures=True)


def _build(tokenizer: "Future[LLTokenizer]", grammar: str) -> LLMatcher:
    """Build a matcher. The tokenizer was submitted earlier, so waiting for it cannot deadlock."""
    try:
        built_tokenizer = tokenizer.result()
    except (TypeError, ValueError) as problem:
        log.exception("llguidance does not support the vocabulary of this model")
        raise GrammarUnusable("grammars are not supported by this model's vocabulary") from problem
    matcher = build_matcher(built_tokenizer, grammar)
    matcher.compute_bitmask()
    return matcher


class _Template:
    """A matcher at the start of its grammar, which guides copy."""

    def __init__(self, built: "Future[LLMatcher]") -> None:
        self._built = built
        self._warm: LLMatcher | None = None
        self._num_warm_ups = 0

    def wait(self, timeout_s: float) -> bool:
        return self._built.done() or bool(wait([self._built], timeout_s).done)

    def copy(self) -> LLMatcher:
        return (self._warm or self._built.result()).deep_copy()

    def warm(self, used: LLMatcher) -> None:
        """Reset a used matcher and copy it for further guides, since its caches are warm."""
        if self._num_warm_ups < _MAX_WARM_UPS and not used.is_error() and used.reset():
            self._warm = used
            self._num_warm_ups += 1


class GrammarGuide:
    """A `Guide` on llguidance. Only one thread at a time uses the matcher: the mask thread between
    `prepare` and `mask`, the step thread otherwise."""

    def __init__(self, template: _Template, masks: ThreadPoolExecutor, size: int) -> None:
        self._template = template
        self._masks = masks
        self._size = size
        self._matcher: LLMatcher | None = None
        self._words = np.zeros((size + 31) // 32, np.uint32)
        self._pending: Future[TokenMask] | None = None
        # Forced tokens are computed all at once, and returned over several steps.
        self._forced: deque[int] = deque()

    def wait(self, timeout_s: float) -> bool:
        """Whether the grammar is built."""
        if self._matcher is None and self._template.wait(timeout_s):
            with self._convert_errors():
                self._matcher = self._template.copy()
        return self._matcher is not None

    @property
    def _ready(self) -> LLMatcher:
        if self._matcher is None:
            raise ValueError("the grammar is not built yet or the guide is closed")
        return self._matcher

    @property
    def is_finished(self) -> bool:
        """Whether the grammar allows no further text."""
        with self._convert_errors():
            return self._ready.is_stopped()

    def prepare(self) -> None:
        """Start computing the mask."""
        if self._pending is None and not self._forced:
            self._pending = self._masks.submit(self._compute, self._ready)

    def mask(self) -> TokenMask:
        """The mask of the next token."""
        if self._forced:
            return single_token_mask(self._forced[0], self._size)
        self.prepare()
        if self._pending is None:
            raise ValueError("no mask is being computed")
        with self._convert_errors():
            return self._pending.result()

    def _compute(self, matcher: LLMatcher) -> TokenMask:
        matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        check_usable(matcher)
        bits = np.unpackbits(self._words.view(np.uint8), count=self._size, bitorder="little")
        allowed = bits.view(np.bool_)
        few = np.flatnonzero(allowed) if np.count_nonzero(allowed) <= FEW else None
        return TokenMask(allowed, None if few is None else few.astype(np.int32))

    def accept(self, tokens: Sequence[int]) -> None:
        """Advance by tokens."""
        self._discard_mask()
        for token in tokens:
            if self._forced and self._forced.popleft() != token:
                self._forced.clear()
        with self._convert_errors():
            if not self._ready.consume_tokens(list(tokens)):
                raise GrammarUnusable(matcher_error(self._ready))

    def forced_tokens(self, limit: int) -> Sequence[int]:
        """Accept and return the tokens that must come next, at most `limit`."""
        if limit <= 0 or self.is_finished:
            return ()
        self._discard_mask()
        if not self._forced:
            with self._convert_errors():
                self._forced.extend(self._ready.compute_ff_tokens())
        tokens = list(islice(self._forced, limit))
        if tokens:
            self.accept(tokens)
        return tokens

    def close(self) -> None:
        """End the guide; later guides of the grammar use its caches."""
        if self._matcher is not None and (self._pending is None or self._pending.done()):
            with suppress(GuideError), self._convert_errors():
                self._template.warm(self._matcher)
        self._matcher = None

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Convert every error of llguidance to `GuideError`, so that a grammar cannot end the
        engine process. After an unexpected one the matcher is not used again."""
        try:
            yield
        except GrammarUnusable as problem:
            raise GuideError(str(problem)) from None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as problem:  # also a panic of its native code
            log.exception("llguidance failed unexpectedly")
            self._matcher = None
            raise GuideError("the grammar cannot be followed any further") from problem

    def _discard_mask(self) -> None:
        """Wait for a pending mask and discard it, since it is that of the previous position."""
        if self._pending is not None:
            wait([self._pending])
            self._pending = None
