"""Embedding bodies to EmbedRequests, and vectors back."""

from typing import Any

import pytest
from corral.inference.v1 import inference_service_pb2 as pb

from openai_wire.chat.embeddings import EmbeddingList, embed_request, parse_embedding
from openai_wire.errors import EMBEDDING_PARAMS, error_body, openai_name
from svc_kit.errors import DomainError


def the_request(**fields: Any) -> pb.EmbedRequest:
    """The request that a body with these fields becomes."""
    return embed_request(parse_embedding({"model": "m"} | fields))


@pytest.mark.parametrize(
    ("given", "sent"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_inputs_have_four_forms(given: Any, sent: list[Any]) -> None:
    """Texts and token ids, one or several."""
    inputs = the_request(input=given).inputs

    assert [each.text or list(each.token_ids.ids) for each in inputs] == sent


def test_settings_stay_unset_unless_given() -> None:
    """Defaults are the service's; what is given travels."""
    bare, full = the_request(input="a"), the_request(input="a", dimensions=3, normalize=False)

    assert not bare.HasField("dimensions")
    assert not bare.HasField("normalize")
    assert (full.dimensions, full.normalize, full.model) == (3, False, "m")


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
        ({"input": "a", "truncate": True}, "truncate", "unsupported_parameter"),
        ({"input": "a", "nonsense": 1}, "nonsense", "unknown_parameter"),
        ({"input": "a", "stream": True}, "stream", "unknown_parameter"),
    ],
)
def test_bad_bodies_are_refused_by_name(fields: dict[str, Any], param: str, code: str) -> None:
    """OpenAI's field name and code."""
    with pytest.raises(DomainError) as caught:
        the_request(**fields)
    body: Any = error_body(caught.value)

    assert (body["error"]["param"], body["error"]["code"]) == (param, code)


def test_errors_about_inputs_name_what_the_caller_wrote() -> None:
    """The proto's field has another name than the body's."""
    assert openai_name("inputs[3]", EMBEDDING_PARAMS) == "input[3]"


@pytest.mark.parametrize(
    ("is_base64", "sent"), [(False, [1.5, -2.0]), (True, "AADAPwAAAMA=")]
)  # fmt: skip
def test_vectors_are_numbers_or_packed(is_base64: bool, sent: object) -> None:
    """Little-endian 32-bit floats in Base64 where asked for; usage counts the tokens."""
    vectors = EmbeddingList("asked", is_base64=is_base64)
    vectors.add(
        pb.EmbedResponse(
            embeddings=[pb.Embedding(values=(1.5, -2.0))], prompt_tokens=7, model="answered"
        )
    )

    assert vectors.as_object() == {
        "object": "list",
        "model": "answered",
        "data": [{"object": "embedding", "index": 0, "embedding": sent}],
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
