"""Every server is asked for the same."""

from dataclasses import fields

from bench.workload import SAMPLINGS, Workload
from openai_wire.requests.sampling import SamplingFields


def a_workload(**changes: int) -> Workload:
    """Three requests of eight tokens."""
    numbers = {"requests": 3, "concurrency": 1, "prompt_tokens": 8, "output_tokens": 4}
    return Workload(**numbers | changes, sampling=SAMPLINGS["greedy"])


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
