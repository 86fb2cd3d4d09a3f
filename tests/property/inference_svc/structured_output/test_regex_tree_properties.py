"""What may follow the beginning of a match is what Python's `re` matches behind it."""

import re
from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.structured_output.derivative import NOTHING, Language
from inference_svc.structured_output.regex_tree import regex_tree
from tests.support.examples import examples

ATOMS = st.sampled_from(
    [
        "a",
        "b",
        "1",
        " ",
        r"\d",
        r"\w",
        r"\s",
        r"\S",
        "[ab]",
        "[^a]",
        "[a-c1-]",
        ".",
        r"\.",
        r"\x61",
        "-",
    ]
)
MAX_DEPTH = 2
"""`re` tries each way to divide a text among repetitions in one another: eight take minutes."""
COUNTS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "{1,3}?"])


def _joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counted = st.tuples(parts, COUNTS).map("".join)
    sequence = st.lists(counted, max_size=3).map("".join)
    alternatives = st.lists(sequence, min_size=1, max_size=2).map("|".join)
    opened = st.sampled_from(["(", "(?:", "(?P<n>"])
    return st.tuples(opened, alternatives).map(lambda pair: f"{pair[0]}{pair[1]})")


def _depth(pattern: str) -> int:
    """How many groups are in one another."""
    return max(accumulate((char == "(") - (char == ")") for char in pattern))


PATTERNS = (
    st.recursive(ATOMS, _joined, max_leaves=5)
    .filter(lambda pattern: _depth(pattern) <= MAX_DEPTH)
    .map(lambda pattern: pattern.replace("(?P<n>", "(", pattern.count("(?P<n>") - 1))
)
ALPHABET = st.sampled_from("ab1.- \n")
TEXTS = st.text(ALPHABET, max_size=8)


@st.composite
def patterns_and_texts(draw: st.DrawFn) -> tuple[str, str]:
    """A pattern, and a text that matches it, a part of such a text, or any."""
    pattern = draw(PATTERNS)
    text = draw(st.from_regex(pattern, fullmatch=True, alphabet=ALPHABET) | TEXTS)
    begin = draw(st.integers(0, 1))
    return pattern, text[begin : draw(st.integers(max(len(text) - 1, 0), len(text)))][:10]


@settings(max_examples=examples(600))
@given(patterns_and_texts())
def test_a_text_belongs_to_the_tree_of_a_pattern_if_it_matches_as_a_whole(
    case: tuple[str, str],
) -> None:
    pattern, text = case
    tree = regex_tree(pattern)
    assert tree is not None
    language = Language({})
    is_match = re.fullmatch(pattern, text) is not None
    for split in range(len(text) + 1):
        rest = language.after(tree, text[:split])
        assert language.may_end(language.after(rest, text[split:])) == is_match
        if rest == NOTHING:
            assert not is_match


@settings(max_examples=examples(400))
@given(st.text("ab[]()-^\\\\dwS.{1,2}*+?|", max_size=12), TEXTS)
def test_no_text_belongs_to_the_tree_of_any_pattern_that_does_not_match(
    pattern: str, text: str
) -> None:
    """Whatever is written, also what is no pattern."""
    if (tree := regex_tree(pattern)) is None:
        return
    language = Language({})
    is_in = language.may_end(language.after(tree, text))
    assert is_in == (re.fullmatch(pattern, text, re.ASCII) is not None)
