"""Completion bodies to GenerateRequests."""

from typing import Any

import pytest
from corral.inference.v1 import inference_service_pb2

from dialects.openai.chat.completion_request import parse_completion, prompt_requests
from dialects.openai.errors import error_body
from svc_kit.errors import DomainError


def make_requests(**fields: Any) -> list[inference_service_pb2.GenerateRequest]:
    return prompt_requests(parse_completion({"model": "m"} | fields))


@pytest.mark.parametrize(
    ("prompt", "sent"),
    [
        ("a", ["a"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompts_have_four_forms(prompt: Any, sent: list[Any]) -> None:
    """Each prompt becomes a request."""
    prompts = [
        request.text if request.WhichOneof("prompt") == "text" else list(request.token_ids.ids)
        for request in make_requests(prompt=prompt)
    ]

    assert prompts == sent


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({}, "prompt", "missing_required_parameter"),
        ({"prompt": None}, "prompt", "missing_required_parameter"),
        ({"prompt": []}, "prompt", "empty_array"),
        ({"prompt": [[]]}, "prompt[0]", "empty_array"),
        ({"prompt": 5}, "prompt", "invalid_type"),
        ({"prompt": {"text": "a"}}, "prompt", "invalid_type"),
        ({"prompt": [1, "a"]}, "prompt[1]", "invalid_type"),
        ({"prompt": ["a", 1]}, "prompt[1]", "invalid_type"),
        ({"prompt": [True]}, "prompt[0]", "invalid_type"),
        ({"prompt": [1.5]}, "prompt[0]", "invalid_type"),
        ({"prompt": [-1]}, "prompt[0]", "integer_below_min_value"),
        ({"prompt": [[2**31]]}, "prompt[0][0]", "integer_above_max_value"),
        ({"prompt": ["a"] * 2049}, "prompt", "array_above_max_length"),
        ({"prompt": ["a"] * 100, "n": 100}, "prompt", "array_above_max_length"),
        ({"prompt": "a", "messages": []}, "messages", "unsupported_parameter"),
        ({"prompt": "a", "nonsense": 1}, "nonsense", "unknown_parameter"),
        ({"prompt": "a", "logprobs": True}, "logprobs", "invalid_type"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "integer_above_max_value"),
        ({"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs", "integer_above_max_value"),
        ({"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs", "integer_below_min_value"),
        (
            {"prompt": "a", "truncate_prompt_tokens": 2, "echo": True},
            "truncate_prompt_tokens",
            "invalid_value",
        ),
        ({"prompt": "a", "n": 2, "best_of": 1}, "best_of", "invalid_value"),
        ({"prompt": "a", "best_of": 21}, "best_of", "integer_above_max_value"),
        ({"prompt": "a", "best_of": 2, "stream": True}, "best_of", "invalid_value"),
    ],
)
def test_an_invalid_field_is_rejected(fields: dict[str, Any], param: str, code: str) -> None:
    """The error has the path of the field and OpenAI's code."""
    with pytest.raises(DomainError) as caught:
        make_requests(**fields)

    error: Any = error_body(caught.value)["error"]
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [({}, 16), ({"max_tokens": 0}, 0), ({"max_tokens": 99}, 99), ({"n_predict": 7}, 7)],
)
def test_max_tokens_defaults_to_16(fields: dict[str, Any], limit: int) -> None:
    """As in OpenAI's API."""
    (request,) = make_requests(prompt="a", **fields)

    assert request.options.stopping.max_tokens == limit


def test_n_predict_minus_one_means_no_limit() -> None:
    """max_tokens is unset."""
    (request,) = make_requests(prompt="a", n_predict=-1)

    assert not request.options.stopping.HasField("max_tokens")


def test_control_tokens_in_prompts_are_parsed() -> None:
    """Callers apply the chat template themselves."""
    (request,) = make_requests(prompt="<|im_start|>user")

    assert request.parse_special
    assert not request.HasField("add_special")


def test_best_of_requests_more_choices_with_logprobs() -> None:
    """They are needed for ranking."""
    (request,) = make_requests(prompt="a", n=2, best_of=3)

    assert request.options.num_choices == 3
    assert request.options.output.HasField("top_logprobs")


def test_best_of_equal_to_n_has_no_effect() -> None:
    """No ranking is needed."""
    (request,) = make_requests(prompt="a", n=2, best_of=2)

    assert request.options.num_choices == 2
    assert not request.options.output.HasField("top_logprobs")


@pytest.mark.parametrize(
    ("fields", "requested"),
    [
        ({"echo": True}, None),
        ({"logprobs": 2}, None),
        ({"echo": True, "logprobs": 2}, 2),
        ({"prompt_logprobs": 0}, 0),
        ({"echo": True, "logprobs": 2, "prompt_logprobs": 3}, 3),
        ({"echo": True, "logprobs": 2, "prompt_logprobs": 1}, 2),
    ],
)
def test_an_echo_with_logprobs_requests_those_of_the_prompt(
    fields: dict[str, Any], requested: int | None
) -> None:
    """The larger number of alternatives is requested."""
    output = make_requests(prompt="a", **fields)[0].options.output

    assert (output.prompt_logprobs if output.HasField("prompt_logprobs") else None) == requested


def test_logprobs_is_the_number_of_alternatives() -> None:
    """0 requests only the chosen token."""
    none, three = (make_requests(prompt="a", logprobs=n)[0].options.output for n in (0, 3))

    assert none.HasField("top_logprobs")
    assert (none.top_logprobs, three.top_logprobs) == (0, 3)


def test_a_suffix_asks_for_the_text_before_it() -> None:
    """An empty one is none."""
    with_suffix, without = (make_requests(prompt="a", suffix=text)[0] for text in ("b", ""))

    assert (with_suffix.text, with_suffix.infill.suffix) == ("a", "b")
    assert not without.HasField("infill")
