"""Hypothesis strategies for items of every kind."""

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from control_svc.items import model as item_model

_START = datetime(1970, 1, 1, tzinfo=UTC)
_COUNT = st.integers(0, 2**31 - 1)
_NUMBER = st.floats(allow_nan=False)
_CITATIONS = st.builds(item_model.FileCitation, start=_COUNT, end=_COUNT)
_ALTERNATIVES = st.builds(item_model.TokenLogprob, logprob=_NUMBER, top=st.just(()))
_LOGPROBS = st.builds(
    item_model.TokenLogprob, logprob=_NUMBER, top=st.lists(_ALTERNATIVES, max_size=1).map(tuple)
)
_RESULTS = st.builds(item_model.SearchResult, score=_NUMBER, attributes_json=st.text(min_size=1))

PARTS: st.SearchStrategy[item_model.Part] = st.one_of(
    st.builds(
        item_model.Text,
        annotations=st.lists(_CITATIONS, max_size=1).map(tuple),
        logprobs=st.lists(_LOGPROBS, max_size=1).map(tuple),
    ),
    st.builds(item_model.Refusal, refusal=st.text()),
    st.builds(item_model.Image, url=st.text(), file_id=st.text(), detail=st.text()),
    st.builds(item_model.FileInput, file_id=st.text(), data_url=st.text(), filename=st.text()),
)
_MANY_PARTS = st.lists(PARTS, max_size=2).map(tuple)


def contents_of_kind(kind: type[item_model.Content]) -> st.SearchStrategy[item_model.Content]:
    if kind is item_model.FileSearchCall:
        return st.builds(
            item_model.FileSearchCall, results=st.lists(_RESULTS, max_size=1).map(tuple)
        )
    if kind is item_model.Message:
        return st.builds(item_model.Message, content=_MANY_PARTS)
    if kind in (item_model.FunctionCallOutput, item_model.CustomToolCallOutput):
        return st.builds(kind, output=_MANY_PARTS)
    return st.builds(kind)


def items_with(
    contents: st.SearchStrategy[item_model.Content],
) -> st.SearchStrategy[item_model.Item]:
    return st.builds(
        item_model.Item,
        id=st.text(),
        status=st.sampled_from(item_model.ItemStatus),
        created_at=st.integers(0, 10**15).map(lambda us: _START + timedelta(microseconds=us)),
        content=contents,
    )


ITEMS: st.SearchStrategy[item_model.Item] = items_with(
    st.one_of([contents_of_kind(kind) for kind in item_model.ITEM_PREFIXES])
)
