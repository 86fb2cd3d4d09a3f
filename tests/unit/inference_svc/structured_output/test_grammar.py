"""Conversion of GBNF grammars, which must match the same texts as in llama.cpp."""

import pytest

from inference_svc.structured_output.compile_job import byte_tokenizer
from inference_svc.structured_output.grammar import document, gbnf_to_lark
from inference_svc.structured_output.matcher import GrammarUnusable, build_matcher

TOKENIZER = byte_tokenizer(300, {}, [299])


def matches(grammar: str, text: str) -> bool:
    matcher = build_matcher(TOKENIZER, document([{"lark_grammar": gbnf_to_lark(grammar)}]))
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "matching", "other"),
    [
        # Escapes in texts and classes, also of characters that have a meaning there.
        (r'root ::= "\u0041bc"', "Abc", "\u41bc"),
        (r"root ::= [a\-z]+", "a-z", "b"),
        (r'root ::= "\u00e9x"', "éx", "ex"),
        (r'root ::= "\u0022\u000a"', '"\n', '"'),
        (r'root ::= "\\u0041"', r"\u0041", r"\A"),
        (r'root ::= "\U0001F600"', "😀", "x"),
        (r"root ::= [\u00e9-\u00ef]+", "éê", "e"),
        (r"root ::= [\U0001F600-\U0001F64F]+", "😀🙏", "🚀"),
        (r"root ::= [^\u005d]", "[", "]"),
        (r"root ::= [a\u002dz]", "-", "m"),
        (r'root ::= "\xe9" [\xe9]', "éé", "é"),
        # A dot is any character including a line break, except in texts, classes and comments.
        ("root ::= . .*", "\nx😀", ""),
        (r'root ::= "." "\"." .', '.".\n', 'x".\n'),
        (r"root ::= [.] [\].] .", ".]\n", "x]\n"),
        ('root ::= . | # a "quote. [\n "xy"', "\n", "xx"),
        # Lark in place of GBNF is not converted.
        (r"start: /a.\u00e9/", "abé", "a\né"),
    ],
)
def test_a_grammar_matches_only_its_texts(grammar: str, matching: str, other: str) -> None:
    """Escapes and dots have their GBNF meaning."""
    assert matches(grammar, matching)
    assert not matches(grammar, other)


@pytest.mark.parametrize("text", [r"\ud800", r"\U00110000", r"\u12", "\\"])
def test_an_invalid_escape_is_refused(text: str) -> None:
    """A lone surrogate, a code point out of range, or an incomplete escape."""
    with pytest.raises((GrammarUnusable, ValueError)):
        matches(f'root ::= "{text}"', "x")


@pytest.mark.timeout(5)
@pytest.mark.parametrize("text", ["[" * 100_000, '["' * 50_000, '"\\' * 50_000])
def test_unclosed_brackets_are_scanned_in_linear_time(text: str) -> None:
    """The rest of the text is not searched again for each bracket."""
    with pytest.raises(ValueError, match="Failed to convert"):
        gbnf_to_lark(f"root ::= {text}")
