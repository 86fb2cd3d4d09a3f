"""Sandbox jobs in this process have the same results and failures as in a child."""

import pytest

from svc_kit.sandbox.frames import read_reply
from svc_kit.sandbox.jobs import FailureKind, JobFailed
from tests.support.sandbox_jobs import InlineJobs, job


async def test_a_result_is_converted_like_json() -> None:
    """Tuples become lists, as with a child process."""
    assert await InlineJobs().run(job("echo"), {"pair": (1, 2)}) == {"pair": [1, 2]}


async def test_bytes_are_sent_and_returned_unchanged() -> None:
    """They need no JSON: newlines, zeros and empty values too."""
    payload = {"a": b'\n{"\x00\xff', "text": "x\ny", "empty": b"", "b": b"\n"}

    assert await InlineJobs().run(job("echo"), payload) == payload


@pytest.mark.parametrize(
    ("function", "kind", "problem"),
    [
        ("refuse", FailureKind.REFUSED, "no"),
        ("fail", FailureKind.CRASHED, "it failed (KeyError)"),
        ("recurse", FailureKind.REFUSED, "it is nested too deeply"),
        ("exhaust", FailureKind.MEMORY, "it needs too much memory"),
        ("write_much", FailureKind.OUTPUT, "its result is too long"),
    ],
)
async def test_every_failure_has_its_kind(function: str, kind: FailureKind, problem: str) -> None:
    """No other exception is raised."""
    with pytest.raises(JobFailed) as raised:
        await InlineJobs().run(job(function, output_bytes=1000), {"why": "no", "characters": 2000})

    assert (raised.value.kind, str(raised.value)) == (kind, problem)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"{}",
        b'{"failed": "x"}',
        b'{"failed": "moon", "problem": 1}',
        b'{"result": 1, "blobs": {"x": 1}}\nx',
    ],
)
def test_invalid_output_of_a_child_is_a_crash(body: bytes) -> None:
    """A compromised child can only fail."""
    with pytest.raises(JobFailed) as raised:
        read_reply(body)

    assert raised.value.kind is FailureKind.CRASHED


async def test_a_long_reason_is_truncated() -> None:
    """A template can raise an error with a long message."""
    with pytest.raises(JobFailed) as raised:
        await InlineJobs().run(job("refuse"), {"why": "\ud800" + "x" * 10_000})

    assert raised.value.problem == "?" + "x" * 499
