"""With what a request ends after faults of engines."""

import asyncio

from inference_svc.engine.sequence import Sequence
from inference_svc.upstream.endpoint import Endpoint
from inference_svc.upstream.faults import (
    MAX_OVERLOAD_S,
    AnswerInvalid,
    EngineFault,
    EngineLost,
    EngineOverloaded,
    RequestFailed,
)
from inference_svc.upstream.pieces import VocabularyPieces
from inference_svc.upstream.target import UpstreamTarget
from inference_svc.upstream.token_mode import TokenTurn
from inference_svc.upstream.upstream_turn import ServedModel
from inference_svc.upstream.verdict import judge
from inference_svc.upstream.vllm import Vllm
from svc_kit.errors import DecodeFailed, DomainError, EngineCrashed, UpstreamUnavailable
from tests.support.byte_engine import ByteVocabulary, byte_request

URL = "http://127.0.0.1:9"
BUSY = EngineOverloaded("busy", 7.0)


def verdicts(*faults: tuple[EngineFault, float]) -> list[DomainError | None]:
    """Of a request that meets faults at their times."""
    pieces = VocabularyPieces(ByteVocabulary())
    served = ServedModel("m", 512, False, False, lambda _: None, lambda _: None)
    sequence = Sequence(byte_request(request_id="r"), arrived_at=0.0)
    turn = TokenTurn(sequence, served, api=Vllm(), pieces=pieces)
    endpoint = Endpoint(UpstreamTarget("bytes", [URL]), URL, lambda _: asyncio.sleep(0))
    return [judge(turn, endpoint, fault, now, "bytes") for fault, now in faults]


def test_overload_ends_a_request_only_after_minutes() -> None:
    times = [100.0 + each for each in range(0, int(MAX_OVERLOAD_S), 10)]
    found = verdicts(*((BUSY, now) for now in times), (BUSY, 100.0 + MAX_OVERLOAD_S))
    assert found[:-1] == [None] * 60
    assert found[-1] == UpstreamUnavailable(service="bytes", retry_after=7.0)


def test_the_minutes_of_overload_begin_again_after_an_engine_took_the_request() -> None:
    assert verdicts((BUSY, 0.0), (EngineLost("x"), 500.0), (BUSY, 700.0)) == [None] * 3


def test_a_request_ends_at_the_second_error_and_the_third_loss() -> None:
    failed, lost, lie = RequestFailed("x"), EngineLost("x"), AnswerInvalid("x")
    assert verdicts((failed, 0.0), (failed, 1.0)) == [None, DecodeFailed(request_id="r")]
    assert verdicts((lost, 0.0), (failed, 1.0), (lost, 2.0), (lost, 3.0)) == [
        *([None] * 3),
        EngineCrashed(times=3),
    ]
    assert verdicts(*((lie, 0.0),) * 3)[-1] == DecodeFailed(request_id="r")
