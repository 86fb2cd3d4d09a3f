"""Division of the prompt tokens of a step."""

import pytest

from inference_svc.engine.scheduler.policy import (
    MIN_CHUNK,
    PendingPrompt,
    Policy,
    fair_chunks,
    prefill_budget,
    priority_chunks,
)

LONG = PendingPrompt(1000, 1)


def balanced(prompts: list[PendingPrompt], *, fitting: int = 0, num_decoding: int = 14) -> int:
    """The budget of `BALANCED` if `fitting` prompt tokens keep the target time."""
    return prefill_budget(
        Policy.BALANCED,
        prompts,
        available=2000,
        cap=512,
        fitting=fitting,
        num_decoding=num_decoding,
    )


@pytest.mark.parametrize(
    ("policy", "fitting", "budget"),
    [
        (Policy.LATENCY_FIRST, 100, 100),
        (Policy.LATENCY_FIRST, 0, MIN_CHUNK),
        (Policy.LATENCY_FIRST, 9999, 512),
        (Policy.LATENCY_FIRST, None, 512),
        (Policy.BALANCED, 200, 200),
        (Policy.BALANCED, 0, 128),
        (Policy.BALANCED, None, 512),
        (Policy.THROUGHPUT_FIRST, 100, 2000),
        (Policy.THROUGHPUT_FIRST, None, 2000),
    ],
)
def test_each_policy_treats_the_target_time_differently(
    policy: Policy, fitting: int | None, budget: int
) -> None:
    """Keep the target, keep it unless chunks would be below the floor, or ignore it."""
    result = prefill_budget(
        policy, [LONG], available=2000, cap=512, fitting=fitting, num_decoding=8
    )
    assert result == budget


@pytest.mark.parametrize(
    ("num_decoding", "num_prompts", "budget"),
    [(15, 1, 128), (8, 8, 128), (8, 12, 192), (1, 15, 384)],
)
def test_balanced_chunks_grow_with_the_prompts_per_decoding_row(
    num_decoding: int, num_prompts: int, budget: int
) -> None:
    """Each step also computes the decoding rows, so fewer and larger chunks cost less."""
    assert balanced([LONG] * num_prompts, num_decoding=num_decoding) == budget


def test_the_balanced_budget_fits_two_short_prompts() -> None:
    """If each fits into the minimum budget, but not both."""
    short, shorter = PendingPrompt(128, 1, ratio=2.0), PendingPrompt(100, 1, ratio=2.0)
    assert balanced([short] * 5) == 256
    assert balanced([short, shorter]) == 256
    assert balanced([short]) == 128
    assert balanced([PendingPrompt(16, 1), PendingPrompt(16, 1)]) == 128
    assert balanced([PendingPrompt(161, 1), short]) == 128
    assert balanced([PendingPrompt(1000, 1, ratio=3.0), short, short]) == 128
    assert balanced([PendingPrompt(1000, 1, ratio=1.0), short, short]) == 256
    assert balanced([PendingPrompt(1000, 3), short, short]) == 128
    assert balanced([short] * 5, fitting=300) == 300
    assert fair_chunks([shorter, short, short, short], 256) == [100, 128, 0, 0]
    assert (
        prefill_budget(
            Policy.LATENCY_FIRST, [short] * 5, available=2000, cap=512, fitting=0, num_decoding=8
        )
        == MIN_CHUNK
    )


def test_the_balanced_budget_leaves_no_short_remainder() -> None:
    """Alone, in a pair, and as the rest of a long prompt."""
    longer, longest = PendingPrompt(129, 1, ratio=2.0), PendingPrompt(160, 1, ratio=2.0)
    assert balanced([longest]) == 160
    assert balanced([PendingPrompt(161, 1)]) == 128
    assert balanced([longer, PendingPrompt(20, 1)]) == 258
    assert balanced([longer, longest, LONG]) == 320
    assert balanced([longest, PendingPrompt(161, 1)]) == 160
    assert balanced([PendingPrompt(161, 1, ratio=3.0), longer]) == 128
    assert balanced([longest], fitting=300) == 300
    assert fair_chunks([PendingPrompt(129, 1)], 129) == [129]
    assert fair_chunks([PendingPrompt(160, 1, ratio=2.0), LONG], 160) == [160, 0]
    assert fair_chunks([longest, longer, PendingPrompt(129, 1)], 320) == [160, 129, 0]
    assert fair_chunks([PendingPrompt(161, 1)], 160) == [128]


@pytest.mark.parametrize("policy", Policy)
def test_decoding_rows_reduce_the_prompt_budget(policy: Policy) -> None:
    """Their tokens count towards the batch limit."""
    args = {"available": 4, "cap": 512, "fitting": 100, "num_decoding": 8}
    assert prefill_budget(policy, [LONG] * 8, **args) == 4


def test_high_priority_prompts_come_first() -> None:
    """Lower priorities get tokens only beside a prompt that takes more than a step."""
    long, short = PendingPrompt(1000, 3), PendingPrompt(30, 3)
    assert priority_chunks([PendingPrompt(1000, 1), short], 160) == [0, 30]
    assert priority_chunks([PendingPrompt(1000, 1), short], 30) == [0, 30]
    assert priority_chunks([PendingPrompt(1000, 1), short], 29) == [3, 26]
    assert priority_chunks([PendingPrompt(1000, 1), long, PendingPrompt(1000, 1)], 160) == [
        20,
        128,
        0,
    ]
    assert priority_chunks([long, short, PendingPrompt(4, 1)], 160) == [126, 30, 4]
    assert priority_chunks([PendingPrompt(1000, 1)], 160) == [128]


def test_low_priority_prompts_are_not_starved() -> None:
    """After four skipped steps they get tokens beside short high-priority prompts, too."""
    short = PendingPrompt(30, 3)
    assert priority_chunks([PendingPrompt(1000, 1, 3), short], 160) == [0, 30]
    assert priority_chunks([PendingPrompt(1000, 1, 4), short], 160) == [20, 30]


def test_turns_of_a_priority_class_do_not_depend_on_its_size() -> None:
    """Most short urgent prompts are computed alone in a step."""
    skipped_steps, turns = [0] * 10, []
    for step in range(50):
        waiting = [PendingPrompt(1000, 1, steps) for steps in skipped_steps]
        chunks = priority_chunks([PendingPrompt(30, 3), *waiting], 160)[1:]
        turns += [(step, i, chunk) for i, chunk in enumerate(chunks) if chunk]
        skipped_steps = [0 if any(chunks) else 1 + i for i in skipped_steps]

    assert turns == [(5 * i + 4, 0, 20) for i in range(10)]


@pytest.mark.parametrize("steps", [1, 2, 16])
@pytest.mark.parametrize("budget", [1, 4, 16, 128])
def test_small_budgets_starve_no_priority_class(budget: int, steps: int) -> None:
    """A share below one token is rounded up after several skipped steps."""
    skipped_steps, computed = [0, 0, 0], [0, 0, 0]
    for _ in range(40):
        prompts = [PendingPrompt(1000, 3 - i, waited) for i, waited in enumerate(skipped_steps)]
        chunks = priority_chunks(prompts, budget, steps=steps)
        assert sum(chunks) <= budget
        skipped_steps = [
            0 if chunk else 1 + i for chunk, i in zip(chunks, skipped_steps, strict=True)
        ]
        computed = [chunk + i for chunk, i in zip(chunks, computed, strict=True)]

    assert all(computed)
    assert computed[0] == max(computed)


def test_long_prompts_are_computed_by_response_ratio() -> None:
    """In whole blocks; the next prompt gets what a completed one leaves."""
    long = [
        PendingPrompt(1000, 1, ratio=1.0),
        PendingPrompt(1000, 1, ratio=3.0),
        PendingPrompt(1000, 1, ratio=2.0),
    ]
    assert fair_chunks(long, 200) == [0, 192, 0]
    assert fair_chunks(long, 512) == [0, 512, 0]
    assert fair_chunks([*long, PendingPrompt(300, 1, ratio=4.0)], 512) == [0, 192, 0, 300]
    assert fair_chunks([*long, PendingPrompt(300, 1, ratio=4.0)], 420) == [0, 0, 0, 300]
    assert fair_chunks([*long, PendingPrompt(300, 1, ratio=1.5)], 512) == [0, 512, 0, 0]


def test_equal_prompts_are_completed_one_after_the_other() -> None:
    """Otherwise all of their first tokens would come at the end."""
    assert fair_chunks([PendingPrompt(128, 1)] * 6, 300) == [128, 128, 0, 0, 0, 0]
    assert fair_chunks([PendingPrompt(128, 1)] * 6, 384) == [128, 128, 0, 0, 0, 0]
    assert fair_chunks([PendingPrompt(74, 1)] * 7, 300) == [74, 74, 74, 74, 0, 0, 0]
    assert fair_chunks([PendingPrompt(64, 1)] * 9, 512) == [64, 64, 64, 64, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("budget", "chunk"), [(63, 63), (127, 127), (128, 128), (129, 128), (191, 128), (192, 192)]
)
def test_a_part_of_a_prompt_has_whole_blocks(budget: int, chunk: int) -> None:
    """Less than two blocks are not cut."""
    assert fair_chunks([LONG], budget) == [chunk]


@pytest.mark.parametrize(
    ("tokens", "budget", "chunks"),
    [
        ([70] * 5, 280, [70, 70, 70, 70, 0]),
        ([70] * 5, 279, [70, 70, 0, 0, 0]),
        ([70] * 9, 560, [70] * 4 + [0] * 5),
        ([100, 100, 101], 200, [100, 100, 0]),
        ([100] * 3, 199, [100, 0, 0]),
        ([100, 101, 101], 200, [100, 0, 0]),
    ],
)
def test_two_or_four_prompts_share_a_step_if_all_of_them_end(
    tokens: list[int], budget: int, chunks: list[int]
) -> None:
    """Each gets an equal part of the budget, which must hold the longest."""
    assert fair_chunks([PendingPrompt(count, 1) for count in tokens], budget) == chunks


def test_tiny_prompts_are_computed_together() -> None:
    """Also if there are more prompts than tokens."""
    assert fair_chunks([PendingPrompt(1, 1)] * 200, 128) == [1] * 128 + [0] * 72


def test_a_short_prompt_is_completed_and_others_get_the_rest() -> None:
    """It needs less than an equal share; no budget is wasted."""
    long = PendingPrompt(1000, 1, skipped_steps=3)
    assert fair_chunks([long, PendingPrompt(10, 1), long], 100) == [90, 10, 0]
    assert fair_chunks([PendingPrompt(10, 1), PendingPrompt(20, 1)], 100) == [10, 20]


@pytest.mark.parametrize(("num_long", "short"), [(4, 60), (8, 40), (15, 30)])
def test_a_short_prompt_does_not_wait_if_steps_are_small(num_long: int, short: int) -> None:
    """Short is relative to two steps, as a step is half of the cap."""
    prompts = [PendingPrompt(1500, 0, skipped_steps=9)] * num_long + [PendingPrompt(short, 0)]

    assert fair_chunks(prompts, 256, steps=2)[-1] == short
    assert fair_chunks(prompts, 512)[-1] == short


def test_low_priorities_get_a_block_in_every_second_small_step() -> None:
    """An eighth of the cap, in a row of whole blocks."""
    just_served, waiting = PendingPrompt(1500, 0), PendingPrompt(1500, 0, skipped_steps=1)

    assert priority_chunks([PendingPrompt(1500, 1), just_served], 256, steps=2) == [256, 0]
    assert priority_chunks([PendingPrompt(1500, 1), waiting], 256, steps=2) == [192, 64]
