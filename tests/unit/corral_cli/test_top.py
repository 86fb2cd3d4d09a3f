"""The reports of `corral top`: rates between two samples, and the screen."""

from dataclasses import replace

import pytest
from corral.inference.v1 import load_pb2, model_pb2
from corral.inference.v1.generation_pb2 import PRIORITY_BATCH, CacheDivergence

from corral_cli.top.report import Sample, lines, report

READY = model_pb2.Model(name="demo", state=model_pb2.Model.STATE_READY)
IDLE = model_pb2.Model(name="large", state=model_pb2.Model.STATE_AVAILABLE)


def make_sample(taken_s: float, prompt: int, cached: int, output: int) -> Sample:
    """A sample of one loaded model and one that is not, with a running and a waiting request."""
    load = load_pb2.Load(
        num_slots=4,
        num_running=1,
        queues=[load_pb2.QueueLoad(num_requests=1)],
        models=[
            load_pb2.ModelLoad(
                model="demo",
                num_slots=4,
                num_running=1,
                num_waiting=1,
                num_cells=2000,
                num_used_cells=500,
                prompt_tokens_total=prompt,
                cached_tokens_total=cached,
                completion_tokens_total=output,
            )
        ],
    )
    load.queues[0].oldest.FromMilliseconds(2500)
    request = load_pb2.LiveRequest(
        request_id="req_1",
        project="blue",
        model="demo",
        priority=PRIORITY_BATCH,
        prompt_tokens=1200,
        cached_tokens=96,
        divergence=CacheDivergence(token_index=96, lost_tokens=900, field="tools[3]"),
        choices=[
            load_pb2.LiveChoice(state=load_pb2.LiveRequest.STATE_DECODE, completion_tokens=30),
            load_pb2.LiveChoice(state=load_pb2.LiveRequest.STATE_QUEUED),
        ],
    )
    request.age.FromSeconds(3)
    return Sample(taken_s, load, [READY, IDLE], [request])


def test_rates_are_per_second_since_the_sample_before() -> None:
    """Of each loaded model; others have a state only."""
    found = report(make_sample(10.0, 100, 50, 10), make_sample(12.0, 300, 650, 110))

    demo, large = found["models"]
    assert (demo["output_tokens_per_s"], demo["prompt_tokens_per_s"]) == (50.0, 100.0)
    assert demo["reused_tokens_per_s"] == 300.0
    assert (demo["kv_used_tokens"], demo["kv_tokens"]) == (500, 2000)
    assert large == {"model": "large", "state": "available"}
    assert (found["running"], found["waiting"], found["oldest_wait_s"]) == (1, 1, 2.5)


def test_a_model_that_was_loaded_again_has_no_negative_rate() -> None:
    """Its engine counts from 0; one that the sample before lacks has no rate yet."""
    again = report(make_sample(10.0, 100, 50, 10), make_sample(11.0, 0, 0, 0))
    before = make_sample(10.0, 1, 1, 1)
    new = report(replace(before, load=load_pb2.Load()), make_sample(11.0, 100, 50, 10))

    assert again["models"][0]["output_tokens_per_s"] == 0
    assert new["models"][0]["output_tokens_per_s"] == 0


def test_the_screen_is_a_line_a_model_and_a_line_a_request() -> None:
    """Numbers are aligned to the right."""
    found = report(make_sample(10.0, 100, 50, 10), make_sample(12.0, 300, 650, 110))
    head, *rest = lines(found | {"time": "2026-11-26T09:14:03.000+00:00"}, "host:50051")

    assert head == ("host:50051  09:14:03 UTC  running 1/4  waiting 1 (oldest 2.5 s)  embeddings 0")
    assert rest == [
        "",
        "MODEL  STATE      RUNNING  WAITING            KV  OUT/S  PROMPT/S  REUSED",
        "demo   ready          1/4        1  25% of 2,000   50.0     100.0     75%",
        "large  available",
        "",
        "REQUEST  PROJECT  MODEL  PRIORITY  STATE   DIVERGES IN    AGE  PROMPT  REUSED  OUT",
        "req_1    blue     demo   batch     decode  tools[3]     3.0 s   1,200      96   30",
    ]


@pytest.mark.parametrize(
    ("divergence", "values", "shown"),
    [
        (None, None, ""),
        (CacheDivergence(token_index=1096, lost_tokens=300), (1096, 300, ""), "token 1,096"),
    ],
)
def test_a_request_says_where_its_prompt_diverges(
    divergence: CacheDivergence | None, values: tuple[int, int, str] | None, shown: str
) -> None:
    """By its token where the field is not known; a request that waits has not started yet."""
    sample = make_sample(2.0, 0, 0, 0)
    request = load_pb2.LiveRequest(request_id="req_2", divergence=divergence)
    found = report(sample, replace(sample, taken_s=3.0, requests=[request]))
    (written,) = found["requests"]

    assert written["cached_tokens"] is None
    assert (written["divergence"] and tuple(written["divergence"].values())) == values
    assert shown in lines(found, "host")[-1]


def test_only_the_oldest_requests_are_listed() -> None:
    """With the number of the others."""
    sample = make_sample(2.0, 0, 0, 0)
    many = replace(sample, requests=[*sample.requests] * 23)
    shown = lines(report(make_sample(1.0, 0, 0, 0), many), "host:50051")

    assert sum(line.startswith("req_1") for line in shown) == 20
    assert shown[-1] == "and 3 more"


def test_each_replica_has_a_row_with_what_is_wrong_with_it() -> None:
    sample = make_sample(1.0, 0, 0, 0)
    load = load_pb2.Load(
        num_slots=4, num_running=2, num_cells=100, num_used_cells=50, draining=True
    )
    replicas = [
        load_pb2.ReplicaLoad(replica="10.0.0.1:1", load=load),
        load_pb2.ReplicaLoad(replica="10.0.0.2:1", problem="connection refused"),
    ]
    found = report(sample, replace(sample, taken_s=2.0, replicas=replicas))
    screen = [" ".join(line.split()) for line in lines(found, "several")]

    assert "10.0.0.1:1 draining 2/4 0 50% of 100" in screen
    assert "10.0.0.2:1 connection refused 0/0 0" in screen
    assert [each["problem"] for each in found["replicas"]] == ["", "connection refused"]


def test_a_prompt_that_is_computed_says_how_far() -> None:
    sample = make_sample(2.0, 0, 0, 0)
    choice = load_pb2.LiveChoice(state=load_pb2.LiveRequest.STATE_PREFILL, computed_tokens=900)
    request = load_pb2.LiveRequest(prompt_tokens=1200, choices=[choice])
    found = report(sample, replace(sample, taken_s=3.0, requests=[request]))

    assert found["requests"][0]["computed_tokens"] == 900
    assert "prefill 75%" in lines(found, "host")[-1]
