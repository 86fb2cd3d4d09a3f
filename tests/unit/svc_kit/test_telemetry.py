"""Log lines and metric names."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from svc_kit.telemetry import (
    EngineMetrics,
    HttpMetrics,
    ProcessMetrics,
    RpcMetrics,
    configure_logging,
    project_var,
    request_id_var,
)


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before


def a_line(*, json_lines: bool, **extra: Any) -> str:
    """One log line inside a request."""
    stream = io.StringIO()
    configure_logging("tests", level="info", json=json_lines, stream=stream)
    request, project = request_id_var.set("req_1"), project_var.set("blue")
    try:
        logging.getLogger("kiln").info("fired %d pots", 3, **extra)
    finally:
        request_id_var.reset(request)
        project_var.reset(project)
    return stream.getvalue()


def test_a_json_line_carries_the_request() -> None:
    """Nobody passes the id along, and every line has it."""
    line = json.loads(a_line(json_lines=True, extra={"fields": {"slot": 4}}))

    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "service": "tests",
        "logger": "kiln",
        "message": "fired 3 pots",
        "request_id": "req_1",
        "project": "blue",
        "slot": 4,
    }


def test_a_text_line_is_for_a_person() -> None:
    """Time of day, service, level, message, then the same pairs."""
    line = a_line(json_lines=False, extra={"fields": {"slot": 4}})

    assert line[8:] == " tests info: fired 3 pots request_id=req_1 project=blue slot=4\n"


@pytest.mark.parametrize("json_lines", [True, False])
def test_an_exception_is_in_the_log(json_lines: bool) -> None:
    """There, and only there: callers never see it."""
    try:
        raise KeyError("cause")
    except KeyError:
        text = a_line(json_lines=json_lines, exc_info=True)

    assert "KeyError: 'cause'" in text


def test_a_message_of_several_lines_stays_one_json_line() -> None:
    """A value with a line end cannot forge a second entry."""
    stream = io.StringIO()
    configure_logging("tests", json=True, stream=stream)
    logging.getLogger("kiln").warning("a\n{}")

    assert stream.getvalue().count("\n") == 1


def test_text_is_for_terminals_and_json_for_the_rest() -> None:
    """Unless one is asked for."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream in (io.StringIO(), Terminal()):
        configure_logging("tests", stream=stream)
        logging.getLogger("kiln").warning("1")
        assert stream.getvalue().startswith("{") is not stream.isatty()


def test_configuring_twice_writes_once() -> None:
    """The later call replaces the earlier."""
    first, second = io.StringIO(), io.StringIO()
    configure_logging("tests", stream=first)
    configure_logging("tests", stream=second)
    logging.getLogger("kiln").warning("x")

    assert (first.getvalue(), second.getvalue().count("\n")) == ("", 1)


def test_libraries_do_not_flood_a_debug_log() -> None:
    """grpc and asyncio write several lines for each call there."""
    stream = io.StringIO()
    configure_logging("tests", level="debug", stream=stream)
    logging.getLogger("grpc._cython.cygrpc").debug("loop")
    logging.getLogger("kiln").debug("mine")

    assert "loop" not in stream.getvalue()
    assert "mine" in stream.getvalue()


def test_a_library_does_not_quote_a_remote_server() -> None:
    """Its errors have what the server said in them, which is nobody's but the caller's."""
    stream = io.StringIO()
    configure_logging("tests", level="debug", stream=stream)
    logging.getLogger("mcp.client.streamable_http").error("said")
    logging.getLogger("httpx2").info("HTTP Request")

    assert stream.getvalue() == ""


def test_an_unknown_level_is_refused() -> None:
    """A misspelled level must not silence the log."""
    with pytest.raises(ValueError, match="LOUD"):
        configure_logging("tests", level="loud", stream=io.StringIO())


# ---- metrics


def samples(registry: CollectorRegistry) -> dict[str, float]:
    """Every exported sample by name and labels."""
    lines = generate_latest(registry).decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def test_engine_counters_and_histograms_have_their_names() -> None:
    """One place names every metric; this is its list."""
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


def test_all_metrics_fit_into_one_registry() -> None:
    """No two of them share a name, and the process says since when it runs."""
    registry = CollectorRegistry()
    RpcMetrics(registry)
    HttpMetrics(registry)
    EngineMetrics(registry)
    ProcessMetrics(registry, service="inference", version="1.2.3")
    found = samples(registry)

    assert found['corral_build_info{service="inference",version="1.2.3"}'] == 1
    assert found["corral_start_time_seconds"] > 1.7e9
