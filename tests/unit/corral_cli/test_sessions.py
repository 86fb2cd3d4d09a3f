"""The tables of `corral sessions`."""

from corral.inference.v1 import session_pb2 as pb
from corral.inference.v1.generation_pb2 import FINISH_REASON_TOOL_CALLS, CacheDivergence, Usage
from google.protobuf.timestamp_pb2 import Timestamp

from corral_cli.top.sessions import session_lines, turn_lines

ENDED = Timestamp(seconds=1_796_014_805)
FINISHED = pb.SessionTurn(
    request_id="req_1",
    end_time=ENDED,
    usage=Usage(prompt_tokens=20_000, cached_tokens=19_000, completion_tokens=120),
    timings={"first_token": {"nanos": 250_000_000}, "tokens_per_second": 40.25},
    finish_reason=FINISH_REASON_TOOL_CALLS,
)
BROKEN = pb.SessionTurn(
    request_id="req_2",
    end_time=ENDED,
    usage=Usage(
        prompt_tokens=21_000,
        cached_tokens=2_100,
        divergence=CacheDivergence(token_index=2_100, lost_tokens=18_000, field="tools[3]"),
    ),
    error_reason="CALLER_CANCELLED",
)
SESSION = pb.Session(
    session_id="a1",
    name="agent",
    project="red",
    model="demo",
    end_time=ENDED,
    num_turns=2,
    num_divergences=1,
    prompt_tokens=41_000,
    cached_tokens=21_100,
    completion_tokens=120,
    turns=[FINISHED, BROKEN],
)


def test_sessions_are_listed_with_what_they_reused() -> None:
    header, line = session_lines([SESSION])

    assert " ".join(header.split()) == (
        "SESSION NAME PROJECT MODEL LAST TURN (UTC) TURNS BROKEN PROMPT REUSED OUT"
    )
    assert " ".join(line.split()) == "a1 agent red demo 2026-11-30 05:00 2 1 41,000 51.5% 120"


def test_turns_are_listed_with_where_they_broke() -> None:
    """An unfinished one has no times."""
    _, finished, broken = turn_lines([SESSION])

    assert " ".join(finished.split()) == (
        "req_1 2026-11-30 05:00:05 tool_calls 20,000 95.0% 0.25 s 120 40.2"
    )
    assert " ".join(broken.split()) == (
        "req_2 2026-11-30 05:00:05 caller_cancelled tools[3] 2,100 18,000 21,000 10.0% 0"
    )


def test_a_field_that_is_not_known_is_said_so() -> None:
    turn = pb.SessionTurn(usage=Usage(divergence=CacheDivergence(token_index=7)))

    assert "not known" in turn_lines([pb.Session(turns=[turn])])[1]
