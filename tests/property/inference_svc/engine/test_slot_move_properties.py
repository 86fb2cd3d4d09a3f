"""Sequences that move between slots under random arrivals, pauses, preemptions, adapters, drafts
and failed decodes."""

from pathlib import Path
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.kv_cache.copies import CopyCosts
from inference_svc.engine.request import NO_ADAPTERS, AdapterStack, AppliedAdapter
from tests.support.engine_plans import check_tokens, fail_joint_batches, run_plans
from tests.support.examples import examples
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, make_request

SLOTS = 6
# A filler row costs less than a separate pass, but is not free.
TIMES = {1: 10.0, SLOTS: 30.0}
STACKS: list[AdapterStack] = [NO_ADAPTERS, (AppliedAdapter("a", 1.0),)]
SHARED = [100 + i % 7 for i in range(90)]

_arrivals = st.fixed_dictionaries(
    {
        "cut": st.sampled_from([0, 0, 20, 70, 90]),
        "own": st.lists(st.integers(97, 99), min_size=1, max_size=4),
        "max_tokens": st.sampled_from([1, 3, 8, 40, 60]),
        "max_draft": st.sampled_from([0, 5]),
        "priority": st.sampled_from([1, 2, 3]),
        "stack": st.sampled_from([0, 0, 0, 1]),
        "keep": st.booleans(),
        "at": st.integers(0, 6),
        "cancel_after": st.one_of(st.none(), st.none(), st.integers(0, 12)),
        "pause_after": st.one_of(st.none(), st.none(), st.integers(0, 5)),
    }
)


def _bench(*, can_trim: bool = True, window: int | None = None, **options: Any) -> EngineBench:
    limits = NativeLimits(48, SLOTS + 10, SLOTS, 160, VOCABULARY_SIZE)
    fails = options.pop("fails", lambda _: 0)
    backend = FakeBackend(
        limits, end_after=100, can_trim=can_trim, repeats=True, fails=fails, window=window
    )
    bench = EngineBench(backend, chunk_cap=32, **options)
    bench.engine.adapters.load("a", Path("a.gguf"))
    return bench


def _submit(bench: EngineBench, i: int, plan: dict[str, Any]) -> None:
    bench.submit(
        make_request(
            i,
            prompt=[*SHARED[: plan["cut"]], *plan["own"]],
            max_tokens=plan["max_tokens"],
            max_draft=plan["max_draft"],
            priority=plan["priority"],
            adapters=STACKS[plan["stack"]],
            cache_key=b"stack %d" % plan["stack"],
            keep=plan["keep"],
            request_id=f"r{i}",
        )
    )


def _tokens_alone(i: int, plan: dict[str, Any]) -> list[int]:
    bench = _bench()
    _submit(bench, i, plan)
    bench.run()
    return bench.tokens(i)


@settings(max_examples=examples(50), deadline=None)
@given(
    plans=st.lists(_arrivals, min_size=3, max_size=12),
    failing=st.sets(st.integers(0, 60), max_size=6),
    code=st.sampled_from([1, -1, -2]),
    refused=st.sets(st.integers(0, 40), max_size=8),
    can_trim=st.booleans(),
    window=st.sampled_from([None, None, 8, 40]),
    saved_bytes=st.sampled_from([0, 1200, 10**6]),
    stream_s=st.sampled_from([0.0, 20.0, 1e9]),
)
def test_moves_change_no_tokens(
    plans: list[dict[str, Any]],
    failing: set[int],
    code: int,
    refused: set[int],
    can_trim: bool,
    window: int | None,
    saved_bytes: int,
    stream_s: float,
) -> None:
    """Every sequence emits the tokens that it emits alone."""
    bench = _bench(
        can_trim=can_trim,
        window=window,
        fails=fail_joint_batches(failing if can_trim else (), code),
        step_times=TIMES,
        saved_bytes=saved_bytes,
        copy_costs=CopyCosts(stream_s, 0.0, 0.01),
    )
    run_plans(bench, plans, _submit, refused_states=refused)
    event(f"moves: {min(bench.engine._runner.planner.compactor.num_moves, 5)}")
    check_tokens(bench, plans, _tokens_alone)
