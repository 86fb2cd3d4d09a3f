"""Results that the parts compute from measurements."""

from dataclasses import replace

import pytest

from bench.attacks.drill import Harm
from bench.measurement import CORRAL, Measurement
from bench.parts import (
    LONG,
    PARTS,
    attacks,
    batches,
    chats,
    constrained,
    decode,
    dialects,
    files,
    interactive,
    memory,
    objects,
    page,
    policies,
    replicas,
    routing,
    runs,
    sessions,
    shared,
    soak,
    tokens,
    upstream,
    vllm,
    warm,
)
from bench.parts.upstream import FULL_SPEED, GRPC, OWN_ENGINE, PACED
from bench.paths import SCHEMAS
from bench.stage import Batched, read_batched


def test_names_of_parts_are_unique() -> None:
    """A name is a file, a section and an argument."""
    names = [part.name for part in (*PARTS, *LONG)]

    assert len(set(names)) == len(names)


def test_greedy_and_sampled_decoding_have_different_targets() -> None:
    """The peer does not sample."""
    measurements = [
        Measurement(f"{sampling}, 4 at once", 0, system, speed)
        for sampling in ("greedy", "sampled")
        for system, speed in (("corral", 92.0), ("llama-batched-bench", 100.0))
    ]

    greedy, sampled = decode.conclude(measurements)

    assert (greedy.target, greedy.is_met) == (0.95, False)
    assert (sampled.target, sampled.is_met) == (0.90, True)


def test_the_default_policy_is_compared_with_the_others() -> None:
    """Tokens as even as with one of them, long prompts as soon as with the other."""
    values = {
        policies.LATENCY_FIRST: (50.0, 70.0, 300.0, 9000.0, 0.5),
        policies.DEFAULT: (55.0, 90.0, 330.0, 6000.0, 0.6),
        policies.THROUGHPUT_FIRST: (60.0, 900.0, 800.0, 4000.0, 0.6),
    }
    loads = (policies.GAP, policies.LONGEST_GAP, policies.CHAT, policies.LONG, policies.SPEED)
    measurements = [
        Measurement(load, 0, policy, value)
        for policy, row in values.items()
        for load, value in zip(loads, row, strict=True)
    ]

    results = policies.conclude(measurements)

    ratios = [1.1, 9 / 7, 0.1, 1.1, 330 / 800, 2 / 3, 1.5, 1.0]
    assert [result.ratio for result in results] == pytest.approx(ratios)
    unjudged = [None, None]
    assert [each.is_met for each in results] == [True, *unjudged, True, True, True, *unjudged]
    assert all("<circle" in chart for chart in policies.draw(measurements).values())


def test_replicas_are_compared_with_as_many_times_one() -> None:
    """In the same round; pauses with first tokens."""
    speeds = {(1, 1): 70.0, (1, 2): 70.0, (2, 1): 133.0, (2, 2): 120.0}
    measurements = [
        Measurement(replicas.REPLICAS.format(count=count, gateways=gateways), 0, CORRAL, speed)
        for (count, gateways), speed in speeds.items()
    ]
    measurements += [
        Measurement(name, 0, system, pause)
        for name in (replicas.PAUSE_P50, replicas.PAUSE_P99)
        for system, pause in ((CORRAL, 400.0), (replicas.PROMPT, 500.0))
    ]

    results = replicas.conclude(measurements)

    ratios = [1.0, 1.0, 133 / 140, 120 / 140, 0.8, 0.8]
    assert [result.ratio for result in results] == pytest.approx(ratios)
    assert [result.is_met for result in results] == [True, True, True, False, None, None]
    assert "<circle" in replicas.draw(measurements)["throughput"]


def test_a_call_to_one_of_several_targets_is_compared_with_one_target() -> None:
    """In the same round, without a target."""
    costs = {1: 2000.0, 4: 2100.0}
    measurements = [
        Measurement(routing.TARGETS.format(count=count), 0, CORRAL, cost)
        for count, cost in costs.items()
    ]

    results = routing.conclude(measurements)

    assert [result.ratio for result in results] == pytest.approx([1.0, 1.05])
    assert {result.is_met for result in results} == {None}


def test_corral_is_compared_with_vllm_and_unique_prompts_with_llama_server_too() -> None:
    """The same kernels: what both lack is theirs."""
    measurements = [
        Measurement(load, 0, system, speed)
        for load, system, speed in (
            (f"{vllm.UNIQUE}, 16 at once", CORRAL, 95.0),
            (f"{vllm.UNIQUE}, 16 at once", vllm.VLLM, 100.0),
            (f"{vllm.UNIQUE}, 16 at once", "llama-server streams", 95.0),
            ("one prompt of 800, 16 at once", CORRAL, 110.0),
            ("one prompt of 800, 16 at once", vllm.VLLM, 100.0),
        )
    ]

    results = vllm.conclude(measurements)

    assert [result.ratio for result in results] == pytest.approx([0.95, 1.1, 1.0])
    assert [result.is_met for result in results] == [False, True, True]


def test_the_limit_computes_every_token_once() -> None:
    """1,312 prompt tokens and 1,024 outputs, each at its rate."""
    seconds = (800 + 32 * 16) / 1000.0 + 32 * 32 / 256.0

    assert shared.limit(shared.FULL, 800, Batched(1000.0, 256.0)) == pytest.approx(1024 / seconds)


def test_a_first_token_may_take_half_longer_plus_one_step() -> None:
    """100 ms alone and a step of 50 ms allow 200 ms."""
    measurements = [
        Measurement(interactive.SHORT_ALONE, 0, "corral", 100.0),
        Measurement(interactive.LONG_ALONE, 0, "corral", 1000.0, {"step_ms": 50.0}),
        Measurement(interactive.SHORT_BESIDE, 0, "corral", 190.0),
        Measurement(interactive.LONG_BESIDE, 0, "corral", 850.0),
    ]

    first_token, prefill = interactive.conclude(measurements)

    assert (first_token.peer, first_token.ratio, first_token.is_met) == (200.0, 0.95, True)
    assert (prefill.ratio, prefill.is_met) == (0.85, False)


def test_constraints_may_cost_five_percent_and_forced_tokens_must_save_a_third() -> None:
    """The first ratio has an upper bound, the second a lower bound."""
    schema = SCHEMAS[0].stem
    valid = {"is_valid": True}
    measurements = [
        Measurement("any text, 1 at once", 0, constrained.FREE, 10.0),
        Measurement("any text, 1 at once", 0, constrained.BOUND, 10.6),
        Measurement(schema, 0, constrained.SINGLE, 160.0, valid),
        Measurement(schema, 0, constrained.TOGETHER, 100.0, valid),
    ]

    cost, *savings, validity = constrained.conclude(measurements)

    assert cost.ratio == pytest.approx(1.06)
    assert cost.is_met is False
    assert [one.is_met for one in savings if one.ratios] == [True]
    assert (validity.ratio, validity.unit) == (1.0, "of 1")


def test_memory_has_an_absolute_limit() -> None:
    """200 MB are allowed."""
    (result,) = memory.conclude([Measurement(memory.LOAD, 0, "corral", 150.0)])

    assert (result.own, result.peer, result.is_met) == (150.0, 200.0, True)


def test_sizes_of_weight_buffers_are_parsed_from_the_log() -> None:
    """Without mapped files and the KV cache."""
    log = (
        "load_tensors:   CPU_Mapped model buffer size =    30.50 MiB\n"
        "load_tensors:   CPU_REPACK model buffer size =     1.50 MiB\n"
        "load_tensors:          CPU model buffer size =     2.50 MiB\n"
        "llama_kv_cache:        CPU KV buffer size =    16.00 MiB\n"
    )

    assert memory.copies_bytes(log) == 4 << 20


@pytest.mark.parametrize(("growth_mb", "is_met"), [(10.0, True), (30.0, False)])
def test_every_process_has_its_own_growth(growth_mb: float, is_met: bool) -> None:
    """A leak in one process is not averaged away."""
    rising = {"gateway": 0.0, "engine": growth_mb}
    measurements = [
        Measurement(role, done, "corral", 1000.0 + slope * (done - 3) / 7)
        for done in range(11)
        for role, slope in rising.items()
    ]

    gateway, engine = soak.conclude(measurements)

    assert gateway.is_met
    assert engine.is_met is is_met


def test_rates_are_parsed_from_the_mixed_output_of_the_peer() -> None:
    """llama-batched-bench writes logs and results to one stream."""
    output = 'log {x}\n{"pl": 4, "speed_pp": 700.0, "speed_tg": 130.0}\n\n'

    assert read_batched(output) == {4: Batched(700.0, 130.0)}


def test_a_file_transfer_reaches_six_tenths_of_a_bare_stream() -> None:
    """Memory growth has its own limit."""
    measurements = [
        *(
            Measurement(load, 0, system, speed)
            for load in (files.UP, files.DOWN)
            for system, speed in (("corral", 500.0), (files.BARE, 1000.0))
        ),
        Measurement(files.GROWTH, 0, "corral", 32.0),
    ]

    up, down, growth = files.conclude(measurements)

    assert (up.ratio, up.is_met, up.unit) == (0.5, False, "MiB/s")
    assert down.ratio == 0.5
    assert (growth.ratio, growth.is_met) == (0.5, True)


def test_many_callers_must_not_be_slower_than_one() -> None:
    """The latency has a limit; the rate of many callers is compared with that of one."""
    measurements = [
        Measurement(f"file, SQLite, {callers} at once", 0, "corral", rate, {"p50_ms": 5.0})
        for callers, rate in ((1, 200.0), (objects.CALLERS, 100.0))
    ]

    results = {result.load: result for result in objects.conclude(measurements)}

    assert results["file, SQLite: p50"].is_met
    assert results[f"file, SQLite: {objects.CALLERS} callers"].is_met is False
    assert results["file, PostgreSQL: p50"].is_met is None


def test_a_line_of_a_batch_may_cost_two_milliseconds() -> None:
    """The result is the median of the rounds; bare calls have no target."""
    measurements = [
        Measurement(load, number, "corral", value)
        for load, values in ((batches.LINE, (1.0, 3.0, 1.5)), (batches.BARE, (9.0, 9.0, 9.0)))
        for number, value in enumerate(values)
    ]

    (line,) = batches.conclude(measurements)

    assert (line.own, line.ratio, line.is_met) == (1.5, 0.75, True)


def test_the_allowed_cost_of_a_token_depends_on_the_streams() -> None:
    """The tokens of one step share the cost of waking a process."""
    measurements = [Measurement(f"{n} at once", 0, "corral", 500.0) for n in (1, 4, 16)]

    assert [result.is_met for result in tokens.conclude(measurements)] == [True, True, False]


def test_a_token_of_each_api_is_compared_with_a_chat_of_the_same_round() -> None:
    """A tenth more is allowed."""
    costs = {dialects.CHAT: 100.0, "/v1/messages": 110.0, "/api/chat": 111.0}
    measurements = [
        Measurement(path, number, "corral", value * (number + 1))
        for path, value in costs.items()
        for number in range(2)
    ]
    results = {result.load: result for result in dialects.conclude(measurements)}

    assert results["/v1/messages"].ratios == (1.1, 1.1)
    assert [results[path].is_met for path in [*costs][1:]] == [True, False]
    assert results["/completion"].is_met is None


@pytest.mark.parametrize(("load", "unit"), [(chats.COST, "us"), (chats.FIRST_TOKEN, "ms")])
def test_a_small_chat_is_compared_with_that_of_another_checkout(load: str, unit: str) -> None:
    """In each round; a twentieth more is allowed. Without another checkout there are no ratios."""
    measurements = [
        Measurement(f"16 at once, {load}", number, system, value * (number + 1))
        for number in range(2)
        for system, value in (("corral", 103.0), ("before", 100.0))
    ]

    (result,) = chats.conclude(measurements)
    (alone,) = chats.conclude(measurements[::2])

    assert (result.ratios, result.is_met, result.unit) == ((1.03, 1.03), True, unit)
    assert (alone.ratios, alone.is_met) == ((), None)


def test_runs_are_compared_with_their_limits() -> None:
    """A database without measurements has no results."""
    measurements = [
        Measurement("first event, SQLite", 0, "corral", 12.5),
        Measurement("over a bare chat, SQLite", 0, "corral", 90.0),
        Measurement("runs at once, SQLite", 0, "corral", 12.0),
        Measurement("runs at once, SQLite", 0, "bare chats", 10.0),
        Measurement("outside the engine, SQLite, 10 messages", 0, "corral", 20.0),
        Measurement("outside the engine, SQLite, 1,000 messages", 0, "corral", 23.0),
    ]

    first, over, at_once, outside = runs.conclude(measurements)

    assert (first.ratio, first.is_met) == (0.5, True)
    assert (over.ratio, over.is_met) == (1.5, False)
    assert (at_once.ratio, at_once.is_met) == (1.2, True)
    assert (outside.ratio, outside.is_met) == (1.15, False)


def test_an_attack_may_delay_a_first_token_a_little() -> None:
    """Three times the median alone, twenty times once, and 64 MiB."""
    harm = Harm(10.0, p50_ms=31.0, max_ms=190.0, growth_mib=32.0, grown="gateway", aftermath=0.0)
    other = replace(harm, growth_mib=96.0, grown="frontend/engine")
    measurements = [
        Measurement(load, 0, "corral", each.p50_ms, each.to_json())
        for load, each in (("pings", harm), ("texts", other))
    ]

    p50, latest, memory_growth, *_, growth_of_engine = attacks.conclude(measurements)

    assert (p50.ratios, p50.is_met) == ((3.1,), False)
    assert (latest.ratios, latest.is_met) == ((19.0,), True)
    assert (memory_growth.ratios, memory_growth.is_met) == ((0.5,), True)
    assert (growth_of_engine.load, growth_of_engine.is_met) == (
        "texts, memory of frontend/engine",
        False,
    )


def test_the_adapter_costs_what_the_frontend_takes_more_than_over_its_own_engine() -> None:
    """At full speed, where there is no own engine beside it, all that it takes."""
    measurements = [
        Measurement(FULL_SPEED, 0, "corral", 30.0),
        Measurement(PACED, 0, "corral", 130.0),
        Measurement(PACED, 0, OWN_ENGINE, 100.0),
    ]

    full_speed, paced = upstream.conclude(measurements)

    assert (full_speed.own, full_speed.ratio, full_speed.is_met) == (30.0, 0.5, True)
    assert (paced.own, paced.ratio, paced.is_met) == (30.0, 0.5, True)


def test_corral_in_front_of_an_engine_has_targets_for_speed_and_first_token() -> None:
    """Over HTTP and gRPC, each beside the engine itself in the same round."""
    measurements = [
        Measurement("vllm, 16 at once", 0, system, speed, {"first_token_p50_ms": first_ms})
        for system, speed, first_ms in (
            ("corral", 96.0, 104.0),
            (GRPC, 98.0, 106.0),
            ("vllm", 100.0, 100.0),
        )
    ]

    results = upstream.conclude(measurements)

    assert [result.ratio for result in results] == [0.96, 1.04, 0.98, 1.06]
    assert [result.is_met for result in results] == [False, True, True, False]


def test_a_first_token_after_a_restart_may_take_a_tenth() -> None:
    """Of a full prefill; and no more than llama-server takes with its file."""
    measurements = [
        Measurement(load, 0, system, value)
        for load, system, value in (
            (warm.COLD, "corral", 1000.0),
            (warm.WARM, "corral", 90.0),
            (warm.WARM, warm.SLOT_FILE, 80.0),
            (warm.COST, "corral", 10.1),
            (warm.COST, warm.STORED, 10.0),
        )
    ]

    share, slot_file, cost = warm.conclude(measurements)

    assert (share.ratio, share.is_met) == (0.09, True)
    assert (slot_file.ratio, slot_file.is_met) == (1.125, False)
    assert (cost.ratio, cost.is_met) == (1.01, True)


def test_the_page_is_compared_with_what_is_allowed() -> None:
    """The paint and its bytes with limits, a long chat with a new one."""
    values = (
        (page.PAINT, CORRAL, 500.0),
        (page.BYTES, CORRAL, 500.0),
        (page.STREAM, CORRAL, 240.0),
        (page.STREAM, page.NEW, 200.0),
    )
    measurements = [Measurement(load, 0, system, value) for load, system, value in values]

    results = page.conclude(measurements)

    assert [(one.ratio, one.is_met) for one in results] == [(0.5, True), (1.25, False), (1.2, True)]


def test_a_session_reuses_all_but_a_fiftieth_of_each_turn_before() -> None:
    """The restart is the turn in the middle, which may take a tenth of llama-server's."""
    cached = {"corral": (0, 100, 198, 300), "llama-server": (0, 100, 0, 300)}
    times = {"corral": (900.0, 21.0, 50.0, 23.0), "llama-server": (900.0, 20.0, 1000.0, 20.0)}
    measurements = [
        Measurement(f"turn {turn + 1}", 0, system, times[system][turn], figures)
        for system in cached
        for turn in range(4)
        for figures in [{"prompt_tokens": 100 * (turn + 1), "cached_tokens": cached[system][turn]}]
    ]

    reused, turn, restart = sessions.conclude(measurements)
    alone = sessions.conclude(measurements[:4])

    assert (reused.ratio, reused.is_met) == (0.99, True)
    assert (turn.own, turn.ratio, turn.is_met) == (22.0, 1.1, True)
    assert (restart.ratio, restart.is_met) == (0.05, True)
    assert [result.is_met for result in alone] == [True, None, None]
    assert list(sessions.draw(measurements)) == ["turns"]
