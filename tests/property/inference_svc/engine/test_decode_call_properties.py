"""Commands between the decode calls of a step do not change the output of other sequences."""

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.constraint import Constraint
from inference_svc.engine.kv_cache.copies import CopyCosts
from inference_svc.engine.request import NO_ADAPTERS, AdapterStack, AppliedAdapter
from tests.support.examples import examples
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, make_request

NEVER = 10**6
SLOTS = 4
STACKS: list[AdapterStack] = [NO_ADAPTERS, (AppliedAdapter("a", 1.0),), (AppliedAdapter("b", 1.0),)]
PREFIXES = [[100 + i % 3 for i in range(70)], [97 + i % 5 for i in range(70)]]
LIMITS = NativeLimits(48, SLOTS, SLOTS, 160, VOCABULARY_SIZE)

_sequences = st.fixed_dictionaries(
    {
        "prompt": st.builds(
            lambda prefix, shared, suffix: [*prefix[:shared], *suffix],
            st.sampled_from(PREFIXES),
            st.sampled_from([0, 0, 40, 70]),
            st.lists(st.integers(97, 99), min_size=1, max_size=14),
        ),
        "max_tokens": st.integers(0, 13),
        "priority": st.integers(1, 3),
        "stack": st.sampled_from([0, 0, 1, 2]),
        "project": st.sampled_from([b"x", b"y"]),
        "deterministic": st.booleans(),
        "constraint": st.sampled_from([None, None, "ab?d*", "x*"]),
        "keep": st.booleans(),
        "max_draft": st.sampled_from([0, 7]),
        "at": st.integers(0, 8),
    }
)
# Decode calls after the arrival of a sequence, the command and the number of the sequence.
_commands = st.tuples(
    st.integers(0, 12),
    st.sampled_from(["cancel", "pause", "unpause", "flush", "snapshot", "reload"]),
    st.integers(0, 9),
)


def _submit(bench: EngineBench, i: int, plan: dict[str, Any]) -> None:
    pattern = plan["constraint"]
    bench.submit(
        make_request(
            i,
            plan["prompt"],
            max_tokens=plan["max_tokens"],
            priority=plan["priority"],
            adapters=STACKS[plan["stack"]],
            cache_key=plan["project"] + b"%d" % plan["stack"],
            deterministic=plan["deterministic"],
            reuse=not plan["deterministic"],
            constraint=None if pattern is None else Constraint(pattern, "constraint"),
            keep=plan["keep"],
            max_draft=plan["max_draft"],
            ignore_eos=True,
            request_id=f"r{i}",
        )
    )


def _run_command(bench: EngineBench, command: str, i: int) -> None:
    engine = bench.engine
    match command:
        case "cancel":
            engine.cancel(i, arrived_in_step=1, step=2)
        case "pause" | "unpause":
            engine.pause(i, paused=command == "pause")
        case "flush":
            engine.flush(i)
        case "snapshot":
            prefix = engine.snapshot(f"r{i}", 0)
            if prefix is not None:
                engine.prefix_cache.put(prefix)
        case "reload":
            digest = "ab"[i % 2]
            sequences = engine._sequences.by_id.values()
            if all(
                adapter.digest != digest
                for sequence in sequences
                for adapter in sequence.request.adapters
            ):
                engine.adapters.unload(digest)
                engine.adapters.load(digest, Path(digest))


def _bench(limits: NativeLimits = LIMITS, **options: Any) -> EngineBench:
    builds_after = options.pop("builds_after", 0)
    can_trim = options.pop("can_trim", True)
    backend = FakeBackend(limits, end_after=NEVER, can_trim=can_trim, builds_after=builds_after)
    bench = EngineBench(backend, chunk_cap=32, **options)
    for digest in "ab":
        bench.engine.adapters.load(digest, Path(digest))
    return bench


def _run(
    bench: EngineBench,
    plans: list[dict[str, Any]],
    commands: list[tuple[int, str, int]],
    step_s: float,
) -> None:
    """Submit the sequences and run the commands, until all sequences have ended. All sequences are
    unpaused in the end."""
    timed = [(plans[i]["at"] + after, name, i) for after, name, i in commands if i < len(plans)]
    timed += [(60, "unpause", i) for i in range(len(plans))]
    for call in range(4000):
        for i, plan in enumerate(plans):
            if plan["at"] == call:
                _submit(bench, i, plan)
        for at, command, i in timed:
            if at == call:
                _run_command(bench, command, i)
        bench.call()
        bench.clock.now += step_s
        if call > 60 and not bench.engine.has_sequences:
            return


def _tokens_alone(plan: dict[str, Any]) -> list[int]:
    bench = _bench()
    _submit(bench, 0, {**plan, "max_draft": 0})
    bench.run()
    return bench.tokens(0)


@settings(max_examples=examples(100), deadline=None)
@given(
    plans=st.lists(_sequences, min_size=4, max_size=10),
    commands=st.lists(_commands, min_size=4, max_size=20),
    can_trim=st.booleans(),
    drafts=st.booleans(),
    saved_bytes=st.sampled_from([0, 1200, 10**6]),
    stream_s=st.sampled_from([0.0, 50.0, 1e9]),
    step_s=st.sampled_from([0.0, 0.1]),
    cells=st.sampled_from([None, None, 160, 400]),
    builds_after=st.integers(0, 5),
)
def test_commands_between_calls_do_not_change_other_sequences(
    plans: list[dict[str, Any]],
    commands: list[tuple[int, str, int]],
    can_trim: bool,
    drafts: bool,
    saved_bytes: int,
    stream_s: float,
    step_s: float,
    cells: int | None,
    builds_after: int,
) -> None:
    """A sequence that is not cancelled emits the tokens that it emits alone, and ends once."""
    rows = SLOTS + 8 * drafts
    bench = _bench(
        NativeLimits(48, rows, SLOTS, 160, VOCABULARY_SIZE, cells=cells),
        builds_after=builds_after,
        can_trim=can_trim,
        copy_costs=CopyCosts(stream_s, 0.0, 1.0),
        saved_bytes=saved_bytes,
    )
    _run(bench, plans, commands, step_s)

    assert not bench.engine.has_sequences
    assert bench.failures() == {}
    cancelled = {i for _, command, i in commands if command == "cancel"}
    for i, plan in enumerate(plans):
        expected, tokens = _tokens_alone(plan), bench.tokens(i)
        assert tokens == (expected[: len(tokens)] if i in cancelled else expected)
        if i not in cancelled:
            bench.finished(i)
