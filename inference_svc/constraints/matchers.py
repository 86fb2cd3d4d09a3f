"""Matchers of llguidance with the limits that hold wherever one is built.

The limits bound one step of a matcher. Building one is not bounded by them: that is what the
limited child process is for (`compile_job`).
"""

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

# A step that would take more than a few milliseconds fails instead, and its sequence with it.
_STEP_LEXER_FUEL = 50_000
_MAX_LEXER_STATES = 20_000

# How llguidance calls a place that no text leads on from, and ends what it could say more of.
_NOTHING_LEFT = "NoExtensionBias"
_NOT_VERBOSE = "<non-verbose/>"


class GrammarUnusable(Exception):
    """A grammar cannot be built, or not be followed any further; the text says why."""


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
    """What a failed matcher says, in words that a caller can use."""
    said: str = matcher.get_error()
    if said.startswith(_NOTHING_LEFT):
        return "nothing can satisfy it"
    return said.removesuffix(_NOT_VERBOSE).rstrip()
