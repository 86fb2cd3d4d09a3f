"""The lines of a batch's file: what is refused, under which code and number, and in what memory."""

import json
from typing import Any

import pytest

from control_svc.batches.lines import LineChecker, LineLimits, LineSplitter, NewLine
from control_svc.batches.model import MAX_PROBLEMS, BatchEndpoint, LineProblem

CHAT, COMPLETIONS = BatchEndpoint.CHAT_COMPLETIONS, BatchEndpoint.COMPLETIONS
EMBEDDINGS = BatchEndpoint.EMBEDDINGS


def a_line(custom_id: str = "a", **changed: Any) -> dict[str, Any]:
    """A request of a batch of chats."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT.value, "body": body, **changed}


def without(name: str) -> dict[str, Any]:
    """A request that lacks a field."""
    line = a_line()
    del line[name]
    return line


def checked(
    content: bytes, endpoint: BatchEndpoint = CHAT, limits: LineLimits | None = None
) -> tuple[LineChecker, list[NewLine]]:
    """A file that came in one piece."""
    bounds = limits or LineLimits()
    splitter, checker = LineSplitter(bounds.line_bytes), LineChecker(endpoint, bounds)
    good = checker.check(splitter.feed(content))
    good += checker.check(splitter.finish())
    checker.finish()
    return checker, good


def written(*lines: object) -> bytes:
    """A file of these lines; what is no text is written as JSON."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return "\n".join(texts).encode()


def only_problem(*lines: object, endpoint: BatchEndpoint = CHAT) -> LineProblem:
    """The one problem of a file."""
    checker, _ = checked(written(*lines), endpoint)
    (problem,) = checker.problems
    return problem


def test_good_lines_keep_their_bytes_and_their_numbers() -> None:
    """A byte order mark, blank lines and carriage returns are no part of a line."""
    first, second = json.dumps(a_line("a")), json.dumps(a_line("ä"))
    content = b"\xef\xbb\xbf" + f"{first}\r\n\n  \n{second}".encode()
    checker, good = checked(content)

    assert not checker.problems
    assert checker.model == "demo"
    assert [(line.number, line.request) for line in good] == [
        (1, first.encode()),
        (4, second.encode()),
    ]


@pytest.mark.parametrize(
    ("line", "code", "param"),
    [
        ("{", "invalid_json_line", None),
        ("[1]", "invalid_json_line", None),
        ('{"custom_id": "\\ud800"}', "invalid_json_line", None),
        (without("custom_id"), "missing_required_parameter", "custom_id"),
        (without("method"), "missing_required_parameter", "method"),
        (without("url"), "missing_required_parameter", "url"),
        (without("body"), "missing_required_parameter", "body"),
        (a_line(""), "missing_required_parameter", "custom_id"),
        ({**a_line(), "custom_id": 7}, "invalid_type", "custom_id"),
        (a_line("x" * 513), "string_above_max_length", "custom_id"),
        (a_line(method="GET"), "invalid_method", "method"),
        (a_line(url="/v1/embeddings"), "invalid_url", "url"),
        (a_line(url="/v1/responses"), "invalid_url", "url"),
        (a_line(body=[]), "invalid_type", "body"),
        (a_line(body={"messages": []}), "missing_required_parameter", "body.model"),
        (a_line(body={"model": 1}), "invalid_type", "body.model"),
    ],
)
def test_a_bad_line_is_told_by_its_number(line: object, code: str, param: str | None) -> None:
    """OpenAI's code, the field, and the number of the line."""
    problem = only_problem(a_line("first"), line)

    assert (problem.code, problem.param, problem.line) == (code, param, 2)


def test_a_custom_id_stands_once() -> None:
    """The second one of two is the wrong one."""
    problem = only_problem(a_line("a"), a_line("b"), a_line("a"))

    assert (problem.code, problem.line) == ("duplicate_custom_id", 3)


def test_all_lines_name_one_model() -> None:
    """The first line's counts."""
    problem = only_problem(a_line("a"), a_line("b", body={"model": "other"}))

    assert (problem.code, problem.param, problem.line) == ("mismatched_model", "body.model", 2)


@pytest.mark.parametrize("model", ["de\0mo", "m" * 256])
def test_a_model_has_a_name_that_a_database_can_keep(model: str) -> None:
    """It stands in the batch's row, and in the problem of every line that names another."""
    problem = only_problem(a_line("a", body={"model": model}))

    assert (problem.code, problem.param, problem.line) == ("invalid_value", "body.model", 1)
    assert len(problem.message) < 200


@pytest.mark.parametrize("content", [b"", b"\n", b" \n\r\n"])
def test_a_file_without_requests_is_empty(content: bytes) -> None:
    """Blank lines are no requests."""
    checker, _ = checked(content)

    assert [problem.code for problem in checker.problems] == ["empty_file"]


def test_too_many_lines_are_told_once() -> None:
    """What comes after the limit is not even looked at."""
    lines = [a_line(str(number)) for number in range(4)]
    checker, good = checked(written(*lines, "{"), limits=LineLimits(lines=3))

    assert [(problem.code, problem.line) for problem in checker.problems] == [
        ("too_many_lines", None)
    ]
    assert len(good) <= 4


def test_too_many_problems_end_the_check() -> None:
    """The first hundred are told."""
    checker, _ = checked(written(*["{"] * (MAX_PROBLEMS + 50)))

    assert [problem.line for problem in checker.problems] == list(range(1, MAX_PROBLEMS + 1))


def test_too_many_inputs_of_embeddings_are_refused() -> None:
    """Over all lines; a list of tokens is one input."""
    inputs: list[object] = ["a text", ["one", "two"], [1, 2, 3], [[1], [2]]]
    lines = [
        a_line(str(number), url=EMBEDDINGS.value, body={"model": "demo", "input": given})
        for number, given in enumerate(inputs)
    ]
    exact, _ = checked(written(*lines), EMBEDDINGS, LineLimits(embedding_inputs=6))
    above, _ = checked(written(*lines), EMBEDDINGS, LineLimits(embedding_inputs=5))

    assert not exact.problems
    assert [problem.code for problem in above.problems] == ["too_many_inputs"]


def test_a_line_over_the_limit_is_not_kept() -> None:
    """Its bytes are dropped while they come; the lines after it are read as ever."""
    splitter = LineSplitter(line_bytes=100)
    lines = [*splitter.feed(b"x" * 90), *splitter.feed(b"x" * 90)]
    held = sum(map(len, splitter._rest))
    lines += [*splitter.feed(b"x\nnext\n"), *splitter.finish()]

    assert held <= 100
    assert [(line.number, line.text) for line in lines] == [(1, None), (2, b"next")]


def test_a_line_over_the_limit_is_a_problem() -> None:
    """With the limit in its text."""
    checker, _ = checked(written(a_line("x" * 200)), limits=LineLimits(line_bytes=100))

    (problem,) = checker.problems
    assert (problem.code, problem.line) == ("line_too_long", 1)
    assert "100" in problem.message


def test_lines_that_begin_alike_have_orders_that_do() -> None:
    """Whatever stands between them in the file."""
    systems = ["You are a pirate." * 30, "You are a robot." * 30]
    lines = [
        a_line(
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
    _, good = checked(written(*lines))
    ordered = [line.number % 2 for line in sorted(good, key=lambda line: line.order)]

    assert ordered in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])


def test_a_body_nested_too_deeply_is_a_matter_of_its_answer() -> None:
    """The line is a request; what is wrong with its body is told in the error file."""
    deep = "[" * 500 + "]" * 500
    line = json.dumps(a_line(body={"model": "m", "messages": "DEEP"})).replace('"DEEP"', deep)
    checker, good = checked(line.encode())

    assert not checker.problems
    assert [line.order for line in good] == [b""]
