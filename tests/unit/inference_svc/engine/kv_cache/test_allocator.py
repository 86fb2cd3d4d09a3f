"""Sources of cached prefixes, on the fake backend, which queues copies."""

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import CacheSource, Flushed, ModelLoad, Started
from inference_svc.engine.kv_cache.allocator import MIN_REUSED_TOKENS, MIN_SAVED_TOKENS
from inference_svc.engine.kv_cache.copies import CopyCosts
from inference_svc.engine.request import ArchiveOwner, project_archive
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, expected_tokens, make_request

SYSTEM = [65 + i % 26 for i in range(80)]


def _bench(slots: int = 4, *, saved_bytes: int = 0, can_trim: bool = True) -> EngineBench:
    limits = NativeLimits(256, slots, slots, 256, VOCABULARY_SIZE)
    return EngineBench(
        FakeBackend(limits, can_trim=can_trim), chunk_cap=256, saved_bytes=saved_bytes
    )


def _run_together(bench: EngineBench, first_id: int, *prompts: list[int]) -> None:
    for i, prompt in enumerate(prompts, start=first_id):
        bench.submit(make_request(i, prompt=prompt, max_tokens=2))
    bench.run()


@pytest.mark.parametrize("costs", [CopyCosts(), CopyCosts(stream_s=1.0)], ids=["stream", "state"])
def test_the_prefix_of_a_running_sequence_is_copied(costs: CopyCosts) -> None:
    """Both outputs are correct with either copy method."""
    bench = EngineBench(
        FakeBackend(NativeLimits(256, 4, 4, 256, VOCABULARY_SIZE)), chunk_cap=256, copy_costs=costs
    )
    bench.submit(make_request(0, prompt=[*SYSTEM, 1], max_tokens=12))
    bench.step()
    bench.step()
    bench.submit(make_request(1, prompt=[*SYSTEM, 2], max_tokens=12))
    bench.run()

    assert bench.started(1) == Started(1, 1, len(SYSTEM), CacheSource.LIVE)
    assert bench.tokens(0) == expected_tokens([*SYSTEM, 1], 12)
    assert bench.tokens(1) == expected_tokens([*SYSTEM, 2], 12)


@pytest.mark.parametrize("idle_first", [True, False])
@pytest.mark.parametrize(
    ("more", "source"),
    [(MIN_REUSED_TOKENS - 1, CacheSource.SLOT), (MIN_REUSED_TOKENS, CacheSource.LIVE)],
)
def test_an_idle_slot_is_reused_unless_another_has_a_much_longer_prefix(
    more: int, source: CacheSource, idle_first: bool
) -> None:
    """A copy for a few more tokens is not worth its cost."""
    bench, own = _bench(), [*range(70, 70 + MIN_REUSED_TOKENS)]
    brief = make_request(0, prompt=[*SYSTEM, 1], max_tokens=2)
    lasting = make_request(1, prompt=[*SYSTEM, *own], max_tokens=50)
    for request in (brief, lasting) if idle_first else (lasting, brief):
        bench.submit(request)
        bench.step()
    while len(bench.engine.running) != 1 or not bench.tokens(1):
        bench.step()
    prompt = [*SYSTEM, *own[:more], 2]
    bench.submit(make_request(2, prompt=prompt, max_tokens=4))
    bench.run()

    assert bench.started(0).slot == (0 if idle_first else 1)
    assert bench.started(2).source is source
    assert bench.tokens(2) == expected_tokens(prompt, 4)


@pytest.mark.parametrize(
    ("idle", "live"),
    [(SYSTEM[: MIN_REUSED_TOKENS - 1], 2 * MIN_REUSED_TOKENS - 3), ([*SYSTEM, *[97] * 64], 80)],
    ids=["has little", "would lose much"],
)
def test_a_running_sequence_is_preferred_to_a_short_or_much_longer_idle_slot(
    idle: list[int], live: int
) -> None:
    """A short prefix saves little; a long one is a conversation that would be lost."""
    bench = _bench(saved_bytes=10**6)
    bench.submit(make_request(0, prompt=[*SYSTEM[:live], 1, 2], max_tokens=50))
    bench.step()
    bench.step()
    bench.submit(make_request(1, prompt=idle, max_tokens=1))
    while len(bench.engine.running) != 1 or not bench.tokens(1):
        bench.step()
    prompt = [*SYSTEM[:live], 1, 3]
    bench.submit(make_request(2, prompt=prompt, max_tokens=4))
    bench.run()

    assert bench.started(2).source is CacheSource.LIVE
    assert bench.started(2).cached_tokens == live + 1
    assert bench.tokens(2) == expected_tokens(prompt, 4)


@pytest.mark.parametrize(
    ("more", "source"),
    [(MIN_REUSED_TOKENS - 1, CacheSource.SLOT), (MIN_REUSED_TOKENS, CacheSource.MEMORY)],
)
def test_a_saved_prefix_must_be_much_longer_than_that_of_an_idle_slot(
    more: int, source: CacheSource
) -> None:
    """Otherwise the idle slot is used as it is."""
    bench, own = _bench(1, saved_bytes=10**6), [*range(70, 70 + MIN_SAVED_TOKENS)]
    for i, prompt in enumerate(([*SYSTEM, *own], [98] * 3, [*SYSTEM, 1])):
        bench.submit(make_request(i, prompt=prompt, max_tokens=2))
        bench.run()
    prompt = [*SYSTEM, *own[:more], 2]
    bench.submit(make_request(3, prompt=prompt, max_tokens=4))
    bench.run()

    assert bench.started(2).source is CacheSource.MEMORY
    assert bench.started(3).source is source
    assert bench.tokens(3) == expected_tokens(prompt, 4)


def test_generated_text_is_copied() -> None:
    """A prompt that contains the output of a running sequence reuses it."""
    bench = _bench()
    bench.submit(make_request(0, prompt=SYSTEM, max_tokens=20))
    for _ in range(10):
        bench.step()
    prompt = [*SYSTEM, *bench.tokens(0)]
    bench.submit(make_request(1, prompt=prompt, max_tokens=5))
    bench.run()

    assert bench.started(1).cached_tokens == len(prompt) - 1
    assert bench.tokens(1) == expected_tokens(prompt, 5)


def test_prefixes_are_not_shared_between_cache_keys() -> None:
    """Neither from a running sequence, an idle slot nor memory."""
    bench = _bench(1, saved_bytes=10**6)
    for i, key in enumerate([b"a", b"b", b"a", b"c"]):
        bench.submit(make_request(i, prompt=[*SYSTEM, i], max_tokens=2, cache_key=key))
        bench.run()
    assert [bench.started(i).cached_tokens for i in range(4)] == [0, 0, len(SYSTEM), 0]

    live = _bench()
    live.submit(make_request(0, prompt=SYSTEM, max_tokens=50, cache_key=b"a"))
    live.step()
    live.submit(make_request(1, prompt=SYSTEM, max_tokens=2, cache_key=b"b"))
    live.step()
    assert live.started(1).cached_tokens == 0


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False)])
def test_requests_without_reuse_neither_copy_nor_are_copied(first: bool, second: bool) -> None:
    """Either request may decline."""
    bench = _bench()
    bench.submit(make_request(0, prompt=SYSTEM, max_tokens=50, reuse=first))
    bench.step()
    bench.submit(make_request(1, prompt=SYSTEM, max_tokens=2, reuse=second))
    bench.step()

    assert bench.started(1).cached_tokens == 0


def test_a_slot_is_copied_if_the_prompt_reuses_less_than_half_of_it() -> None:
    """The cached conversation stays in its slot."""
    bench = _bench()
    conversation = [*SYSTEM, *[70 + i % 7 for i in range(120)]]
    bench.submit(make_request(0, prompt=conversation, max_tokens=1))
    bench.run()
    bench.submit(make_request(1, prompt=[*SYSTEM, 1, 2], max_tokens=1))
    bench.run()
    bench.submit(make_request(2, prompt=[*conversation, 5], max_tokens=1))
    bench.run()

    assert bench.started(1) == Started(1, 1, len(SYSTEM), CacheSource.SLOT)
    assert bench.started(2) == Started(2, 0, len(conversation), CacheSource.SLOT)


def test_an_overwritten_prefix_is_restored_from_memory() -> None:
    """It is saved before it is overwritten; the output after the restore is correct."""
    bench = _bench(1, saved_bytes=10**6)
    other = [97 + i % 20 for i in range(MIN_SAVED_TOKENS)]
    for i, prompt in enumerate([SYSTEM, other, [*SYSTEM, 1, 2]]):
        bench.submit(make_request(i, prompt=prompt, max_tokens=3))
        bench.run()

    assert bench.started(2) == Started(2, 0, len(SYSTEM), CacheSource.MEMORY)
    assert bench.tokens(2) == expected_tokens([*SYSTEM, 1, 2], 3)
    load = [event for event in bench.events if isinstance(event, ModelLoad)][-1]
    assert (load.saved.num_entries, load.saved.num_bytes > 0) == (2, True)
    # Two misses and one hit, for which the second prefix was evicted and saved too.
    assert load.saved[4:] == (1, 2, 2, 0)


def test_a_common_prefix_is_saved_once() -> None:
    """With the first evicted slot; the others have too few other tokens."""
    bench = _bench(3, saved_bytes=10**6)
    bench.submit(*(make_request(i, prompt=[*SYSTEM, i], max_tokens=2) for i in range(3)))
    bench.run()
    bench.submit(*(make_request(3 + i, prompt=[i] * 90, max_tokens=2) for i in range(3)))
    bench.run()
    bench.submit(make_request(6, prompt=[*SYSTEM, 9], max_tokens=2))
    bench.run()

    loads = [event for event in bench.events if isinstance(event, ModelLoad)]
    assert loads[-1].saved.num_written == 1 + 1  # and the prefix that the seventh request evicted
    assert bench.started(6).source is CacheSource.MEMORY


def test_an_idle_recurrent_state_is_saved_although_a_running_one_has_the_prefix() -> None:
    """The running sequence changes its own state with the next token."""
    bench = _bench(2, saved_bytes=10**6, can_trim=False)
    bench.submit(make_request(0, prompt=SYSTEM, max_tokens=3))
    bench.step()
    bench.step()
    bench.submit(make_request(1, prompt=SYSTEM, max_tokens=9, seed=2))
    bench.step()
    assert bench.finished(0)
    bench.submit(make_request(2, prompt=[1] * 90, max_tokens=2))
    bench.run()
    state_tokens = [*SYSTEM, *bench.tokens(0)[:2]]
    bench.submit(make_request(3, prompt=[*state_tokens, 7], max_tokens=2))
    bench.run()

    assert bench.started(2).slot == bench.started(0).slot
    assert bench.started(3)[2:4] == (len(state_tokens), CacheSource.MEMORY)


def test_a_kept_state_that_was_evicted_is_saved_again_with_its_slot() -> None:
    """Only the slot still has its cells."""
    bench = _bench(2, saved_bytes=700)
    bench.submit(make_request(0, prompt=SYSTEM, max_tokens=2, keep=True, request_id="r0"))
    bench.submit(make_request(1, prompt=[97] * 150, max_tokens=2))
    bench.run()
    _run_together(bench, 2, [*[97] * 80, 98])  # the second prefix is saved and evicts the state
    assert bench.engine.snapshot("r0", 0) is None
    _run_together(bench, 3, [99] * 70)
    _run_together(bench, 4, [*SYSTEM, 9])

    assert bench.started(3).slot == bench.started(0).slot
    assert bench.started(4)[2:4] == (len(SYSTEM), CacheSource.MEMORY)


def test_evicting_a_slot_marks_its_saved_prefix_as_recently_used() -> None:
    """Entries that were used less recently are evicted first."""
    bench = _bench(2, saved_bytes=1100)  # space for three prefixes
    _run_together(bench, 0, [*SYSTEM, 1], [*SYSTEM, 2])
    _run_together(bench, 2, [97] * 90, [98] * 90)
    _run_together(bench, 4, [*SYSTEM, 3])
    _run_together(bench, 5, [*SYSTEM, 4], [99] * 90)
    assert bench.started(5).source is CacheSource.SLOT
    for i in (7, 8, 9):  # the first uses that slot, each other one saves its predecessor
        _run_together(bench, i, [i] * 90)
    _run_together(bench, 10, [*SYSTEM, 5])

    assert bench.started(10)[2:4] == (len(SYSTEM), CacheSource.MEMORY)


def test_prefixes_of_stored_objects_are_saved_completely() -> None:
    """Each object has a file of its own, so a common prefix is saved for both; of the stateless
    requests of a project it is saved once."""
    assert _num_saved("thread_0", "thread_1") == 2
    assert _num_saved(project_archive("red"), project_archive("red")) == 1


def _num_saved(*owners: str) -> int:
    """How many states were saved of two requests with a common prefix."""
    bench = _bench(2, saved_bytes=10**6)
    objects = [ArchiveOwner(owner, "d" * 64) for owner in owners]
    bench.submit(
        *(make_request(i, prompt=[*SYSTEM, i], max_tokens=2, keep_for=objects[i]) for i in range(2))
    )
    bench.run()
    bench.submit(*(make_request(2 + i, prompt=[i] * 90, max_tokens=2) for i in range(2)))
    bench.run()

    loads = [event for event in bench.events if isinstance(event, ModelLoad)]
    return loads[-1].saved.num_written


def test_a_recurrent_state_is_reused_only_by_prompts_that_begin_with_all_of_it() -> None:
    """A recurrent state cannot be truncated to a shorter common prefix."""
    bench = _bench(1, saved_bytes=10**6, can_trim=False)
    bench.submit(make_request(0, prompt=SYSTEM, max_tokens=3))
    bench.run()
    state_tokens = [*SYSTEM, *bench.tokens(0)[:2]]
    other = [97 + i % 20 for i in range(MIN_SAVED_TOKENS)]
    for i, prompt in enumerate([other, [*SYSTEM, 1, 2, 3], [*state_tokens, 7]], start=1):
        bench.submit(make_request(i, prompt=prompt, max_tokens=3))
        bench.run()

    assert bench.started(2).cached_tokens == 0
    assert bench.started(3) == Started(3, 0, len(state_tokens), CacheSource.MEMORY)
    assert bench.tokens(3) == expected_tokens([*state_tokens, 7], 3)


def test_a_short_common_prefix_is_not_copied() -> None:
    """The request starts in the lowest free slot."""
    bench = _bench()
    bench.submit(make_request(0, prompt=SYSTEM, max_tokens=50))
    bench.step()
    bench.submit(make_request(1, prompt=[*SYSTEM[: MIN_REUSED_TOKENS - 1], 1, 2], max_tokens=2))
    bench.step()

    assert bench.started(1) == Started(1, 1, 0, CacheSource.NONE)


def test_flushing_drops_idle_and_saved_prefixes() -> None:
    """Running sequences continue; the next request with such a prefix computes it."""
    bench = _bench(2, saved_bytes=10**6)
    other = [97 + i % 20 for i in range(MIN_SAVED_TOKENS)]
    for i, prompt in enumerate([SYSTEM, other]):
        bench.submit(make_request(i, prompt=prompt, max_tokens=1))
        bench.run()
    bench.submit(make_request(2, prompt=[98, 99], max_tokens=30))
    bench.step()
    bench.engine.flush(7)
    bench.submit(make_request(3, prompt=SYSTEM, max_tokens=1))
    bench.run()

    (flushed,) = [event for event in bench.events if isinstance(event, Flushed)]
    assert flushed == Flushed(7, len(SYSTEM) + len(other))
    assert bench.started(3).cached_tokens == 0
    assert bench.tokens(2) == expected_tokens([98, 99], 30)


def test_a_copy_that_stays_queued_after_a_rejected_batch_corrupts_no_output() -> None:
    """Its target is neither read nor filled until a decode has executed the copy."""
    reject = [False]
    limits = NativeLimits(256, 2, 2, 256, VOCABULARY_SIZE)
    backend = FakeBackend(limits, fails=lambda _: -1 if reject[0] else 0)
    bench = EngineBench(backend, chunk_cap=256, saved_bytes=10**6)
    bench.submit(make_request(0, prompt=SYSTEM, max_tokens=50))
    bench.step()
    bench.submit(make_request(1, prompt=[*SYSTEM, 1], max_tokens=2))
    reject[0] = True
    bench.step()
    reject[0] = False
    prompts = {2: [*SYSTEM, 2], 3: [*SYSTEM, 3]}
    bench.submit(*(make_request(i, prompt=prompt, max_tokens=4) for i, prompt in prompts.items()))
    bench.run()

    assert bench.failures().keys() == {0, 1}
    for i, prompt in prompts.items():
        assert bench.tokens(i) == expected_tokens(prompt, 4)


def test_the_target_of_a_queued_copy_is_not_a_source() -> None:
    """Two sequences that start in one step both copy the prefix of a third."""
    bench = _bench()
    bench.submit(*(make_request(i, prompt=[97 + i] * 3, max_tokens=2) for i in range(3)))
    bench.submit(make_request(3, prompt=SYSTEM, max_tokens=50))
    while len(bench.engine.running) > 1:
        bench.step()
    bench.submit(*(make_request(i, prompt=[*SYSTEM, i], max_tokens=4) for i in (4, 5)))
    bench.run()

    for i in (4, 5):
        assert bench.started(i).source is CacheSource.LIVE
        assert bench.tokens(i) == expected_tokens([*SYSTEM, i], 4)


def test_a_running_recurrent_state_is_copied_whole_or_not_at_all() -> None:
    """A prompt that differs within the generated tokens reuses nothing."""
    bench = _bench(can_trim=False)
    bench.submit(make_request(0, prompt=SYSTEM, max_tokens=50))
    bench.step()
    bench.step()
    generated = bench.tokens(0)[:1]
    bench.submit(make_request(1, prompt=[*SYSTEM, 1, 2, 3], max_tokens=4))
    bench.submit(make_request(2, prompt=[*SYSTEM, *generated, 2, 3], max_tokens=4))
    bench.step()

    assert bench.started(1).cached_tokens == 0
    assert bench.started(2) == Started(2, 2, len(SYSTEM) + 1, CacheSource.LIVE)
    bench.run()
    assert bench.tokens(2) == expected_tokens([*SYSTEM, *generated, 2, 3], 4)


@pytest.mark.parametrize("costs", [CopyCosts(), CopyCosts(stream_s=1e9)], ids=["stream", "state"])
@pytest.mark.parametrize("kept", [30, 75, 80])
def test_a_part_of_a_running_sequence_is_copied_with_its_window(
    costs: CopyCosts, kept: int
) -> None:
    """As a stream where the state has only a later window; both outputs are correct."""
    backend = FakeBackend(NativeLimits(256, 4, 4, 256, VOCABULARY_SIZE), window=16)
    bench = EngineBench(backend, chunk_cap=256, copy_costs=costs)
    bench.submit(make_request(0, prompt=SYSTEM, max_tokens=12))
    bench.step()
    bench.submit(make_request(1, prompt=[*SYSTEM[:kept], 1, 2], max_tokens=12))
    bench.run()

    assert bench.started(1) == Started(1, 1, kept, CacheSource.LIVE)
    assert bench.tokens(0) == expected_tokens(SYSTEM, 12)
    assert bench.tokens(1) == expected_tokens([*SYSTEM[:kept], 1, 2], 12)


@pytest.mark.parametrize(("kept", "cached"), [(30, 0), (79, 0), (80, 80), (81, 81)])
def test_a_saved_state_is_cut_no_further_than_its_window(kept: int, cached: int) -> None:
    """It has the window of its last token, which the token before it needs as well."""
    backend = FakeBackend(NativeLimits(256, 1, 1, 256, VOCABULARY_SIZE), window=16)
    bench = EngineBench(backend, chunk_cap=256, saved_bytes=10**6)
    bench.submit(make_request(0, prompt=SYSTEM, max_tokens=2))
    bench.run()
    bench.submit(make_request(1, prompt=[97] * 80, max_tokens=2))
    bench.run()
    prompt = [*[*SYSTEM, *bench.tokens(0)][:kept], 1, 2]
    bench.submit(make_request(2, prompt=prompt, max_tokens=4))
    bench.run()

    assert bench.started(2).cached_tokens == cached
    assert bench.tokens(2) == expected_tokens(prompt, 4)


def test_a_slot_is_cut_no_further_than_a_window_that_has_moved() -> None:
    """Nothing else remembers the tokens, which are computed again."""
    backend = FakeBackend(NativeLimits(256, 2, 2, 256, VOCABULARY_SIZE), window=16)
    bench = EngineBench(backend, chunk_cap=256)
    bench.submit(*(make_request(i, prompt=[97 + i, *SYSTEM], max_tokens=4) for i in range(2)))
    bench.run()
    bench.submit(*(make_request(2 + i, prompt=[97 + i, *SYSTEM[:60], 1]) for i in range(2)))
    bench.run()

    assert [bench.started(i).cached_tokens for i in (2, 3)] == [61, 0]  # windows of slot 1 move
    for i in range(2):
        assert bench.tokens(2 + i) == expected_tokens([97 + i, *SYSTEM[:60], 1], 8)


def test_the_source_of_a_planned_copy_is_not_allocated() -> None:
    """The next sequence has the slot after the copy; both outputs are correct."""
    bench = _bench(2)
    conversation = [*SYSTEM, *[70 + i % 7 for i in range(120)]]
    bench.submit(make_request(0, prompt=conversation, max_tokens=1))
    bench.run()
    bench.submit(make_request(1, prompt=[*SYSTEM, 1, 2], max_tokens=3))
    bench.submit(make_request(2, prompt=[98, 99], max_tokens=3))
    bench.step()
    assert bench.started(1).cached_tokens == len(SYSTEM)
    bench.run()

    assert bench.started(2).slot == 0
    assert bench.tokens(1) == expected_tokens([*SYSTEM, 1, 2], 3)
    assert bench.tokens(2) == expected_tokens([98, 99], 3)
