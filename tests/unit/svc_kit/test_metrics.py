"""Names and values of metrics."""

from prometheus_client import CollectorRegistry, generate_latest

from svc_kit.metrics import EngineMetrics, HttpMetrics, ProcessMetrics, RpcMetrics


def samples(registry: CollectorRegistry) -> dict[str, float]:
    """Return the exported samples by name and labels."""
    lines = generate_latest(registry).decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def test_engine_counters_and_histograms_have_their_names() -> None:
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry)
    metrics.prompt_tokens.labels("m").inc(3)
    metrics.cached_tokens.labels("m", "live").inc(2)
    metrics.preemptions.labels("m").inc()
    metrics.moves.labels("m").inc(2)
    metrics.embedding_inputs.labels("m").inc(7)
    metrics.completion_tokens.labels("m").inc(4)
    metrics.finished.labels("m", "stop").inc()
    metrics.aborted.labels("m", "decode", "caller").inc()
    metrics.engine_restarts.inc()
    for histogram in (
        metrics.queue_time,
        metrics.time_to_first_token,
        metrics.inter_token_time,
    ):
        histogram.labels("m").observe(0.1)
    found = samples(registry)

    assert (
        found.items()
        >= {
            'corral_prompt_tokens_total{model="m"}': 3,
            'corral_cached_tokens_total{model="m",source="live"}': 2,
            'corral_preemptions_total{model="m"}': 1,
            'corral_moves_total{model="m"}': 2,
            'corral_embedding_inputs_total{model="m"}': 7,
            'corral_completion_tokens_total{model="m"}': 4,
            'corral_requests_finished_total{finish_reason="stop",model="m"}': 1,
            'corral_requests_aborted_total{cause="caller",model="m",phase="decode"}': 1,
            "corral_engine_restarts_total": 1,
            'corral_queue_seconds_count{model="m"}': 1,
            'corral_time_to_first_token_seconds_count{model="m"}': 1,
            'corral_inter_token_seconds_count{model="m"}': 1,
        }.items()
    )


def test_prompt_tokens_are_counted_per_sequence() -> None:
    """A prompt with four choices is counted four times."""
    registry = CollectorRegistry()
    EngineMetrics(registry)

    told = b"corral_prompt_tokens_total Prompt tokens of sequences that started."
    assert told in generate_latest(registry)


def test_all_metrics_can_be_registered_together() -> None:
    """Their names are unique, and the start time of the process is exported."""
    registry = CollectorRegistry()
    RpcMetrics(registry)
    HttpMetrics(registry)
    EngineMetrics(registry)
    ProcessMetrics(registry, service="inference", version="1.2.3")
    found = samples(registry)

    assert found['corral_build_info{service="inference",version="1.2.3"}'] == 1
    assert found["corral_start_time_seconds"] > 1.7e9
