"""GBNF is followed as llama.cpp reads it."""

import pytest

from inference_svc.structured_output.compile_job import byte_tokenizer
from inference_svc.structured_output.grammar import document, gbnf_to_lark
from inference_svc.structured_output.matcher import GrammarUnusable, build_matcher

BYTES = byte_tokenizer(300, {}, [299])


def allows(grammar: str, text: str) -> bool:
    matcher = build_matcher(BYTES, document([{"lark_grammar": gbnf_to_lark(grammar)}]))
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
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
    ],
)
def test_escaped_characters_are_themselves(grammar: str, yes: str, no: str) -> None:
    """In texts and classes, whatever zeros they begin with and whatever they mean there."""
    assert allows(grammar, yes)
    assert not allows(grammar, no)


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        ("root ::= . .*", "\nx😀", ""),
        (r'root ::= "." "\"." .', '.".\n', 'x".\n'),
        (r"root ::= [.] [\].] .", ".]\n", "x]\n"),
        ('root ::= . | # a "quote. [\n "xy"', "\n", "xx"),
    ],
)
def test_a_dot_is_any_character(grammar: str, yes: str, no: str) -> None:
    """A line break too; inside texts, classes and comments it is a dot."""
    assert allows(grammar, yes)
    assert not allows(grammar, no)


def test_lark_in_place_of_gbnf_stays() -> None:
    """Its dots and escapes are its own."""
    assert allows(r"start: /a.\u00e9/", "abé")
    assert not allows(r"start: /a.\u00e9/", "a\né")


@pytest.mark.parametrize("text", [r"\ud800", r"\U00110000", r"\u12", "\\"])
def test_what_is_no_character_is_refused(text: str) -> None:
    """Half a pair, a code above all, half an escape."""
    with pytest.raises((GrammarUnusable, ValueError)):
        allows(f'root ::= "{text}"', "x")


@pytest.mark.timeout(5)
@pytest.mark.parametrize("text", ["[" * 100_000, '["' * 50_000, '"\\' * 50_000])
def test_what_is_not_closed_costs_one_look(text: str) -> None:
    """Not one for each bracket."""
    with pytest.raises(ValueError, match="Failed to convert"):
        gbnf_to_lark(f"root ::= {text}")
