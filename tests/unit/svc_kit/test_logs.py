"""Log lines."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from svc_kit.logs import configure_logging, project_var, request_id_var


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
