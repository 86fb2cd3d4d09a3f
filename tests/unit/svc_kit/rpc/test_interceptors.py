"""Ends of calls that cannot be reproduced with a real connection."""

import asyncio
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from svc_kit.auth.authenticator import Authenticator
from svc_kit.metrics import RpcMetrics
from svc_kit.rpc.interceptors import RpcInterceptor, new_request_id

METHOD = "/corral.inference.v1.InferenceService/Tokenize"


class Context:
    def __init__(self, remaining: float | None) -> None:
        self._remaining = remaining

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline."""
        return self._remaining

    def set_trailing_metadata(self, metadata: Any) -> None:
        """Ignore the metadata."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    async def read(self) -> bytes:
        return b""

    def code(self) -> None:
        """Return no code."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


class CallDetails:
    method = METHOD
    invocation_metadata = ()


async def counted_code(error: BaseException, *, remaining: float | None) -> str:
    """Return the status in the metrics of a call that ends with an exception."""
    registry = CollectorRegistry()
    metrics = RpcMetrics(registry)
    stack = RpcInterceptor(authenticator=Authenticator(keyless=["inference"]), metrics=metrics)

    async def tokenize(request: Any, context: Any) -> Any:
        raise error

    async def handler(details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(tokenize)

    wrapped = await stack.intercept_service(handler, CallDetails())
    with pytest.raises(type(error)):
        await wrapped.stream_unary(None, Context(remaining))
    samples = {
        sample.labels["code"]: sample.value
        for metric in metrics.calls.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    }
    assert list(samples.values()) == [1]
    return next(iter(samples))


@pytest.mark.parametrize(
    ("remaining", "code"), [(0.0, "DEADLINE_EXCEEDED"), (5.0, "CANCELLED"), (None, "CANCELLED")]
)
async def test_a_cancellation_at_the_deadline_is_counted_as_deadline_exceeded(
    remaining: float | None, code: str
) -> None:
    """gRPC cancels the servicer in both cases; the remaining time distinguishes them."""
    assert await counted_code(asyncio.CancelledError(), remaining=remaining) == code


async def test_a_write_to_a_disconnected_caller_is_counted_as_cancelled() -> None:
    """It may fail before the cancellation arrives."""
    assert await counted_code(grpc.aio.InternalError(), remaining=None) == "CANCELLED"


def test_request_ids_cannot_be_guessed() -> None:
    """96 random bits."""
    made = {new_request_id() for _ in range(100)}

    assert len(made) == 100
    assert all(len(each) == len("req_") + 24 for each in made)
