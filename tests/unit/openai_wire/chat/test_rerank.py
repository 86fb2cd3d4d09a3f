"""Rerank bodies to RerankRequests, and scores back."""

from typing import Any

import pytest
from corral.inference.v1 import inference_service_pb2 as pb

from openai_wire.chat.embeddings import RankedList, parse_rerank, rerank_request
from openai_wire.errors import error_body
from svc_kit.errors import DomainError

BODY: dict[str, Any] = {"model": "m", "query": "q", "documents": ["a", {"text": "b"}]}


def test_a_body_becomes_a_request() -> None:
    """Documents as texts or objects; what is not given stays unset."""
    bare = rerank_request(parse_rerank(BODY))
    full = rerank_request(parse_rerank(BODY | {"top_n": 1, "return_documents": True}))

    assert (bare.model, bare.query, list(bare.documents)) == ("m", "q", ["a", "b"])
    assert not bare.HasField("top_n")
    assert full.top_n == 1


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"query": None}, "query", "missing_required_parameter"),
        ({"query": ""}, "query", "empty_string"),
        ({"documents": []}, "documents", "empty_array"),
        ({"documents": ["a", ""]}, "documents[1]", "empty_string"),
        ({"documents": ["a", 5]}, "documents[1]", "invalid_type"),
        ({"documents": "a"}, "documents", "invalid_type"),
        ({"documents": ["a"] * 2049}, "documents", "array_above_max_length"),
        ({"top_n": 0}, "top_n", "integer_below_min_value"),
        ({"truncation": True}, "truncation", "unsupported_parameter"),
        ({"nonsense": 1}, "nonsense", "unknown_parameter"),
    ],
)
def test_bad_bodies_are_refused_by_name(fields: dict[str, Any], param: str, code: str) -> None:
    """The caller's field name and the code."""
    with pytest.raises(DomainError) as caught:
        rerank_request(parse_rerank(BODY | fields))
    body: Any = error_body(caught.value)

    assert (body["error"]["param"], body["error"]["code"]) == (param, code)


@pytest.mark.parametrize("documents", [None, ("a", "b")])
def test_results_carry_documents_only_where_asked(documents: tuple[str, ...] | None) -> None:
    """Best first as the service sends them, each with its place in the request."""
    ranked = RankedList("rerank-1", "asked", documents)
    results = [
        pb.RerankResult(index=1, score=2, relevance=0.75),
        pb.RerankResult(index=0, score=-2, relevance=0.25),
    ]
    ranked.add(pb.RerankResponse(results=results, prompt_tokens=9, model="answered"))
    answer: Any = ranked.as_object()

    assert [(r["index"], r["relevance_score"], r["score"]) for r in answer["results"]] == [
        (1, 0.75, 2),
        (0, 0.25, -2),
    ]
    assert [r.get("document") for r in answer["results"]] == (
        [{"text": "b"}, {"text": "a"}] if documents else [None, None]
    )
    assert (answer["id"], answer["model"]) == ("rerank-1", "answered")
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
