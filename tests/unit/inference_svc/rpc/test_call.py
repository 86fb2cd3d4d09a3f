"""What a call of Generate or Chat reserves, and that it releases it."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1 import limit_service_pb2 as limit_pb
from corral.inference.v1 import generation_pb2
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.limits.limiter import Need
from inference_svc.llama.vocabulary import Vocabulary
from svc_kit.errors import InvalidField, RateLimited
from tests.support.generations import PICTURE_TOKENS, SLOT_TOKENS, Generations, StepFailed
from tests.support.operators import make_limit
from tests.unit.inference_svc.limits.test_limiter import Harness

OPTIONS: dict[str, Any] = {
    "constraint": {"regex": "a+"},
    "speculation": {"prediction": "aa"},
    "sampling": {"seed": 1},
    "resume": [{"output_token_ids": [5]}],
    "thinking_budget_tokens": 3,
}
"""Options that take steps of their own."""


def chat(**options: Any) -> pb.ChatRequest:
    parts: Any = [{"image": {"data": b"picture"}}, {"text": "What is this?"}]
    conversation: Any = {"messages": [{"role": 3, "parts": parts}]}
    return pb.ChatRequest(
        conversation=conversation, options=generation_pb2.GenerationOptions(**options)
    )


def generate(**options: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(text="Hi", options=generation_pb2.GenerationOptions(**options))


CHAT_STEPS = (
    *("check_room", "render", "tokenize"),
    *("compile_grammar", "tokenize", "admit"),  # the check before pictures are encoded
    *("encode", "tokenize", "admit", "submit"),
)
GENERATE_STEPS = ("check_room", "tokenize", "compile_grammar", "tokenize", "admit", "submit")


@pytest.mark.parametrize(
    ("request_", "steps"), [(chat(**OPTIONS), CHAT_STEPS), (generate(**OPTIONS), GENERATE_STEPS)]
)
async def test_a_call_that_fails_at_any_step_releases_what_it_holds(
    vocabulary: Vocabulary,
    tmp_path: Path,
    request_: pb.ChatRequest | pb.GenerateRequest,
    steps: tuple[str, ...],
) -> None:
    """Its use of the model, its reservations, and the vectors of its pictures; so does one that
    ends. Whatever may refuse it comes before the queue."""
    limits = Harness(tmp_path, make_limit("slots", "CONCURRENT_REQUESTS", 99, ""))
    await limits.limiter.renew()
    whole = await Generations(vocabulary, limits.limiter.admit).start()
    await whole.run(request_)
    taken = whole.steps.names
    assert tuple(name for name, _ in groupby(each for each in taken if each != "piece")) == steps
    assert taken[-1] == "submit"
    assert whole.held() == (0, 0, 0)

    for number, name in enumerate(taken):
        generations = await Generations(vocabulary, limits.limiter.admit).start()
        generations.steps.names.clear()
        generations.steps.failing = number
        with pytest.raises(StepFailed, match=name):
            await generations.run(request_)
        assert (number, generations.held()) == (number, (0, 0, 0))


@pytest.mark.parametrize("make", [chat, generate])
async def test_more_log_probabilities_than_tokens_hold_back_are_refused(
    vocabulary: Vocabulary, tmp_path: Path, make: Callable[..., Any]
) -> None:
    """A raw continuation holds none back."""
    limits = Harness(tmp_path, make_limit("slots", "CONCURRENT_REQUESTS", 99, ""))
    await limits.limiter.renew()
    generations = await Generations(vocabulary, limits.limiter.admit).start()
    resume = [{"output_token_ids": [5], "held_logprobs": [{}, {}]}]
    with pytest.raises(InvalidField, match="held_logprobs"):
        await generations.run(make(sampling={"seed": 1}, output={"top_logprobs": 0}, resume=resume))

    assert generations.held() == (0, 0, 0)


async def limited(
    vocabulary: Vocabulary, folder: Path, amount: int, **fields: Any
) -> tuple[Generations, Harness]:
    harness = Harness(folder, make_limit("tokens", "TOKENS", amount, **fields))
    await harness.limiter.renew()
    return await Generations(vocabulary, harness.limiter.admit).start(), harness


@pytest.mark.parametrize(
    ("amount", "num_encoded", "is_admitted"), [(900, 1, True), (600, 1, False), (10, 0, False)]
)
async def test_a_request_is_checked_for_its_text_alone_before_pictures_are_encoded(
    vocabulary: Vocabulary, tmp_path: Path, amount: int, num_encoded: int, is_admitted: bool
) -> None:
    """Beside the picture is less space for the output of the choices than the check could know:
    one that fits a limit with its picture is not refused without it."""
    generations, _ = await limited(vocabulary, tmp_path, amount)
    with nullcontext() if is_admitted else pytest.raises(RateLimited):
        await generations.run(chat(num_choices=4))
    assert len(generations.engine.submitted) == 4 * is_admitted
    assert generations.encoder.num_encoded == num_encoded
    assert generations.held() == (0, 0, 0)

    check, *admitted = generations.admitted
    text_tokens = check[0].prompt_tokens
    assert check == (Need(text_tokens), True)
    if num_encoded:
        prompt_tokens = text_tokens - 1 + PICTURE_TOKENS
        assert admitted == [(Need(prompt_tokens, SLOT_TOKENS - prompt_tokens, 4), False)]


async def test_a_limit_in_shadow_mode_counts_a_request_with_a_picture_once(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """Although it is checked twice."""
    mode = limit_pb.Limit.MODE_SHADOW
    generations, harness = await limited(vocabulary, tmp_path, 10, mode=mode)
    await generations.run(chat())

    assert harness.exceeded("tokens", "shadow") == 1
