"""Validation of the lines of an input file: codes, line numbers, limits and memory."""

import json
from typing import Any

import pytest

from control_svc.batches.lines import LineChecker, LineLimits, LineSplitter, PendingLine
from control_svc.batches.model import MAX_PROBLEMS, BatchEndpoint

CHAT, COMPLETIONS = BatchEndpoint.CHAT_COMPLETIONS, BatchEndpoint.COMPLETIONS
EMBEDDINGS = BatchEndpoint.EMBEDDINGS


def make_line(custom_id: str = "a", **changes: Any) -> dict[str, Any]:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT.value, "body": body, **changes}


def line_without(name: str) -> dict[str, Any]:
    return {key: value for key, value in make_line().items() if key != name}


def check(
    content: bytes, endpoint: BatchEndpoint = CHAT, limits: LineLimits | None = None
) -> tuple[LineChecker, list[PendingLine]]:
    """Validate a file. Returns the checker and the valid lines."""
    limits = limits or LineLimits()
    splitter, checker = LineSplitter(limits.line_bytes), LineChecker(endpoint, limits)
    valid = checker.check(splitter.feed(content))
    valid += checker.check(splitter.flush())
    checker.finish()
    return checker, valid


def encode(*lines: object) -> bytes:
    """Encode a file. Lines that are not strings are encoded as JSON."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return "\n".join(texts).encode()


def test_valid_lines_are_stored_unchanged_with_their_numbers() -> None:
    """A byte order mark, blank lines and carriage returns are skipped."""
    first, second = json.dumps(make_line("a")), json.dumps(make_line("ä"))
    content = b"\xef\xbb\xbf" + f"{first}\r\n\n  \n{second}".encode()
    checker, valid = check(content)

    assert not checker.problems
    assert checker.model == "demo"
    assert [(line.number, line.request) for line in valid] == [
        (1, first.encode()),
        (4, second.encode()),
    ]


@pytest.mark.parametrize(
    ("line", "code", "param"),
    [
        ("{", "invalid_json_line", None),
        ("[1]", "invalid_json_line", None),
        ('{"custom_id": "\\ud800"}', "invalid_json_line", None),
        (line_without("custom_id"), "missing_required_parameter", "custom_id"),
        (line_without("method"), "missing_required_parameter", "method"),
        (line_without("url"), "missing_required_parameter", "url"),
        (line_without("body"), "missing_required_parameter", "body"),
        (make_line(""), "missing_required_parameter", "custom_id"),
        ({**make_line(), "custom_id": 7}, "invalid_type", "custom_id"),
        (make_line("x" * 513), "string_above_max_length", "custom_id"),
        (make_line(method="GET"), "invalid_method", "method"),
        (make_line(url="/v1/embeddings"), "invalid_url", "url"),
        (make_line(url="/v1/responses"), "invalid_url", "url"),
        (make_line(body=[]), "invalid_type", "body"),
        (make_line(body={"messages": []}), "missing_required_parameter", "body.model"),
        (make_line(body={"model": 1}), "invalid_type", "body.model"),
        (make_line(body={"model": "other"}), "mismatched_model", "body.model"),
        (make_line(body={"model": "de\0mo"}), "invalid_value", "body.model"),
        (make_line(body={"model": "m" * 256}), "invalid_value", "body.model"),
        (make_line("first"), "duplicate_custom_id", "custom_id"),
    ],
)
def test_an_invalid_line_has_a_code_a_field_and_a_number(
    line: object, code: str, param: str | None
) -> None:
    """The code is that of OpenAI."""
    checker, _ = check(encode(make_line("first"), line))
    (problem,) = checker.problems

    assert (problem.code, problem.param, problem.line) == (code, param, 2)
    assert len(problem.message) < 200


@pytest.mark.parametrize("content", [b"", b"\n", b" \n\r\n"])
def test_a_file_of_blank_lines_is_empty(content: bytes) -> None:
    """Blank lines are not requests."""
    checker, _ = check(content)

    assert [problem.code for problem in checker.problems] == ["empty_file"]


def test_too_many_lines_are_one_problem() -> None:
    """Lines after the limit are not validated."""
    lines = [make_line(str(number)) for number in range(4)]
    checker, valid = check(encode(*lines, "{"), limits=LineLimits(lines=3))

    assert [(problem.code, problem.line) for problem in checker.problems] == [
        ("too_many_lines", None)
    ]
    assert len(valid) <= 4


def test_validation_stops_after_too_many_problems() -> None:
    """Only the first ones are reported."""
    checker, _ = check(encode(*["{"] * (MAX_PROBLEMS + 50)))

    assert [problem.line for problem in checker.problems] == list(range(1, MAX_PROBLEMS + 1))


def test_the_total_number_of_embedding_inputs_is_limited() -> None:
    """A list of token ids is one input."""
    inputs: list[object] = ["a text", ["one", "two"], [1, 2, 3], [[1], [2]]]
    lines = [
        make_line(str(number), url=EMBEDDINGS.value, body={"model": "demo", "input": value})
        for number, value in enumerate(inputs)
    ]
    exact, _ = check(encode(*lines), EMBEDDINGS, LineLimits(embedding_inputs=6))
    above, _ = check(encode(*lines), EMBEDDINGS, LineLimits(embedding_inputs=5))

    assert not exact.problems
    assert [problem.code for problem in above.problems] == ["too_many_inputs"]


def test_a_line_over_the_limit_is_not_buffered() -> None:
    """Later lines are not affected."""
    splitter = LineSplitter(line_bytes=100)
    lines = [*splitter.feed(b"x" * 90), *splitter.feed(b"x" * 90)]
    buffered = sum(map(len, splitter._buffer))
    lines += [*splitter.feed(b"x\nnext\n"), *splitter.flush()]

    assert buffered <= 100
    assert [(line.number, line.text) for line in lines] == [(1, None), (2, b"next")]


def test_a_line_over_the_limit_is_a_problem() -> None:
    checker, _ = check(encode(make_line("x" * 200)), limits=LineLimits(line_bytes=100))

    (problem,) = checker.problems
    assert (problem.code, problem.line) == ("line_too_long", 1)
    assert "100" in problem.message


def test_sort_keys_group_lines_with_a_common_prefix() -> None:
    """Independently of their order in the file."""
    systems = ["You are a pirate." * 30, "You are a robot." * 30]
    lines = [
        make_line(
            str(number),
            body={
                "model": "demo",
                "messages": [
                    {"role": "system", "content": systems[number % 2]},
                    {"role": "user", "content": str(number)},
                ],
            },
        )
        for number in range(6)
    ]
    _, valid = check(encode(*lines))
    ordered = [line.number % 2 for line in sorted(valid, key=lambda line: line.sort_key)]

    assert ordered in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])


def test_a_deeply_nested_body_is_valid() -> None:
    """The request fails when it runs."""
    deep = "[" * 500 + "]" * 500
    line = json.dumps(make_line(body={"model": "m", "messages": "DEEP"})).replace('"DEEP"', deep)
    checker, valid = check(line.encode())

    assert not checker.problems
    assert [line.sort_key for line in valid] == [b""]
