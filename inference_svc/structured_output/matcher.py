"""Guides over llguidance: masks, forced tokens, limits of a step."""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import islice

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from inference_svc.engine.constraint import Constraint, GuideError, TokenMask

# A step that would take more than a few milliseconds fails instead, and its sequence with it.
_STEP_LEXER_FUEL = 50_000
_MAX_LEXER_STATES = 20_000
# How llguidance calls a place that no text leads on from, and ends what it could say more of.
_NOTHING_LEFT = "NoExtensionBias"
_NOT_VERBOSE = "<non-verbose/>"


class GrammarUnusable(Exception):
    """A grammar cannot be built or followed; the message has the reason."""


def build_matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher that stands at the start of a grammar. Raises `GrammarUnusable`."""
    limits = LLParserLimits(
        step_lexer_fuel=_STEP_LEXER_FUEL, max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False
    )
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    check_usable(matcher)
    return matcher


def check_usable(matcher: LLMatcher) -> None:
    """Raise `GrammarUnusable` where a matcher has failed, which it never recovers from."""
    if matcher.is_error():
        raise GrammarUnusable(problem_of(matcher))


def problem_of(matcher: LLMatcher) -> str:
    """The error of a failed matcher, in plain words."""
    said: str = matcher.get_error()
    if said.startswith(_NOTHING_LEFT):
        return "nothing can satisfy it"
    return said.removesuffix(_NOT_VERBOSE).rstrip()


log = logging.getLogger(__name__)
FEW = 4096
"""Up to so many allowed tokens, looking at them alone is cheaper than masking a whole row."""
_TEMPLATES_KEPT = 16
_BUILDERS = 2  # one large grammar must not hold up all small ones
_MAX_WARMED = 8  # a template grows with each text that it has followed


class GrammarGuides:
    """The guides of one model. `new_tokenizer` is called once, on a thread of its own."""

    def __init__(self, new_tokenizer: Callable[[], LLTokenizer], vocabulary_size: int) -> None:
        self._new_tokenizer = new_tokenizer
        self._vocabulary_size = vocabulary_size
        self._builder = ThreadPoolExecutor(_BUILDERS, "grammars")
        self._masks = ThreadPoolExecutor(1, "masks")
        self._tokenizer: Future[LLTokenizer] | None = None
        self._templates: OrderedDict[str, _Template] = OrderedDict()

    def prepare(self) -> "Future[LLTokenizer]":
        """Read the vocabulary, which takes most of a second where it is large."""
        if self._tokenizer is None:
            self._tokenizer = self._builder.submit(self._new_tokenizer)
        return self._tokenizer

    def new(self, constraint: Constraint) -> "GrammarGuide":
        """A guide at the start of a grammar, which may still have to be built."""
        tokenizer = self.prepare()
        template = self._templates.get(constraint.grammar)
        if template is None:
            template = _Template(self._builder.submit(_build, tokenizer, constraint.grammar))
            self._templates[constraint.grammar] = template
            if len(self._templates) > _TEMPLATES_KEPT:
                self._templates.popitem(last=False)
        self._templates.move_to_end(constraint.grammar)
        return GrammarGuide(template, self._masks, self._vocabulary_size)

    def close(self) -> None:
        """End the threads."""
        self._builder.shutdown(cancel_futures=True)
        self._masks.shutdown(cancel_futures=True)


def _build(tokenizer: "Future[LLTokenizer]", grammar: str) -> LLMatcher:
    """Build a template's matcher. The tokenizer was asked for first, so waiting for it is safe."""
    try:
        words = tokenizer.result()
    except (TypeError, ValueError) as problem:
        log.exception("grammars cannot be used with this vocabulary")
        raise GrammarUnusable("this model's vocabulary cannot follow grammars") from problem
    matcher = build_matcher(words, grammar)
    matcher.compute_bitmask()
    return matcher


class _Template:
    """A matcher at its start, to be copied."""

    def __init__(self, built: "Future[LLMatcher]") -> None:
        self._built = built
        self._warm: LLMatcher | None = None
        self._times_warmed = 0

    def wait(self, timeout_s: float) -> bool:
        return self._built.done() or bool(wait([self._built], timeout_s).done)

    def copy(self) -> LLMatcher:
        return (self._warm or self._built.result()).deep_copy()

    def warm(self, used: LLMatcher) -> None:
        """Take over what a finished matcher has computed."""
        if self._times_warmed < _MAX_WARMED and not used.is_error() and used.reset():
            self._warm = used
            self._times_warmed += 1


class GrammarGuide:
    """A `Guide`. Invariant: the matcher is used by one thread at a time, the mask thread between
    `prepare` and `mask`, the step thread otherwise."""

    def __init__(self, template: _Template, masks: ThreadPoolExecutor, size: int) -> None:
        self._template = template
        self._masks = masks
        self._size = size
        self._matcher: LLMatcher | None = None
        self._words = np.zeros((size + 31) // 32, np.uint32)
        self._pending: Future[TokenMask] | None = None
        # A run that is forced is found once, however many steps it takes: finding it means to
        # tokenize all of it.
        self._ahead: deque[int] = deque()

    def wait(self, timeout_s: float) -> bool:
        """Whether the grammar is built."""
        if self._matcher is None and self._template.wait(timeout_s):
            with self._contained():
                self._matcher = self._template.copy()
        return self._matcher is not None

    @property
    def _ready(self) -> LLMatcher:
        if self._matcher is None:
            raise ValueError("the grammar is not built yet, or the guide is closed")
        return self._matcher

    @property
    def is_over(self) -> bool:
        """Whether the grammar allows no further text."""
        with self._contained():
            return self._ready.is_stopped()

    def prepare(self) -> None:
        """Begin to compute the mask."""
        if self._pending is None and not self._ahead:
            self._pending = self._masks.submit(self._compute, self._ready)

    def mask(self) -> TokenMask:
        """The mask of the next token."""
        if self._ahead:
            return _only(self._ahead[0], self._size)
        self.prepare()
        if self._pending is None:
            raise ValueError("no mask is being computed")
        with self._contained():
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
        self._settle()
        for token in tokens:
            if self._ahead and self._ahead.popleft() != token:
                self._ahead.clear()
        with self._contained():
            if not self._ready.consume_tokens(list(tokens)):
                raise GrammarUnusable(problem_of(self._ready))

    def forced_tokens(self, limit: int) -> Sequence[int]:
        """Tokens that must follow."""
        if limit <= 0 or self.is_over:
            return ()
        self._settle()
        if not self._ahead:
            with self._contained():
                self._ahead.extend(self._ready.compute_ff_tokens())
        tokens = list(islice(self._ahead, limit))
        if tokens:
            self.accept(tokens)
        return tokens

    def close(self) -> None:
        """Let the next copies know what this one has computed."""
        if self._matcher is not None and (self._pending is None or self._pending.done()):
            with suppress(GuideError), self._contained():
                self._template.warm(self._matcher)
        self._matcher = None

    @contextmanager
    def _contained(self) -> Iterator[None]:
        """Turn whatever llguidance does into `GuideError`: one grammar must not end the process of
        all. A panic of its native code is no `Exception`; what has panicked is not used again."""
        try:
            yield
        except GrammarUnusable as problem:
            raise GuideError(str(problem)) from None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as problem:
            log.exception("a grammar failed")
            self._matcher = None
            raise GuideError("the grammar cannot be followed any further") from problem

    def _settle(self) -> None:
        """Forget the mask, once it is computed: it is that of the place before."""
        if self._pending is not None:
            wait([self._pending])
            self._pending = None


def _only(token: int, size: int) -> TokenMask:
    allowed = np.zeros(size, np.bool_)
    allowed[token] = True
    return TokenMask(allowed, np.array([token], np.int32))
