"""Headers about limits."""

from datetime import datetime
from typing import Any

import pytest
from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as pb
from google.protobuf.duration_pb2 import Duration

from gateway.http.errors import error_response
from gateway.http.rate_limits import format_reset, rate_limit_headers, set_rate_limits
from svc_kit.errors import BudgetExceeded, RateLimited


def status(name: str, unit: str, amount: int, left: int, window_s: int = 60) -> Any:
    """A limit that is whole again after 1.5 s."""
    return generation.RateLimitStatus(
        name=name,
        unit=f"UNIT_{unit}",
        amount=amount,
        remaining=left,
        reset=Duration(seconds=1, nanos=500_000_000),
        window=Duration(seconds=window_s) if window_s else None,
    )


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0ms"),
        (120, "120ms"),
        (1000, "1s"),
        (8640, "8.64s"),
        (360_000, "6m0s"),
        (86_399_500, "23h59m59.5s"),
    ],
)
def test_times_are_written_as_openai_does(milliseconds: int, text: str) -> None:
    """Largest unit first, with zeros in between."""
    assert format_reset(milliseconds) == text


def test_the_tightest_limits_become_openai_headers_and_all_those_of_the_draft() -> None:
    scope: dict[str, Any] = {}
    limits = [
        status("calls", "REQUESTS", 60, 50),
        status("daily", "REQUESTS", 100, 10, 86400),
        status("tokens", "TOKENS", 9000, 8000),
        status("streams", "CONCURRENT_REQUESTS", 4, 3, 0),
        status("spend", "UNSPECIFIED", 7000, 7, 86400),
    ]
    set_rate_limits(scope, pb.ChatResponse(accepted=generation.Accepted(rate_limits=limits)))

    headers = {name.decode(): value.decode() for name, value in rate_limit_headers(scope)}
    assert headers == {
        "x-ratelimit-limit-requests": "100",
        "x-ratelimit-remaining-requests": "10",
        "x-ratelimit-reset-requests": "1.5s",
        "x-ratelimit-limit-tokens": "9000",
        "x-ratelimit-remaining-tokens": "8000",
        "x-ratelimit-reset-tokens": "1.5s",
        "ratelimit-policy": '"calls";q=60;w=60, "daily";q=100;w=86400, "tokens";q=9000;w=60;'
        'qu="tokens", "streams";q=4;qu="concurrent-requests", "spend";q=7000;w=86400;qu="cost"',
        "ratelimit": '"calls";r=50;t=2, "daily";r=10;t=2, "tokens";r=8000;t=2, "streams";r=3;t=2,'
        ' "spend";r=7;t=2',
    }


@pytest.mark.parametrize("message", [pb.EmbedResponse(), pb.ChatResponse(), None])
def test_a_response_without_limits_has_no_headers(message: object) -> None:
    scope: dict[str, Any] = {}
    set_rate_limits(scope, message)

    assert rate_limit_headers(scope) == []


def test_a_refusal_has_the_headers_of_its_limit() -> None:
    """And says when to retry; clients do not retry a budget."""
    metadata: dict[str, Any] = {
        "name": "tokens",
        "limit": "60 tokens per minute",
        "unit": "tokens",
        "amount": 60,
        "remaining": 4,
        "requested": 9,
        "window_s": 60,
        "reset_s": 56,
    }
    rate = error_response(RateLimited(**metadata, retry_after=5.0)).headers
    budget = error_response(BudgetExceeded(**metadata, retry_after=86399.5)).headers

    assert rate["x-ratelimit-remaining-tokens"] == budget["x-ratelimit-remaining-tokens"] == "4"
    assert rate["x-ratelimit-reset-tokens"] == "56s"
    assert rate["ratelimit"] == '"tokens";r=4;t=56'
    assert (rate["retry-after"], budget["retry-after"]) == ("5", "86400")
    assert "x-should-retry" not in rate
    assert budget["x-should-retry"] == "false"


def test_requests_of_anthropics_api_get_its_headers() -> None:
    """Of the tightest limits; with the time of the reset."""
    scope: dict[str, Any] = {"path": "/v1/messages"}
    limits = [status("calls", "REQUESTS", 60, 50), status("tokens", "TOKENS", 9000, 8000)]
    set_rate_limits(scope, pb.ChatResponse(accepted=generation.Accepted(rate_limits=limits)))

    headers = {name.decode(): value.decode() for name, value in rate_limit_headers(scope)}
    reset = headers.pop("anthropic-ratelimit-requests-reset")
    assert datetime.fromisoformat(reset).tzinfo is not None
    assert headers.pop("anthropic-ratelimit-tokens-reset") >= reset
    assert {name: value for name, value in headers.items() if name.startswith("a")} == {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "50",
        "anthropic-ratelimit-tokens-limit": "9000",
        "anthropic-ratelimit-tokens-remaining": "8000",
    }
    assert not any(name.startswith("x-ratelimit") for name in headers)
