"""Where prompts leave what is cached, on the fake backend."""

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import CacheSource, Divergence
from inference_svc.engine.kv_cache.divergence import MIN_LOST_TOKENS, find_divergence
from inference_svc.engine.saved_state import SavedPrefix
from tests.support.examples import examples
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, make_request

HEAD, TAIL = [65 + i % 26 for i in range(80)], [97 + i % 26 for i in range(MIN_LOST_TOKENS)]
CACHED = [*HEAD, 1, *TAIL]
CHANGED = [*HEAD, 2, *TAIL]
FOUND = Divergence(len(HEAD), MIN_LOST_TOKENS + 1, array("i", [1, *TAIL[:15]]))


def _bench(slots: int = 4, **options: Any) -> EngineBench:
    limits = NativeLimits(512, slots, slots, 512, VOCABULARY_SIZE)
    return EngineBench(FakeBackend(limits), chunk_cap=512, **options)


def _run(bench: EngineBench, number: int, prompt: list[int], **changes: Any) -> None:
    changes = {"project": "red", "max_tokens": 2, **changes}
    bench.submit(make_request(number, prompt=prompt, **changes))
    bench.run()


def test_the_first_changed_token_is_told_with_what_is_cached_there() -> None:
    """Also if the prefix before it is too short to be reused."""
    bench = _bench()
    _run(bench, 0, CACHED)
    _run(bench, 1, CHANGED)
    _run(bench, 2, [*HEAD[:2], 3, *TAIL])

    assert bench.started(0).divergence is None
    assert (bench.started(1).divergence, bench.started(1).cached_tokens) == (FOUND, len(HEAD))
    assert bench.started(2).source is CacheSource.NONE
    third = bench.started(2).divergence
    assert third is not None
    assert (third.token_index, third.num_lost) == (2, MIN_LOST_TOKENS + 1)
    assert [*third.cached[:3]] == HEAD[2:5]


def test_a_prompt_that_lost_its_slot_is_compared_too() -> None:
    """With one slot, the first prompt is in memory when the third one comes."""
    bench = _bench(1, saved_bytes=10**7)
    _run(bench, 0, CACHED)
    _run(bench, 1, [*TAIL, *TAIL[:40]])
    _run(bench, 2, CHANGED)

    assert bench.started(2).divergence == FOUND


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param([*CACHED, 5, *TAIL[:100]], id="it continues"),
        pytest.param(CACHED[:-50], id="it is shorter"),
        pytest.param([*HEAD, 2, *TAIL[:-2]], id="little is lost"),
        pytest.param([9, *CACHED], id="nothing is common, but all is lost"),
        pytest.param([*HEAD, *TAIL[::-1], 2], id="another conversation begins alike"),
    ],
)
def test_little_or_nothing_that_is_lost_is_not_told(prompt: list[int]) -> None:
    bench = _bench()
    _run(bench, 0, CACHED)
    _run(bench, 1, prompt)

    assert bench.started(1).divergence is None


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"project": "green"}, id="a project of the same group"),
        pytest.param({"cache_key": b"other"}, id="another salt"),
        pytest.param({"reuse": False}, id="nothing may be reused"),
        pytest.param({"prompt_logprobs": 0}, id="all is computed"),
    ],
)
def test_nothing_is_told_of_what_others_sent(changes: dict[str, Any]) -> None:
    bench = _bench()
    _run(bench, 0, CACHED)
    _run(bench, 1, CHANGED, **changes)

    assert bench.started(1).divergence is None


OWNERS = st.tuples(st.sampled_from([b"a", b"b"]), st.sampled_from(["red", "green", ""]))
TOKENS = st.lists(st.integers(1, 2), max_size=6).map(lambda each: [*each, *TAIL])


@settings(max_examples=examples(200), deadline=None)
@given(
    cached=st.lists(st.tuples(OWNERS, TOKENS), max_size=6),
    prompt=TOKENS,
    owner=OWNERS.filter(lambda each: bool(each[1])),
)
def test_it_is_the_end_of_the_longest_common_prefix_of_the_project(
    cached: list[tuple[tuple[bytes, str], list[int]]], prompt: list[int], owner: tuple[bytes, str]
) -> None:
    entries = [
        SavedPrefix(key, array("i", tokens), bytearray(), 0, project=project)
        for (key, project), tokens in cached
    ]
    key, project = owner
    request = make_request(prompt=prompt, cache_key=key, project=project)

    found = find_divergence(request, entries)

    own = [tokens for of, tokens in cached if of == owner]
    best = max((_common(tokens, prompt) for tokens in own), default=0)
    nearest = [tokens for tokens in own if best and _common(tokens, prompt) == best]
    lost = [min(len(tokens), len(prompt)) - best for tokens in nearest]
    if found is None:
        assert min(lost, default=0) < MIN_LOST_TOKENS
    else:
        assert found.token_index == best
        assert found.num_lost in lost
        assert any([*found.cached] == tokens[best : best + 16] for tokens in nearest)


def _common(left: list[int], right: list[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    different = (i for i, (one, other) in pairs if one != other)
    return next(different, min(len(left), len(right)))
