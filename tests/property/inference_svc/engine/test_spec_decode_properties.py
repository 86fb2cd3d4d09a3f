"""Speculative decoding under random arrivals, options, cancellations and failed decodes."""

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.constraint import Constraint
from inference_svc.engine.events import Delta
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.spec_decode.draft_model import DraftModel
from tests.support.engine_plans import fail_joint_batches, run_plans
from tests.support.examples import examples
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.fake_draft_model import FakeDraftBackend, guess_of, make_draft_model
from tests.support.sequences import EngineBench, make_request

SLOTS = 3
SYSTEM = range(100, 136)

_constraints = st.one_of(
    st.none(),
    st.lists(st.sampled_from(["?", "??", "abc", "zz"]), min_size=1, max_size=12).map(
        lambda parts: Constraint("".join(parts) + "*", "c")
    ),
)
_requests = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(97, 99), min_size=1, max_size=30),
        "max_tokens": st.integers(0, 50),
        "max_draft": st.sampled_from([0, 1, 5, 31]),
        "seed": st.integers(0, 3),
        "stop": st.sampled_from([(), ("ab",), ("q", "xyz")]),
        "top_logprobs": st.sampled_from([None, 1]),
        "constraint": _constraints,
        "priority": st.integers(1, 3),
    }
)
_arrivals = st.fixed_dictionaries(
    {
        "request": _requests,
        "at": st.integers(0, 20),
        "cancel_after": st.one_of(st.none(), st.none(), st.integers(0, 15)),
        "pause_after": st.one_of(st.none(), st.integers(0, 5)),
    }
)


def _bench(*, spare: int, repeats: bool, cells: int | None = None, **options: Any) -> EngineBench:
    limits = NativeLimits(40, SLOTS + spare, SLOTS, 90, VOCABULARY_SIZE, cells=cells)
    fails = options.pop("fails", lambda _: 0)
    window = options.pop("window", None)
    backend = FakeBackend(limits, end_after=60, repeats=repeats, fails=fails, window=window)
    return EngineBench(backend, chunk_cap=8, **options)


def _draft_model(
    plans: list[dict[str, Any]],
    *,
    repeats: bool,
    wrong_after: int,
    failing: int,
    cells: int | None,
    window: int | None,
) -> DraftModel:
    """A draft model that is wrong about one in `wrong_after` tokens; call number `failing` fails,
    none if it is 0."""
    calls = itertools.count(1)
    limits = NativeLimits(24, SLOTS, SLOTS, 90, VOCABULARY_SIZE, cells=cells)
    backend = FakeDraftBackend(
        limits,
        guess_of(
            [make_request(i, **plan["request"]) for i, plan in enumerate(plans)],
            end_after=60,
            repeats=repeats,
            is_wrong=lambda length: length % wrong_after == 0,
        ),
        lambda _: -2 if next(calls) == failing else 0,
        window,
    )
    return make_draft_model(backend)


def _output(bench: EngineBench, i: int) -> Delta:
    """All deltas of a sequence, joined."""
    deltas = bench.deltas(i)
    return Delta(
        i,
        (bench.text(i),),
        tuple(bench.tokens(i)),
        tuple(logprob for delta in deltas for logprob in delta.logprobs),
    )


def _run_alone(request: SequenceRequest, *, repeats: bool) -> EngineBench:
    bench = _bench(spare=0, repeats=repeats)
    bench.submit(request)
    bench.run()
    return bench


def _check_outputs(bench: EngineBench, plans: list[dict[str, Any]], *, repeats: bool) -> None:
    """Run the plans: every sequence has the output and the end that it has alone without drafts, or
    a prefix of the output if it was cancelled."""
    run_plans(bench, plans, lambda bench, i, plan: bench.submit(make_request(i, **plan["request"])))
    for i, plan in enumerate(plans):
        reference = _run_alone(make_request(i, **plan["request"]), repeats=repeats)
        output, expected = _output(bench, i), _output(reference, i)
        if plan["cancel_after"] is None:
            assert output == expected
            assert bench.finished(i)[1:5] == reference.finished(i)[1:5]
        else:
            assert output.tokens == expected.tokens[: len(output.tokens)]


@settings(max_examples=examples(60), deadline=None)
@given(
    plans=st.lists(_arrivals, min_size=1, max_size=6),
    failing=st.sets(st.integers(0, 60), max_size=6),
    code=st.sampled_from([1, -1, -2]),
    repeats=st.booleans(),
    spare=st.sampled_from([1, 8, 32]),
    saved_bytes=st.sampled_from([0, 10**6]),
    window=st.sampled_from([None, None, 8]),
    token_times=st.sampled_from([{}, {1: 1.0, 4: 1.0, 32: 3.0}]),
)
def test_drafts_change_no_output(
    plans: list[dict[str, Any]],
    failing: set[int],
    code: int,
    repeats: bool,
    spare: int,
    saved_bytes: int,
    window: int | None,
    token_times: dict[int, float],
) -> None:
    """Those of prompt lookup, when decode calls fail, and sequences wait, end or are cancelled."""
    bench = _bench(
        spare=spare,
        repeats=repeats,
        fails=fail_joint_batches(failing, code),
        saved_bytes=saved_bytes,
        window=window,
        measured={1: 1.0},
        token_times=token_times,
    )
    _check_outputs(bench, plans, repeats=repeats)


@settings(max_examples=examples(100), deadline=None)
@given(
    plans=st.lists(_arrivals, min_size=1, max_size=6),
    failing=st.sets(st.integers(0, 60), max_size=3),
    repeats=st.booleans(),
    saved_bytes=st.sampled_from([0, 10**6]),
    cells=st.sampled_from([None, None, 120]),
    window=st.sampled_from([None, None, 8]),
    wrong_after=st.sampled_from([1, 2, 5, 1000]),
    failing_draft=st.integers(0, 40),
)
def test_drafts_of_a_model_change_no_output(
    plans: list[dict[str, Any]],
    failing: set[int],
    repeats: bool,
    saved_bytes: int,
    cells: int | None,
    window: int | None,
    wrong_after: int,
    failing_draft: int,
) -> None:
    """Whatever it drafts, also if it fails, and when sequences move, wait, end or are preempted."""
    model = _draft_model(
        plans,
        repeats=repeats,
        wrong_after=wrong_after,
        failing=failing_draft,
        cells=cells,
        window=window,
    )
    bench = _bench(
        spare=16,
        repeats=repeats,
        cells=cells,
        fails=fail_joint_batches(failing, 1),
        saved_bytes=saved_bytes,
        draft_model=model,
    )
    _check_outputs(bench, plans, repeats=repeats)


@settings(max_examples=examples(60), deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(97, 99), min_size=1, max_size=9), min_size=1, max_size=5),
    arrivals=st.lists(st.integers(0, 6), min_size=5, max_size=5),
    lengths=st.lists(st.integers(2, 30), min_size=5, max_size=5),
)
def test_a_draft_model_that_knows_the_output_is_never_wrong(
    prompts: list[list[int]], arrivals: list[int], lengths: list[int]
) -> None:
    """So its KV cache has the tokens of the sequence, after any rejected ones of others, moves and
    copies: with any other tokens it would be wrong."""
    requests = [
        make_request(i, prompt=[*SYSTEM, 66 + i, *prompt], max_tokens=length, ignore_eos=True)
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=False))
    ]
    limits = NativeLimits(24, SLOTS, SLOTS, 90, VOCABULARY_SIZE)
    bench = _bench(
        spare=16,
        repeats=False,
        draft_model=make_draft_model(FakeDraftBackend(limits, guess_of(requests, end_after=60))),
    )
    for request, steps in zip(requests, arrivals, strict=False):
        bench.submit(request)
        for _ in range(steps):
            bench.step()
    bench.run()

    for request in requests:
        drafted, accepted = bench.finished(request.sequence_id).by_draft_model
        assert drafted == accepted
