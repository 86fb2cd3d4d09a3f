"""Formats and configuration of logs."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from svc_kit import logs
from svc_kit.auth.keys import create_key
from svc_kit.errors import Draining, UpstreamUnavailable


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before


def format_line(*, json_lines: bool, **extra: Any) -> str:
    stream = io.StringIO()
    logs.configure_logging("tests", level="info", json=json_lines, stream=stream)
    request, project = logs.request_id_var.set("req_1"), logs.project_var.set("blue")
    try:
        logging.getLogger("kiln").info("fired %d pots", 3, **extra)
    finally:
        logs.request_id_var.reset(request)
        logs.project_var.reset(project)
    return stream.getvalue()


def test_a_json_line_has_the_request_id() -> None:
    line = json.loads(format_line(json_lines=True, extra={"fields": {"slot": 4}}))

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


def test_the_text_format() -> None:
    """Time, service, level, message, then the same fields."""
    line = format_line(json_lines=False, extra={"fields": {"slot": 4}})

    assert line[8:] == " tests info: fired 3 pots request_id=req_1 project=blue slot=4\n"


def test_escape_sequences_do_not_reach_a_terminal() -> None:
    """Of messages and fields, which may have texts of callers."""
    line = format_line(json_lines=False, extra={"fields": {"model": "\x1b[2J\x9b1m\x00"}})

    assert [character for character in line if not character.isprintable()] == ["\n"]
    assert "2J" in line


@pytest.mark.parametrize("json_lines", [True, False])
def test_an_exception_is_logged(json_lines: bool) -> None:
    try:
        raise KeyError("cause")
    except KeyError:
        text = format_line(json_lines=json_lines, exc_info=True)

    assert "KeyError: 'cause'" in text


def test_a_message_with_newlines_is_one_json_line() -> None:
    """It cannot forge a second entry."""
    stream = io.StringIO()
    logs.configure_logging("tests", json=True, stream=stream)
    logging.getLogger("kiln").warning("a\n{}")

    assert stream.getvalue().count("\n") == 1


def test_the_default_format_is_text_on_terminals_and_json_otherwise() -> None:
    """Unless a format is configured."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream in (io.StringIO(), Terminal()):
        logs.configure_logging("tests", stream=stream)
        logging.getLogger("kiln").warning("1")
        assert stream.getvalue().startswith("{") is not stream.isatty()


def test_configuring_twice_does_not_duplicate_lines() -> None:
    """The second call replaces the handler."""
    first, second = io.StringIO(), io.StringIO()
    logs.configure_logging("tests", stream=first)
    logs.configure_logging("tests", stream=second)
    logging.getLogger("kiln").warning("x")

    assert (first.getvalue(), second.getvalue().count("\n")) == ("", 1)


def test_debug_messages_of_libraries_are_suppressed() -> None:
    """grpc and asyncio log several lines per call."""
    stream = io.StringIO()
    logs.configure_logging("tests", level="debug", stream=stream)
    logging.getLogger("grpc._cython.cygrpc").debug("loop")
    logging.getLogger("kiln").debug("mine")

    assert "loop" not in stream.getvalue()
    assert "mine" in stream.getvalue()


def test_messages_of_remote_servers_are_not_logged_by_libraries() -> None:
    """They may contain data of the caller."""
    stream = io.StringIO()
    logs.configure_logging("tests", level="debug", stream=stream)
    logging.getLogger("mcp.client.streamable_http").error("said")
    logging.getLogger("httpx2").info("HTTP Request")

    assert stream.getvalue() == ""


def test_an_unknown_level_is_refused() -> None:
    """Such as a misspelled one."""
    with pytest.raises(ValueError, match="LOUD"):
        logs.configure_logging("tests", level="loud", stream=io.StringIO())


def test_an_orderly_stop_of_another_service_is_no_warning() -> None:
    """For a minute after it was announced; an outage without announcement is one at once."""
    now = 0.0
    level = logs.OutageLevel(lambda: now)
    away = UpstreamUnavailable(service="control")
    levels = [level(away), level(Draining()), level(away)]
    now = 59.0
    levels.append(level(away))
    now = 61.0
    levels.append(level(away))

    assert levels == [logging.WARNING, *[logging.INFO] * 3, logging.WARNING]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("HTTPS://h/m.gguf?sig=SECRET", "HTTPS://h/m.gguf"),
        ("http://h/my model.gguf?a=b SECRET", "http://h/my model.gguf"),
        (
            '{"a": "http://h/x?b=\\"S E", "c": "http://i", "d?": 1}',
            '{"a": "http://h/x", "c": "http://i", "d?": 1}',
        ),
        ("hf:o/r is it?", "hf:o/r is it?"),
        pytest.param("http://" * 200_000, "http://" * 200_000, id="minutes in quadratic time"),
    ],
)
def test_queries_of_urls_are_hidden(text: str, shown: str) -> None:
    """To the end of the text or of a string of JSON."""
    assert logs.hide_queries(text) == shown


class Flood:
    """A handler with a clock, and the lines that it wrote."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stream = io.StringIO()
        self.handler = logs.BoundedHandler(self.stream, lambda: self.now)

    def log(self, num: int, *, name: str = "uvicorn.error", line: int = 1, key: str = "") -> None:
        record = logging.LogRecord(name, logging.INFO, "impl.py", line, "refused", (), None)
        record.fields = {"key": key} if key else {}
        for _ in range(num):
            self.handler.handle(record)

    def written(self) -> list[str]:
        """The lines since the last call."""
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return text.splitlines()


def test_a_place_logs_a_limited_number_of_lines_and_says_how_many_are_missing() -> None:
    """At once and in the long run; other places are not affected."""
    flood = Flood()
    flood.log(1000)
    flood.log(3, line=2)
    first = flood.written()
    flood.now = 5.0
    flood.log(1000)
    later = flood.written()
    flood.now = 10.0
    flood.log(1, line=2)

    notice = "too many lines, some are left out: refused"
    assert first == ["refused"] * logs.BURST_LINES + [notice] + ["refused"] * 3
    assert later == ["refused"] * int(5 * logs.LINES_PER_S)
    num_left_out = 2000 - logs.BURST_LINES - len(later)
    assert flood.written() == ["refused", f"{num_left_out} lines of impl.py:1 were left out"]


def test_what_was_left_out_is_said_at_the_end() -> None:
    """Also if nothing was logged since."""
    flood = Flood()
    flood.log(logs.BURST_LINES + 7)
    flood.handler.close()

    assert flood.written()[-1] == "7 lines of impl.py:1 were left out"


@pytest.mark.parametrize(
    ("key", "num"), [("key_1", 5000), (logs.KEYLESS_ID, 10 * logs.BURST_LINES)]
)
def test_lines_of_callers_who_are_accepted(key: str, num: int) -> None:
    """With a key all of them; without one more than of callers who are refused."""
    flood = Flood()
    flood.log(5000, key=key)

    assert flood.written().count("refused") == num


@pytest.mark.parametrize("json_lines", [True, False])
def test_lines_have_a_limited_length(json_lines: bool) -> None:
    """Message, fields and traceback are cut; the end of a traceback, its cause, stays."""
    stream = io.StringIO()
    logs.configure_logging("tests", json=json_lines, stream=stream)
    try:
        raise KeyError("x" * 50_000 + " the cause")
    except KeyError:
        logging.getLogger("kiln").exception("y" * 50_000, extra={"fields": {"path": "z" * 50_000}})

    line = stream.getvalue()
    assert "the cause" in line
    assert "(50000 characters)" in line
    assert len(line) < 7 * logs.MAX_TEXT


@pytest.mark.parametrize(("level", "written"), [("info", ""), ("debug", "Invalid encoding on 9")])
def test_bytes_of_clients_are_not_logged(level: str, written: str) -> None:
    """gRPC logs headers that are not UTF-8 as errors; one of them is the key."""
    stream = io.StringIO()
    logs.configure_logging("tests", level=level, json=True, stream=stream)
    logging.getLogger("grpc._cython.cygrpc").error("Invalid encoding on %s", b"sk-secret")

    assert "secret" not in stream.getvalue()
    assert written in stream.getvalue()
    assert bool(written) == bool(stream.getvalue())


@pytest.mark.parametrize("json_lines", [True, False])
def test_no_key_is_logged_wherever_a_caller_puts_it(json_lines: bool) -> None:
    """In the path of an unknown route, as the id of a request, in an error."""
    stream, key = io.StringIO(), create_key()
    logs.configure_logging("tests", json=json_lines, stream=stream)
    try:
        raise ValueError(key)
    except ValueError:
        fields = {"path": f"/v1/nosuch/{key}", "caller_request_id": key}
        logging.getLogger().exception("refused %s", key, extra={"fields": fields})

    assert key not in stream.getvalue()
    assert stream.getvalue().count("sk-corral-…") == 4
