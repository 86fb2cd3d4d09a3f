"""The stand-ins of engines answer as the engines that were recorded did."""

import http.client
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.support.engine_exchanges import (
    EXCHANGES,
    PROMPT,
    Answer,
    Exchange,
    fits,
    recordings,
    send,
)
from tests.support.engine_features import find_features, recorded_features
from tests.support.engine_stand_in import EngineStandIn, Fault, run_engine

ANSWER = "The capital of France is Paris."
UNSHARED = {
    "slots idle",  # nobody reads it
    "slots after",
    "metrics",
    "stop",  # stop texts are never sent to an engine
    "overload",
    "closed",
    "no tokens",  # no request asks for none
    "bad schema",
    "priority",
    "out of range",
}


def _cases() -> Iterator[Any]:
    for kind, exchanges in EXCHANGES.items():
        for exchange in exchanges:
            if exchange.name not in UNSHARED:
                yield pytest.param(kind, exchange, id=f"{kind} {exchange.name}")


@pytest.mark.parametrize(("kind", "exchange"), list(_cases()))
def test_an_answer_has_the_recorded_status_and_shape(kind: str, exchange: Exchange) -> None:
    recorded = next(each for line, each in recordings(kind) if line["name"] == exchange.name)
    with run_engine(kind, ANSWER) as engine:
        engine.state.context_tokens = 1024
        engine.state.takes_grammars = kind == "vllm"
        answer = send(engine.url, exchange)

    assert answer.status == recorded.status
    assert answer.is_stream == recorded.is_stream
    assert fits(answer.shape, recorded.shape), (answer.shape, recorded.shape)


def test_tokens_come_in_as_many_events_as_recorded() -> None:
    """The first one alone, and then as many as were asked for together."""
    (exchange,) = (each for each in EXCHANGES["vllm"] if each.name == "interval")
    recorded = next(each for line, each in recordings("vllm") if line["name"] == "interval")
    with run_engine("vllm", ANSWER) as engine:
        found = send(engine.url, exchange)

    assert _token_events(found) == _token_events(recorded)
    assert [len(each) for each in _token_events(found)] == [1, 4, 4]


def _token_events(answer: Answer) -> list[list[int]]:
    return [each["choices"][0]["token_ids"] for each in answer.events if each != "[DONE]"]


@pytest.mark.parametrize("kind", recorded_features())
def test_the_probe_finds_what_it_found_at_the_engine(kind: str) -> None:
    with run_engine(kind) as engine:
        engine.state.takes_grammars = kind != "llama_server"
        found = find_features(engine.url)

    assert found == recorded_features()[kind]


def _ask(engine: EngineStandIn, after: Sequence[int] = ()) -> Answer:
    params = {"max_new_tokens": 6}
    body = {"input_ids": [*PROMPT, *after], "stream": True, "sampling_params": params}
    return send(engine.url, Exchange("", "/generate", body))


def _tokens(answer: Answer) -> list[int]:
    tokens: list[int] = answer.events[-2]["output_ids"]
    return tokens


def test_another_engine_goes_on_with_the_tokens_of_the_first_one() -> None:
    with run_engine("sglang", ANSWER) as first:
        second = EngineStandIn("sglang", first.state.vocabulary, first.script)
        whole = _tokens(_ask(first))
        rest = _tokens(_ask(second, after=whole[:3]))
        second.close()

    assert len(whole) == len(rest) == 6
    assert rest[:3] == whole[3:]


def test_faults_come_to_order_and_pass() -> None:
    """A refusal, one event with an error, one cut, a token too many, one that does not exist."""
    with run_engine("sglang", ANSWER) as engine:
        whole = _tokens(_ask(engine))
        engine.faults = [
            Fault("status", times=1, status=429, headers={"Retry-After": "7"}),
            Fault("error", after=2, times=1),
            Fault("cut", after=2, times=1),
            Fault("more", times=1),
            Fault("outside", after=1, times=1),
        ]
        refused = _ask(engine)
        error = _ask(engine).events[-1]
        with pytest.raises(http.client.IncompleteRead):
            _ask(engine)
        longer = _tokens(_ask(engine))
        outside = _tokens(_ask(engine))
        again = _tokens(_ask(engine))

    assert (refused.status, refused.headers["retry-after"]) == (429, "7")
    assert error["error"]["code"] == 503
    assert len(longer) == len(whole) + 3
    assert outside[1] >= engine.state.vocabulary.size
    assert again == whole


def test_a_silent_engine_sees_that_its_client_leaves() -> None:
    with run_engine("sglang", ANSWER) as engine:
        engine.faults = [Fault("silence", after=2)]
        params = {"max_new_tokens": 8}
        body = {"input_ids": PROMPT, "stream": True, "sampling_params": params}
        answer = send(engine.url, Exchange("", "/generate", body, closes_after=2))
        engine.wait_until(lambda: engine.num_closed == 1)

    assert len(answer.events) == 2
    assert engine.most_running == 1


def test_a_stopped_engine_comes_back_at_its_url() -> None:
    with run_engine("sglang", ANSWER) as engine:
        ready = Exchange("", "/ready")
        engine.stop()
        with pytest.raises(ConnectionRefusedError):
            send(engine.url, ready)
        engine.start()
        assert send(engine.url, ready).status == 200
