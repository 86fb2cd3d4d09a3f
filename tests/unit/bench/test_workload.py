"""The measured requests: every server gets the same ones."""

from dataclasses import fields, replace
from typing import Any

from bench.workload import SAMPLINGS, Workload
from dialects.shared.sampling import SamplingFields


def make_workload(**changes: Any) -> Workload:
    """Build a workload of three requests of eight tokens."""
    return replace(Workload(3, 1, 8, 4, SAMPLINGS["greedy"]), **changes)


def test_prompts_differ_within_a_load_and_repeat_with_the_seed() -> None:
    """No prompt cache helps, and all servers get the same prompts."""
    prompts = make_workload().text_prompts()

    assert len(set(prompts)) == 3
    assert prompts == make_workload().text_prompts()
    assert prompts != make_workload(seed=1).text_prompts()
    assert {len(prompt.split()) for prompt in prompts} == {8}


def test_every_prompt_starts_with_the_shared_prefix() -> None:
    """In addition to its own tokens."""
    prompts = make_workload(shared_prefix_tokens=5).token_prompts()

    assert len({tuple(ids[:5]) for ids in prompts}) == 1
    assert {len(ids) for ids in prompts} == {13}


def test_the_gateway_supports_every_sampling_field() -> None:
    """An ignored field would give it less work than its peer."""
    sent = SAMPLINGS["sampled"].to_json(seed=1)

    assert sent.keys() <= SamplingFields.model_fields.keys() | {"seed"}


def test_grpc_requests_have_the_same_sampling_fields() -> None:
    """Both protocols are measured under the same load."""
    sampling = SAMPLINGS["sampled"]
    message = sampling.to_proto(seed=7)

    for name in (field.name for field in fields(sampling) if field.name != "name"):
        assert round(getattr(message, name), 6) == getattr(sampling, name)
    assert message.seed == 7


def test_every_second_request_can_be_brief() -> None:
    """It leaves every second slot idle."""
    workload = Workload(4, 4, 8, 16, SAMPLINGS["greedy"], brief_tokens=1, pinned=True)

    assert workload.outputs == [16, 1, 16, 1]
    assert [workload.to_json("m", n)["max_tokens"] for n in range(4)] == workload.outputs
    assert [workload.to_json("m", n)["id_slot"] for n in range(4)] == [0, 1, 2, 3]
    assert [workload.to_proto(n).stopping.max_tokens for n in range(4)] == workload.outputs


def test_each_round_has_new_prompts() -> None:
    """Caches of the previous round do not help."""
    workload = make_workload(shared_prefix_tokens=8)

    prompts = [prompt for n in range(3) for prompt in workload.in_round(n).text_prompts()]

    assert len({prompt[:30] for prompt in prompts}) == 3


def test_fields_of_llama_server_are_sent_only_on_request() -> None:
    """The gateway refuses unknown fields."""
    body = make_workload().to_json("m")

    assert {"id_slot", "timings_per_token", "cache_prompt"}.isdisjoint(body)
