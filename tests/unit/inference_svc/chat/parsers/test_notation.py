"""What follows of examples of calls."""

from inference_svc.chat.parsers import families
from inference_svc.chat.parsers.call_reader import CallReader
from inference_svc.chat.parsers.notation import Calls, Tags, begins
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import Source
from inference_svc.chat.parsers.turn import TurnDelta
from inference_svc.structured_output.spec import ID, NUMBER, SPACE, ToolCallSyntax
from tests.support.turns import TOOLS

LISTED = Calls('{"id": "$id", "name": "$name", "arguments": $arguments}', "<c>[", ", ", "]</c>")
NAMED = Calls("<c>$id<n>$name$arguments</c>", before="<a>", after="</a>", id="f.$name:$number")
TAGGED = Calls(
    "<f=$name>$_$arguments</f>", "<c>$_", "$_", "$_</c>", True, Tags("<p=$key>$value</p>$_")
)


def read(notations: tuple[Calls, ...], text: str, tools: OfferedTools = TOOLS) -> list[TurnDelta]:
    """The deltas of a turn of which the readers of these calls get the whole text."""
    source = Source()
    output = TurnOutput(lambda: "new", position=lambda: source.position)
    source.feed(text)
    source.end()
    for _ in CallReader(notations).read_turn(source, output, tools):
        pass
    output.finish()
    return output.pop_deltas()


def test_an_example_is_the_syntax_of_grammars() -> None:
    """Calls in a list, or each between the texts around it, with the placeholders of grammars."""
    assert LISTED.syntax == ToolCallSyntax(
        f'{{"id": "{ID}", "name": "', '", "arguments": ', "}", "<c>[", ", ", "]</c>"
    )
    head, arguments = f"<c>{SPACE}<f=", TAGGED.syntax.arguments
    assert TAGGED.syntax == ToolCallSyntax(
        head, f">{SPACE}", f"</f>{SPACE}</c>", between=SPACE, arguments=arguments
    )
    assert arguments is not None
    assert (arguments.begin, arguments.key_end, arguments.end) == ("<p=", ">", f"</p>{SPACE}")
    assert families.KIMI[0].syntax.middle == f":{NUMBER}<|tool_call_argument_begin|>"


def test_the_texts_that_begin_and_end_calls_follow_of_an_example() -> None:
    """Of texts that begin alike, the shortest counts."""
    assert (LISTED.begins, LISTED.ends, LISTED.markers) == (("<c>",), ("</c>",), ("<c>", "</c>"))
    assert (NAMED.begins, NAMED.ends) == (("<a>", "<c>"), ("</c>",))
    assert (TAGGED.begins, TAGGED.ends) == (("<c>", "<f="), ("</f>",))
    assert begins(families.DEEPSEEK)[3] == "<｜tool▁call▁begin｜>"


def test_a_head_that_another_way_shares_is_read_again() -> None:
    """The first notation that can be read up to the arguments counts; of none, all is content."""
    texts = ("$name!$arguments", "$name?$arguments")
    notations = tuple(Calls(text, "<c>", encloses_each=True) for text in texts)
    for text, name in (("<c> f!{}", "f"), ("<c>f ?{}", "f"), ("<c>f.{}", "")):
        deltas = read(notations, text)
        calls = [call.name for delta in deltas for call in delta.tool_calls]
        assert calls == ([name] if name else [])
        assert "".join(delta.content for delta in deltas) == ("" if name else text)


def test_names_of_other_tools_begin_no_call_where_only_those_offered_do() -> None:
    notations = (Calls("$name>$arguments", "<f=", "", "</f>", True, only_offered=True),)

    assert read(notations, "<f=get_time>{}</f>")[-1].tool_calls[0].name == "get_time"
    assert read(notations, "<f=other>{}</f>")[-1].content == "<f=other>{}</f>"
