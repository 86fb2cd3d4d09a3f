"""Every server is asked for the same."""

from dataclasses import fields, replace
from typing import Any

from bench.workload import SAMPLINGS, Workload
from openai_wire.chat.sampling import SamplingFields


def a_workload(**changes: Any) -> Workload:
    """Three requests of eight tokens."""
    return replace(Workload(3, 1, 8, 4, SAMPLINGS["greedy"]), **changes)


def test_prompts_differ_within_a_load_and_repeat_with_the_seed() -> None:
    """No cache helps anybody, and both servers get the same prompts."""
    prompts = a_workload().text_prompts()

    assert len(set(prompts)) == 3
    assert prompts == a_workload().text_prompts()
    assert prompts != a_workload(seed=1).text_prompts()
    assert {len(prompt.split()) for prompt in prompts} == {8}


def test_a_shared_prefix_begins_every_prompt() -> None:
    """It comes on top of each prompt's own tokens."""
    prompts = a_workload(shared_prefix_tokens=5).token_prompts()

    assert len({tuple(ids[:5]) for ids in prompts}) == 1
    assert {len(ids) for ids in prompts} == {13}


def test_the_gateway_knows_every_sampling_field_that_is_sent() -> None:
    """A field it ignored would give it less to do than its peer has."""
    sent = SAMPLINGS["sampled"].to_json(seed=1)

    assert sent.keys() <= SamplingFields.model_fields.keys() | {"seed"}


def test_the_same_settings_travel_over_grpc() -> None:
    """Both paths of Corral are measured under one load."""
    sampling = SAMPLINGS["sampled"]
    message = sampling.to_proto(seed=7)

    for name in (field.name for field in fields(sampling) if field.name != "name"):
        assert round(getattr(message, name), 6) == getattr(sampling, name)
    assert message.seed == 7


def test_every_second_request_can_be_brief() -> None:
    """It leaves an idle slot beside each that goes on."""
    workload = Workload(4, 4, 8, 16, SAMPLINGS["greedy"], brief_tokens=1, pinned=True)

    assert workload.outputs == [16, 1, 16, 1]
    assert [workload.to_json("m", n)["max_tokens"] for n in range(4)] == workload.outputs
    assert [workload.to_json("m", n)["id_slot"] for n in range(4)] == [0, 1, 2, 3]
    assert [workload.to_proto(n).stopping.max_tokens for n in range(4)] == workload.outputs


def test_each_round_has_prompts_of_its_own() -> None:
    """What a server kept of the last round must not help it."""
    workload = a_workload(shared_prefix_tokens=8)

    prompts = [prompt for n in range(3) for prompt in workload.in_round(n).text_prompts()]

    assert len({prompt[:30] for prompt in prompts}) == 3


def test_what_llama_server_alone_understands_is_sent_only_where_asked_for() -> None:
    """The gateway refuses fields that it would ignore."""
    body = a_workload().to_json("m")

    assert {"id_slot", "timings_per_token", "cache_prompt"}.isdisjoint(body)
