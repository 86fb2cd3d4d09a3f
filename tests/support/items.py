"""Hypothesis strategies for items of every kind."""

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from control_svc.items.model import (
    ITEM_PREFIXES,
    Content,
    CustomToolCallOutput,
    FileCitation,
    FileInput,
    FileSearchCall,
    FunctionCallOutput,
    Image,
    Item,
    ItemStatus,
    Message,
    Part,
    Refusal,
    SearchResult,
    Text,
    TokenLogprob,
)

_START = datetime(1970, 1, 1, tzinfo=UTC)
_COUNT = st.integers(0, 2**31 - 1)
_NUMBER = st.floats(allow_nan=False)
_CITATIONS = st.builds(FileCitation, start=_COUNT, end=_COUNT)
_ALTERNATIVES = st.builds(TokenLogprob, logprob=_NUMBER, top=st.just(()))
_LOGPROBS = st.builds(
    TokenLogprob, logprob=_NUMBER, top=st.lists(_ALTERNATIVES, max_size=1).map(tuple)
)
_RESULTS = st.builds(SearchResult, score=_NUMBER, attributes_json=st.text(min_size=1))

PARTS: st.SearchStrategy[Part] = st.one_of(
    st.builds(
        Text,
        annotations=st.lists(_CITATIONS, max_size=1).map(tuple),
        logprobs=st.lists(_LOGPROBS, max_size=1).map(tuple),
    ),
    st.builds(Refusal, refusal=st.text()),
    st.builds(Image, url=st.text(), file_id=st.text(), detail=st.text()),
    st.builds(FileInput, file_id=st.text(), data_url=st.text(), filename=st.text()),
)
_MANY_PARTS = st.lists(PARTS, max_size=2).map(tuple)


def contents_of_kind(kind: type[Content]) -> st.SearchStrategy[Content]:
    if kind is FileSearchCall:
        return st.builds(FileSearchCall, results=st.lists(_RESULTS, max_size=1).map(tuple))
    if kind is Message:
        return st.builds(Message, content=_MANY_PARTS)
    if kind in (FunctionCallOutput, CustomToolCallOutput):
        return st.builds(kind, output=_MANY_PARTS)
    return st.builds(kind)


def items_with(contents: st.SearchStrategy[Content]) -> st.SearchStrategy[Item]:
    return st.builds(
        Item,
        id=st.text(),
        status=st.sampled_from(ItemStatus),
        created_at=st.integers(0, 10**15).map(lambda us: _START + timedelta(microseconds=us)),
        content=contents,
    )


ITEMS: st.SearchStrategy[Item] = items_with(
    st.one_of([contents_of_kind(kind) for kind in ITEM_PREFIXES])
)
