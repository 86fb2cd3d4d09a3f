"""Answers with embeddings: each vector belongs to its input, or the answer is none."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_svc.upstream.embedding_turn import read_answer
from inference_svc.upstream.faults import AnswerInvalid

NUMBERS = st.one_of(st.floats(-1e30, 1e30), st.integers(-(2**60), 2**60))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=3)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(
    vectors=st.integers(1, 4).flatmap(
        lambda size: st.lists(st.lists(NUMBERS, min_size=size, max_size=size), min_size=1)
    ),
    data=st.data(),
)
def test_vectors_have_the_order_of_the_inputs(vectors: list[list[float]], data: Any) -> None:
    """Whatever that of the answer is."""
    items = [{"index": index, "embedding": each} for index, each in enumerate(vectors)]
    answer = read_answer({"data": data.draw(st.permutations(items))}, len(vectors), len(vectors[0]))

    assert [each.tolist() for each in answer.vectors] == np.array(vectors, np.float32).tolist()


@given(field=st.sampled_from(["data", "item", "index", "embedding", "number"]), wrong=JSON)
def test_an_answer_has_finite_vectors_of_one_length_or_is_none(field: str, wrong: Any) -> None:
    item: dict[str, Any] = {"index": 1, "embedding": [1.0, 2.0]}
    answer: dict[str, Any] = {"data": [{"index": 0, "embedding": [0.5, 0.5]}, item]}
    match field:
        case "data":
            answer["data"] = wrong
        case "item":
            answer["data"][1] = wrong
        case "number":
            item["embedding"][1] = wrong
        case _:
            item[field] = wrong
    try:
        vectors = read_answer(answer, 2, 2).vectors
    except AnswerInvalid:
        return
    assert [each.shape for each in vectors] == [(2,), (2,)]
    assert np.isfinite(vectors).all()


def test_a_number_beyond_all_floats_is_no_answer() -> None:
    with pytest.raises(AnswerInvalid):
        read_answer({"data": [{"index": 0, "embedding": [1e39]}]}, 1)
