"""Turn parsers on random texts, split at random positions."""

import itertools
import re
from collections.abc import Sequence

import pytest
from corral.inference.v1.inference_service_pb2 import ChatDelta, ChatResponse
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.chat.parsers import families, gemma, pythonic
from inference_svc.chat.parsers.formats import ReasoningFormat, TurnFormat
from inference_svc.chat.parsers.parser import TurnParser
from inference_svc.engine.detokenizer import Detokenizer
from inference_svc.engine.events import (
    ChosenLogprob,
    Delta,
    Finished,
    FinishReason,
    Logprob,
    Timings,
)
from inference_svc.rpc.chat_turn import ChatTurn
from tests.support.examples import examples
from tests.support.golden_turns import GOLDEN
from tests.support.random_turns import random_turns
from tests.support.turns import NO_TOOLS, TOOLS, Golden, Parsed, feed, finish, merge_deltas

WITH_MESSAGES = {"functionary", "gemma", "harmony", "muse"}
"""Families whose turns consist of messages or thoughts, of which not only markers are removed."""
EMPTY_LIST = re.compile("|".join(rf"{re.escape(begin)}\s*\[\s*\]" for begin in pythonic.BEGINS))
"""An empty list of calls, which is no content."""
ENDS = [Finished(0, each, None, None, 1, Timings(0.0, 0.0, 0.0)) for each in FinishReason]


def without_frames(turn: Golden) -> str:
    frames = turn.turn_format.frame_texts
    return re.sub("|".join(map(re.escape, frames)), "", turn.text) if frames else turn.text


def with_inline_reasoning(turn: Golden) -> Golden:
    """Return the turn with reasoning left in its content. Formats with frame texts parse no
    reasoning, since frame texts inside reasoning are not removed."""
    turn_format = turn.turn_format
    if turn_format.frame_texts:
        turn_format = turn_format._replace(reasoning=ReasoningFormat.OFF)
    return turn._replace(turn_format=turn_format, inline_reasoning=True)


@pytest.mark.parametrize("family", GOLDEN)
@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_the_result_does_not_depend_on_how_the_text_is_split(
    family: str, data: st.DataObject
) -> None:
    """The result is also valid UTF-8."""
    turn = data.draw(random_turns(family))
    text = turn.text
    pieces = splits(data, text)

    expected = turn.parse([text])

    assert turn.parse(list(text)) == expected
    assert turn.parse(pieces) == expected
    assert str(expected).encode()


@pytest.mark.parametrize("family", sorted(set(GOLDEN) - WITH_MESSAGES))
@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_text_without_tools_and_reasoning_is_content(family: str, data: st.DataObject) -> None:
    """Only the frame texts of the format are removed."""
    turn = with_inline_reasoning(data.draw(random_turns(family)))._replace(tools=NO_TOOLS)

    assert turn.parse([turn.text]) == Parsed(without_frames(turn))


@pytest.mark.parametrize("family", sorted(set(GOLDEN) - WITH_MESSAGES))
@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_text_without_calls_is_unchanged_content(family: str, data: st.DataObject) -> None:
    """Text that was held back while parsing is returned, unless a call has begun in it or it is an
    empty list or section of calls. Only markers at the end and those of sections are not."""
    turn = with_inline_reasoning(data.draw(random_turns(family)))
    parser = turn.parser()
    parsed = merge_deltas([feed(parser, turn.text), finish(parser)])

    if not parsed.calls and not EMPTY_LIST.search(turn.text):
        content, whole = (
            without_markers(turn, text) for text in (parsed.content, without_frames(turn))
        )
        assert content == whole or (parser.ends_in_call and whole.startswith(content))


def without_markers(turn: Golden, text: str) -> str:
    """Remove empty sections, the markers of the format, and the white space at the end, from a
    text."""
    markers = [*filter(None, turn.turn_format.marker_texts), *SECTIONS]
    texts = "|".join(map(re.escape, sorted(markers, key=len, reverse=True)))
    return re.sub(texts, "", EMPTY_SECTION.sub("", text)).rstrip()


WRITTEN = {
    "apertus": families.APERTUS,
    "cohere": families.COHERE,
    "deepseek": families.DEEPSEEK[1:2],
    "deepseek-v3.2": families.DEEPSEEK_V32,
    "glm": families.GLM,
    "hermes": families.HERMES,
    "hunyuan": families.HUNYUAN,
    "kimi": families.KIMI,
    "kimi-k3": families.KIMI_K3,
    "minicpm": families.MINICPM,
    "minimax": families.MINIMAX,
    "minimax-m3": families.MINIMAX_M3,
    "qwen-coder": families.QWEN_CODER,
    "solar": families.SOLAR,
}
"""The families of which examples tell how they write calls."""
CLOSINGS = {
    name: tuple(
        {text for notation in notations for text in (*notation.ends, *notation.section_ends)}
    )
    for name, notations in WRITTEN.items()
} | {
    "gemma": gemma.ENDS,
    "llama": ("<|python_end|>",),
    "pythonic": pythonic.ENDS,
}
"""The texts that close calls, by family."""


@pytest.mark.parametrize("family", CLOSINGS)
@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_closing_markers_at_the_end_of_a_turn_are_not_content(
    family: str, data: st.DataObject
) -> None:
    strays = data.draw(st.lists(st.sampled_from(("\n", *CLOSINGS[family])), min_size=1, max_size=4))
    turns = (each for each in GOLDEN[family] if each.expected.calls)
    turn = next(each for each in turns if not each.opens_in_reasoning)
    begin = data.draw(st.sampled_from(("", turn.text)))
    text = f"{begin}\nDone."
    expected = turn.parse([text])
    parsed = turn.parse(splits(data, "".join((text, *strays))))

    assert expected.content.endswith("Done.")
    assert parsed._replace(content=parsed.content.rstrip()) == expected


SECTIONS = {
    notation.opening: notation
    for notations in WRITTEN.values()
    for notation in notations[:1]
    if not (notation.encloses_each or notation.is_list)
}
"""The families that write calls in sections, by the text that begins one."""
EMPTY_SECTION = re.compile(
    "|".join(
        rf"{re.escape(begin)}\s*{re.escape(end)}"
        for notations in WRITTEN.values()
        for section in notations
        if not (section.encloses_each or section.is_list)
        for begin in (section.opening, *section.variants)
        for notation in notations
        for end in notation.section_ends
    )
)
"""A section without calls: the white space inside is no more content than that in a list."""


@pytest.mark.parametrize("begin", SECTIONS)
@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_noise_between_a_section_and_its_call_is_not_content(
    begin: str, data: st.DataObject
) -> None:
    """Text and markers before the first call: they are not content."""
    turns = [each for goldens in GOLDEN.values() for each in goldens]
    turn = data.draw(
        st.sampled_from(
            [each for each in turns if each.text.startswith(begin) and each.expected.calls]
        )
    )
    section = SECTIONS[begin]
    strays = st.sampled_from([begin, section.ends[-1]])
    words = st.sampled_from(["Sure", ":", "\n", " ", "{", '"', "<"])
    noise = data.draw(st.lists(words | strays, max_size=6).map("".join))
    text = f"{begin}{noise}{turn.text.removeprefix(begin)}"
    expected = turn.parse([turn.text])
    parsed = turn.parse(splits(data, text))

    assert parsed == expected


def splits(data: st.DataObject, text: str) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(text)])]


@pytest.mark.parametrize("family", GOLDEN)
@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_the_texts_of_the_tokens_with_log_probabilities_are_the_content(
    family: str, data: st.DataObject
) -> None:
    """However the bytes are split into tokens. Paragraphs between messages have no token."""
    turn = data.draw(random_turns(family))
    text = turn.text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(text))), max_size=60)))
    pieces = [text[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(text)])]
    deltas = chat_deltas(turn, pieces, data.draw(st.sampled_from(ENDS)))
    tokens, content = tokens_and_content(deltas)

    if family in WITH_MESSAGES:
        tokens, content = "".join(tokens.split()), "".join(content.split())
    assert tokens == content
    assert sum(len(delta.logprobs) for delta in deltas) <= len(pieces)


@pytest.mark.parametrize("cut", ["<", "<|en", "", "<|end|><|start|>assistant<|channel|>fin"])
def test_the_dropped_beginning_of_a_marker_has_no_log_probability(cut: str) -> None:
    """A turn that ends at its limit in or behind the text of a message."""
    turn = GOLDEN["harmony"][0]._replace(
        text=f"<|channel|>final<|message|>Hi.{cut}", tools=NO_TOOLS
    )
    (at_limit,) = (end for end in ENDS if end.reason is FinishReason.LENGTH)

    for pieces in ([turn.text.encode()], [bytes((byte,)) for byte in turn.text.encode()]):
        found = tokens_and_content(chat_deltas(turn, pieces, at_limit))
        assert found == ("Hi.", "Hi.")


def chat_deltas(turn: Golden, pieces: Sequence[bytes], end: Finished) -> list[ChatDelta]:
    chat, detokenizer = ChatTurn(0, turn.parser(), token_ids=False), Detokenizer()
    responses: list[ChatResponse] = []
    for piece in pieces:
        logprob = ChosenLogprob(Logprob(0, piece, -1.0), (), text=piece)
        delta = Delta(0, (detokenizer.push(piece),), (0,), (logprob,))
        responses += chat.delta(delta)
    responses += chat.finish(end)
    return [response.delta for response in responses]


def tokens_and_content(deltas: Sequence[ChatDelta]) -> tuple[str, str]:
    """The texts of the tokens with log probabilities, and the content."""
    tokens = b"".join(entry.chosen.token for delta in deltas for entry in delta.logprobs)
    return tokens.decode(), "".join(delta.content for delta in deltas)


@settings(max_examples=examples(100), deadline=None)
@given(st.text())
def test_a_plain_format_holds_nothing_back(text: str) -> None:
    """A format without markers passes all text on at once."""
    parser = TurnParser(TurnFormat(), tools=TOOLS)

    assert feed(parser, text).content == text
    assert finish(parser).content == ""
