"""Errors in Anthropic's envelope."""

from typing import Any

import pytest

from dialects.anthropic.errors import anthropic_name, error_body, with_anthropic_names
from svc_kit import errors

PATHS = [
    ["system", "system[0]", "system[1]"],
    ["messages[0]", "messages[0].content[1]", "messages[1].content"],
    ["messages[2].content[0]", "messages[2].content[0].content[0]"],
]
"""A system prompt, two user turns that were joined, and the result of a tool."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.InvalidField(field="a", problem="b"), "invalid_request_error"),
        (errors.ApiKeyMissing(), "authentication_error"),
        (errors.ScopeMissing(scope="generate", method="POST /v1/messages"), "permission_error"),
        (errors.ModelNotFound(model="m"), "not_found_error"),
        (errors.RequestIdReused(field="request_id", request_id="r"), "conflict_error"),
        (errors.RequestTooLarge(size=2, limit=1), "request_too_large"),
        (errors.QueueFull(bound="requests", depth=1, limit=1), "rate_limit_error"),
        (errors.UpstreamUnavailable(service="inference"), "overloaded_error"),
        (errors.DeadlineExpired(phase="call"), "timeout_error"),
        (errors.InternalError(request_id="r"), "api_error"),
        (
            errors.BudgetExceeded(
                name="n",
                limit="1 token per day",
                unit="tokens",
                amount=1,
                remaining=0,
                requested=1,
                window_s=1,
                reset_s=1,
            ),
            "rate_limit_error",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, errors.DomainError) else str(value),
)
def test_each_status_has_its_type(error: errors.DomainError, expected: str) -> None:
    assert error_body(error, "req_1") == {
        "type": "error",
        "error": {"type": expected, "message": error.message},
        "request_id": "req_1",
    }


def test_a_long_prompt_has_the_words_that_claude_code_reads() -> None:
    """It finds both numbers in them."""
    error = errors.ContextLengthExceeded(field="prompt", prompt_tokens=5000, context_tokens=4096)
    body: Any = error_body(with_anthropic_names(error, PATHS), "req_1")

    assert body["error"]["message"] == "prompt is too long: 5000 tokens > 4096 maximum"


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("options.sampling.top_k", "top_k"),
        ("options.stopping.stop[2]", "stop_sequences[2]"),
        ("constraint.json_schema", "output_config.format.schema"),
        ("conversation.tools[3].function.parameters", "tools[3].input_schema"),
        ("tools[3].name", "tools[3].name"),
        ("prompt", "messages"),
        ("messages", "messages"),
        ("messages[0].content[1]", "system[1]"),
        ("messages[0].role", "system"),
        ("messages[1].content[1].image", "messages[1].content.source"),
        ("messages[1].content[0].image.data", "messages[0].content[1].source.data"),
        ("messages[2].role", "messages[2].content[0].role"),
        ("messages[2].content", "messages[2].content[0].content"),
        ("messages[9].content", "messages[9].content"),
    ],
)
def test_fields_have_the_names_of_the_body(field: str, name: str) -> None:
    """Messages of the conversation have other places in the body."""
    assert anthropic_name(field, PATHS) == name
