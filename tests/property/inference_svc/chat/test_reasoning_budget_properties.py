"""Budgets of reasoning, for the markers of every family and random tokenizations."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.chat.parsers.formats import ReasoningFormat, ToolCallFormat, TurnFormat
from inference_svc.chat.parsers.parser import TurnParser
from inference_svc.chat.reasoning_support import reasoning_spec
from inference_svc.engine.reasoning_tracker import ReasoningTracker
from tests.support.examples import examples
from tests.support.turns import pop_joined

FORMATS = [each for each in ReasoningFormat if each is not ReasoningFormat.OFF]
WORDS = st.lists(st.sampled_from(["so ", "\n", "é", "<", "</", "x", "[/", "<|", " "]), max_size=12)


def turn_format(reasoning: ReasoningFormat) -> TurnFormat:
    """The format of a family without tools."""
    is_harmony = reasoning is ReasoningFormat.HARMONY
    return TurnFormat(reasoning, ToolCallFormat.HARMONY if is_harmony else ToolCallFormat.HERMES)


def split(text: str, cuts: list[int]) -> list[bytes]:
    """Split the bytes of a text into tokens, at most one for each byte."""
    data = text.encode()
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in itertools.pairwise(places)]


class Model:
    """Writes planned tokens unless the tracker forces others. `pieces` are those written."""

    def __init__(
        self, of: TurnFormat, budget: int | None, cuts: list[int], *, is_open: bool
    ) -> None:
        self._vocabulary: list[bytes] = []
        closings = tuple(
            tuple(self._id(piece) for piece in split(text, cuts)) for text in of.closings
        )
        spec = reasoning_spec(of, opens_in_reasoning=is_open)
        assert spec is not None
        self.tracker = ReasoningTracker(spec._replace(budget=budget, closings=closings))
        self.pieces: list[bytes] = []
        self.was_forced = False

    def _id(self, piece: bytes) -> int:
        if piece not in self._vocabulary:
            self._vocabulary.append(piece)
        return self._vocabulary.index(piece)

    def write(self, planned: list[bytes]) -> None:
        """Write tokens; once the reasoning was closed, only the forced tokens follow."""
        for piece in [*planned, b""]:
            while (forced := self.tracker.forced) is not None:
                self.was_forced = True
                self._add(self._vocabulary[forced])
            if self.was_forced:
                return
            if piece:
                self._add(piece)

    def _add(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.tracker.add(self._id(piece), piece)


@pytest.mark.parametrize("reasoning", FORMATS)
@settings(max_examples=examples(60), deadline=None)
@given(
    WORDS,
    st.lists(st.integers(0, 200), max_size=30),
    st.lists(st.integers(0, 60), max_size=8),
    st.integers(0, 12) | st.none(),
    st.booleans(),
)
def test_a_budget_closes_the_thought_and_the_answer_follows(
    reasoning: ReasoningFormat,
    words: list[str],
    cuts: list[int],
    closing_cuts: list[int],
    budget: int | None,
    is_open: bool,
) -> None:
    """Never later than the budget, with the family's own marker; what follows is content."""
    of, thought = turn_format(reasoning), "".join(words)
    markers = of.reasoning_markers
    assert markers is not None
    model = Model(of, budget, closing_cuts, is_open=is_open)
    model.write(split(f"{'' if is_open else markers.begin}{thought}", cuts))

    assert budget is None or model.tracker.num_tokens <= budget
    if not model.was_forced:
        return
    assert model.tracker.num_tokens == budget or b"".join(model.pieces).endswith(
        of.closings[0].encode()
    )
    written = b"".join(model.pieces).decode(errors="replace")
    assert written.endswith(of.closings[0])
    answer = "<|channel|>final<|message|>Yes." if of.is_harmony else "Yes."
    parser = TurnParser(of, opens_in_reasoning=is_open)
    parser.feed(written + answer)
    parser.finish()
    assert pop_joined(parser).content == "Yes."


@pytest.mark.parametrize("reasoning", FORMATS)
@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(["so ", "\n", "é", "x", " "]), max_size=12), st.booleans())
def test_reasoning_tokens_are_those_between_the_markers(
    reasoning: ReasoningFormat, words: list[str], is_open: bool
) -> None:
    """White space counts, tokens of markers do not, however they are split."""
    of = turn_format(reasoning)
    markers = of.reasoning_markers
    assert markers is not None
    begin = [] if is_open else split(markers.begin, list(range(0, 40, 3)))
    model = Model(of, None, [], is_open=is_open)
    model.write([*begin, *(word.encode() for word in words), *split(markers.end, [1, 3]), b"Yes."])

    assert model.tracker.num_tokens == len(words)


def test_a_channel_that_begins_again_is_closed_for_good() -> None:
    """The first time the model chooses the next channel, then it must answer."""
    of = turn_format(ReasoningFormat.HARMONY)
    model = Model(of, 1, [], is_open=False)
    again = [b"<|channel|>", b"analysis", b"<|message|>", b"so"]
    model.write(again)
    first = b"".join(model.pieces)
    model.was_forced = False
    model.write(again)

    assert first.endswith(b"<|message|>so<|end|><|start|>assistant")
    assert b"".join(model.pieces) == (
        first + b"<|channel|>analysis<|message|>"
        b"<|end|><|start|>assistant<|channel|>final<|message|>"
    )
    assert model.tracker.num_tokens == 1
