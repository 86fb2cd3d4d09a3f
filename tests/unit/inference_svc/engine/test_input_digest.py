"""The digest by which a replica knows that it would answer as another one."""

from array import array
from typing import Any

import pytest

from inference_svc.engine.request import AppliedAdapter
from inference_svc.engine.sampling_params import Sampling
from tests.support.sequences import make_request


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": [65, 66, -7]},
        {"source": array("i", [1])},
        {"sampling": Sampling(temperature=0.0, top_k=3)},
        {"adapters": (AppliedAdapter("d", 0.5),)},
    ],
    ids=["prompt", "source", "sampling", "adapters"],
)
def test_the_digest_changes_with_what_the_output_depends_on(change: dict[str, Any]) -> None:
    assert make_request(**change).input_digest != make_request().input_digest


@pytest.mark.parametrize(
    "change",
    [{"resumed": array("i", [1])}, {"seed": 2}, {"max_tokens": 3}, {"reuse": False}],
    ids=["resumed", "seed", "limit", "reuse"],
)
def test_the_digest_is_the_same_for_a_resumed_request(change: dict[str, Any]) -> None:
    """Whose seed and limit are those of the first attempt."""
    assert make_request(**change).input_digest == make_request().input_digest


def test_another_release_has_the_same_digest() -> None:
    """A changed one would end the streams that move during an upgrade."""
    sampling = Sampling(temperature=0.5, min_p=0.1)
    request = make_request(sampling=sampling, adapters=(AppliedAdapter("d", 0.5),))

    assert request.input_digest == "c7596ebc981fd06b173e81f3ad6144b4"


def test_a_chat_in_text_mode_has_no_digest() -> None:
    assert make_request(chat={}).input_digest == ""
