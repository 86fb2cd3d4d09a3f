"""Random turns of each family, for property tests."""

from hypothesis import strategies as st

from tests.support.golden_turns import GOLDEN
from tests.support.turns import NO_TOOLS, TOOLS, Golden, Parsed

FRAGMENTS = st.sampled_from(
    [
        "<think>", "</think>", "<", "</", "[", "{", "}", "]", "(", ")", '"', "'", "\\", ",", ":",
        "=", ";", " ", "\n", "\n\n", "{}", '{"name": "get_time"}', '{"name": "f", "arguments": {',
        '"a": 1', "\\ud800", "é🙂", "```", "to=functions.f", "f(a=1", "x",
        "18446744073709551616", "0.12345678901234567890", '{\n "n": 18446744073709551616\r\n}',
    ]
)  # fmt: skip


def random_turns(family: str) -> st.SearchStrategy[Golden]:
    """Turns joined from pieces of the family's golden texts, since random text rarely has calls."""
    goldens = GOLDEN[family]
    texts = st.sampled_from([golden.text[:400] for golden in goldens])
    cut = st.builds(
        lambda text, a, b: text[min(a, b) : max(a, b)],
        texts,
        st.integers(0, 400),
        st.integers(0, 400),
    )
    markers = st.sampled_from([text for text in goldens[0].turn_format.marker_texts if text])
    parts = st.lists(texts | cut | cut | markers | FRAGMENTS | st.text(max_size=3), max_size=6)
    return st.builds(
        lambda golden, parts, tools, opens, inline: Golden(
            family, golden.turn_format, "".join(parts), Parsed(), tools, opens, inline
        ),
        st.sampled_from(goldens),
        parts,
        st.sampled_from([TOOLS, TOOLS, TOOLS, NO_TOOLS]),
        st.booleans(),
        st.booleans(),
    )
