"""How prompts share a step."""

from inference_svc.engine.budget import fair_chunks, prefill_budget


def test_prompts_alone_use_the_whole_batch() -> None:
    """Without decoding rows the cap does not apply."""
    assert prefill_budget(batch_tokens=2048, num_decoding=0, chunk_cap=256) == 2048


def test_the_cap_applies_beside_decoding_rows() -> None:
    """The time between tokens is bounded."""
    assert prefill_budget(batch_tokens=2048, num_decoding=3, chunk_cap=256) == 256


def test_decoding_rows_come_first() -> None:
    """What they take is not there for prompts."""
    assert prefill_budget(batch_tokens=64, num_decoding=60, chunk_cap=256) == 4


def test_prompts_get_equal_chunks() -> None:
    """Nobody's long prompt takes the step."""
    assert fair_chunks([1000, 1000], 100) == [50, 50]


def test_what_a_short_prompt_leaves_goes_to_the_others() -> None:
    """No budget is wasted."""
    assert fair_chunks([10, 1000, 1000], 100) == [10, 45, 45]


def test_a_tiny_budget_serves_the_first() -> None:
    """Order decides where there is less than a token each."""
    assert fair_chunks([5, 5, 5], 2) == [1, 1, 0]
