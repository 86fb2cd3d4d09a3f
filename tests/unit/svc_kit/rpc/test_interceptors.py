"""What the stack makes of ends that a real connection cannot be made to show on demand."""

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
    """As much of a servicer context as the stack uses, for a caller whose time may be over."""

    def __init__(self, remaining: float | None) -> None:
        self._remaining = remaining

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline."""
        return self._remaining

    def set_trailing_metadata(self, metadata: Any) -> None:
        """Nobody reads it."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """The caller sends none."""
        return ()

    def code(self) -> None:
        """No servicer has set one."""

    def peer(self) -> str:
        """Where the call came from."""
        return "ipv4:127.0.0.1:1"


class CallDetails:
    """What gRPC tells an interceptor of a call."""

    method = METHOD
    invocation_metadata = ()


async def code_counted(error: BaseException, *, remaining: float | None) -> str:
    """The status that the metrics count when a servicer ends with an exception."""
    registry = CollectorRegistry()
    metrics = RpcMetrics(registry)
    stack = RpcInterceptor(authenticator=Authenticator(keyless=["inference"]), metrics=metrics)

    async def tokenize(request: Any, context: Any) -> Any:
        raise error

    async def handler(details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(tokenize)

    wrapped = await stack.intercept_service(handler, CallDetails())
    with pytest.raises(type(error)):
        await wrapped.unary_unary(b"", Context(remaining))
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
async def test_a_cancel_by_deadline_counts_as_late(remaining: float | None, code: str) -> None:
    """gRPC cancels the servicer in both cases; the clock tells which one it was."""
    assert await code_counted(asyncio.CancelledError(), remaining=remaining) == code


async def test_a_write_to_a_caller_that_has_gone_is_a_cancel() -> None:
    """It fails before the cancel arrives; nothing of ours is broken."""
    assert await code_counted(grpc.aio.InternalError(), remaining=None) == "CANCELLED"


def test_request_ids_cannot_be_guessed() -> None:
    """96 random bits."""
    made = {new_request_id() for _ in range(100)}

    assert len(made) == 100
    assert all(len(each) == len("req_") + 24 for each in made)
