"""What llama-server's routes tell about a model."""

import pytest
from corral.inference.v1 import load_pb2, model_pb2

from dialects.llama_server.objects import slot_list

MODEL = model_pb2.Model(
    name="m", resolved_limits=model_pb2.ModelLimits(slots=3, context_tokens=512)
)


def request(number: int, project: str, model: str = "m") -> load_pb2.LiveRequest:
    choice = load_pb2.LiveChoice(slot=number, completion_tokens=2)
    return load_pb2.LiveRequest(
        request_id=f"req_{number}", project=project, model=model, choices=[choice], prompt_tokens=4
    )


def test_slots_of_other_projects_and_models_look_idle() -> None:
    """A caller learns nothing of their requests."""
    requests = [request(0, "mine"), request(1, "theirs"), request(2, "mine", "other")]
    slots = slot_list(MODEL, requests, "mine")

    assert [each["is_processing"] for each in slots] == [True, False, False]
    assert [each["id_task"] for each in slots] == ["req_0", None, None]
    assert slots[0]["next_token"] == [{"n_decoded": 2}]


@pytest.mark.parametrize(
    ("computed", "processed"),
    [pytest.param(700, 200, id="prefill"), pytest.param(None, 500, id="decode")],
)
def test_a_slot_says_how_much_of_its_prompt_is_computed(
    computed: int | None, processed: int
) -> None:
    """Without what was cached."""
    choice = load_pb2.LiveChoice(slot=0, computed_tokens=computed)
    running = load_pb2.LiveRequest(
        project="mine", model="m", choices=[choice], prompt_tokens=1000, cached_tokens=500
    )
    slot = slot_list(MODEL, [running], "mine")[0]

    assert slot["n_prompt_tokens_processed"] == processed
    assert (slot["n_prompt_tokens"], slot["n_prompt_tokens_cache"]) == (1000, 500)
