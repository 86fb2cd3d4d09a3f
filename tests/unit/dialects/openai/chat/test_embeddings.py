"""Request bodies and response objects of embeddings and reranking."""

from typing import Any

import pytest
from corral.inference.v1 import inference_service_pb2 as pb

from dialects.openai.chat.embeddings import (
    embed_request,
    embedding_list,
    parse_embedding,
    parse_rerank,
    ranked_list,
    rerank_request,
)
from dialects.openai.errors import EMBEDDING_PARAMS, error_body, openai_name
from svc_kit.errors import DomainError


def make_request(**fields: Any) -> pb.EmbedRequest:
    return embed_request(parse_embedding({"model": "m"} | fields))


@pytest.mark.parametrize(
    ("body_input", "proto_inputs"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_inputs_have_four_forms(body_input: Any, proto_inputs: list[Any]) -> None:
    inputs = make_request(input=body_input).inputs

    assert [each.text or list(each.token_ids.ids) for each in inputs] == proto_inputs


def test_unset_fields_stay_unset() -> None:
    """The defaults are the service's."""
    unset, full = make_request(input="a"), make_request(input="a", dimensions=3, normalize=False)

    assert not unset.HasField("dimensions")
    assert not unset.HasField("normalize")
    assert (full.dimensions, full.normalize, full.model) == (3, False, "m")


@pytest.mark.parametrize(
    ("fields", "truncates"),
    [
        ({}, False),
        ({"truncate": False}, False),
        ({"truncate": "NONE"}, False),
        ({"truncate": True}, True),
        ({"truncate": "END"}, True),
        ({"truncate_prompt_tokens": -1}, True),
    ],
)
def test_texts_that_are_too_long_are_cut_on_request(
    fields: dict[str, Any], truncates: bool
) -> None:
    """In the forms of Ollama, TEI and vLLM."""
    assert make_request(input="a", **fields).truncate is truncates


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": ""}, "input", "empty_string"),
        ({"input": []}, "input", "empty_array"),
        ({"input": [[]]}, "input[0]", "empty_array"),
        ({"input": 5}, "input", "invalid_type"),
        ({"input": ["a", 1]}, "input[1]", "invalid_type"),
        ({"input": [-1]}, "input[0]", "integer_below_min_value"),
        ({"input": ["a"] * 2049}, "input", "array_above_max_length"),
        ({"input": [[1]] * 2049}, "input", "array_above_max_length"),
        ({"input": "a", "dimensions": 0}, "dimensions", "integer_below_min_value"),
        ({"input": "a", "dimensions": "8"}, "dimensions", "invalid_type"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "invalid_value"),
        ({"input": "a", "truncate": "left"}, "truncate", "invalid_value"),
        (
            {"input": "a", "truncate_prompt_tokens": 5},
            "truncate_prompt_tokens",
            "integer_above_max_value",
        ),
        ({"input": "a", "nonsense": 1}, "nonsense", "unknown_parameter"),
        ({"input": "a", "stream": True}, "stream", "unknown_parameter"),
    ],
)
def test_invalid_bodies_are_rejected(fields: dict[str, Any], param: str, code: str) -> None:
    """The error has OpenAI's field name and code."""
    with pytest.raises(DomainError) as caught:
        make_request(**fields)
    body: Any = error_body(caught.value)

    assert (body["error"]["param"], body["error"]["code"]) == (param, code)


def test_the_proto_name_of_inputs_is_translated() -> None:
    """The body's field is `input`."""
    assert openai_name("inputs[3]", EMBEDDING_PARAMS) == "input[3]"


@pytest.mark.parametrize(
    ("is_base64", "embedding"), [(False, [1.5, -2.0]), (True, "AADAPwAAAMA=")]
)  # fmt: skip
def test_vectors_are_numbers_or_base64(is_base64: bool, embedding: object) -> None:
    encoding = "base64" if is_base64 else "float"
    body = parse_embedding({"model": "asked", "input": "x", "encoding_format": encoding})
    vectors = [pb.Embedding(values=(1.5, -2.0))]
    reply = pb.EmbedResponse(embeddings=vectors, prompt_tokens=7, model="answered")

    assert embedding_list(body, reply) == {
        "object": "list",
        "model": "answered",
        "data": [{"object": "embedding", "index": 0, "embedding": embedding}],
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


RERANK_BODY: dict[str, Any] = {"model": "m", "query": "q", "documents": ["a", {"text": "b"}]}


def test_a_rerank_body_is_converted() -> None:
    """Unset fields stay unset."""
    unset = rerank_request(parse_rerank(RERANK_BODY))
    full = rerank_request(parse_rerank(RERANK_BODY | {"top_n": 1, "return_documents": True}))

    assert (unset.model, unset.query, list(unset.documents)) == ("m", "q", ["a", "b"])
    assert not unset.HasField("top_n")
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
def test_invalid_rerank_bodies_are_rejected(fields: dict[str, Any], param: str, code: str) -> None:
    """The error has OpenAI's field name and code."""
    with pytest.raises(DomainError) as caught:
        rerank_request(parse_rerank(RERANK_BODY | fields))
    body: Any = error_body(caught.value)

    assert (body["error"]["param"], body["error"]["code"]) == (param, code)


@pytest.mark.parametrize("with_documents", [False, True])
def test_results_contain_documents_only_on_request(with_documents: bool) -> None:
    """Best first, with the index of the document in the request."""
    body = parse_rerank(RERANK_BODY | {"return_documents": with_documents})
    results = [
        pb.RerankResult(index=1, score=2, relevance=0.75),
        pb.RerankResult(index=0, score=-2, relevance=0.25),
    ]
    reply = pb.RerankResponse(results=results, prompt_tokens=9, model="answered")
    answer: Any = ranked_list("rerank-1", body, reply)

    assert [(r["index"], r["relevance_score"], r["score"]) for r in answer["results"]] == [
        (1, 0.75, 2),
        (0, 0.25, -2),
    ]
    assert [r.get("document") for r in answer["results"]] == (
        [{"text": "b"}, {"text": "a"}] if with_documents else [None, None]
    )
    assert (answer["id"], answer["model"]) == ("rerank-1", "answered")
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
