"""Turns of content blocks become messages of the typed conversation."""

import base64
from typing import Any

import pytest
from corral.inference.v1 import chat_pb2, inference_service_pb2
from google.protobuf.json_format import MessageToDict

from dialects.anthropic.message_request import (
    MessageRequest,
    message_request,
    parse_message,
    parse_token_count,
    token_count_request,
)
from dialects.anthropic.signatures import read_signature, write_signature
from dialects.shared.media import MAX_FILE_BYTES
from dialects.shared.parameters import ParameterReport, parameter_report
from svc_kit.errors import DomainError, InvalidField, TooLong, UnsupportedValue
from tests.support.pictures import png

BASE: dict[str, Any] = {"model": "m", "max_tokens": 8}
LOOK = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"a": [1]}}
GO = {"type": "tool_use", "id": "toolu_2", "name": "go", "input": {}}


def text(value: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **fields}


def result(call: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, **fields}


def user(*content: Any) -> dict[str, Any]:
    """A user's turn: blocks, or one text."""
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else content}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def convert(*messages: Any, **fields: Any) -> MessageRequest:
    turns = [{**turn, "content": listed(turn["content"])} for turn in messages]
    return message_request(parse_message(BASE | {"messages": turns} | fields))


SCHEMA = {"type": "object"}
SEARCH = {"name": "search", "input_schema": SCHEMA}
DEFERRED = [
    {"name": name, "input_schema": SCHEMA, "defer_loading": True} for name in ("look", "go", "run")
]


def reference(name: str) -> dict[str, Any]:
    return {"type": "tool_reference", "tool_name": name}


@pytest.mark.parametrize(
    ("messages", "fields", "shown"),
    [
        ([user("hi")], {}, ["search"]),
        ([user("hi")], {"tool_choice": {"type": "tool", "name": "go"}}, ["search", "go"]),
        ([user("hi"), assistant(LOOK), user(result("toolu_1"))], {}, ["search", "look"]),
        (
            [
                user("hi"),
                assistant(LOOK | {"name": "search"}),
                user(result("toolu_1", content=[reference("run"), reference("go")])),
            ],
            {},
            ["search", "go", "run"],
        ),
    ],
)
def test_a_deferred_tool_is_shown_once_it_is_called_for(
    messages: list[Any], fields: dict[str, Any], shown: list[str]
) -> None:
    request = convert(*messages, tools=[SEARCH, *DEFERRED], **fields)
    turns = [turn | {"content": listed(turn["content"])} for turn in messages]
    body = BASE | {"messages": turns, "tools": [SEARCH, *DEFERRED], **fields}
    counted, _ = token_count_request(parse_token_count(body))

    assert [tool.name for tool in request.proto.conversation.tools] == shown
    assert counted.conversation == request.proto.conversation


def test_a_reference_is_read_as_the_name_of_its_tool() -> None:
    """The tool itself is among the tools of the prompt."""
    found = user(result("toolu_1", content=[text("found:"), reference("go")]))
    request = convert(user("hi"), assistant(LOOK), found, tools=[SEARCH, *DEFERRED])

    assert [part.text for part in request.proto.conversation.messages[-1].parts] == ["found:", "go"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"tools": DEFERRED}, "tools"),
        ({"tools": [SEARCH, {"name": "go", "defer_loading": True}]}, "tools[1].input_schema"),
        ({"tools": [SEARCH | {"defer_loading": "yes"}]}, "tools[0].defer_loading"),
        ({"tools": [SEARCH]}, "messages[2].content[0].content[0].tool_name"),
        ({}, "messages[2].content[0].content[0].tool_name"),
    ],
)
def test_what_cannot_be_called_for_is_refused(fields: dict[str, Any], path: str) -> None:
    """Nothing but deferred tools, incomplete ones, and references to tools that are not there."""
    found = user(result("toolu_1", content=[reference("go")]))
    with pytest.raises(DomainError) as refused:
        convert(user("hi"), assistant(LOOK), found, **fields)

    assert refused.value.field == path


@pytest.mark.parametrize("name", ["metadata", "session_id", "ttl", "user_profile_id"])
def test_labels_and_what_the_operator_decides_are_ignored_and_named(name: str) -> None:
    """Of messages and of token counts, as in OpenAI's APIs."""
    report = ParameterReport()
    token = parameter_report.set(report)
    fields = {**BASE, "messages": [{"role": "user", "content": "hi"}]}
    labelled = message_request(parse_message({**fields, name: "x"})).proto
    names, same = report.names, message_request(parse_message(fields)).proto
    counted, _ = token_count_request(parse_token_count({**fields, name: "x"}))
    parameter_report.reset(token)

    assert (names, report.names) == ((name,), (name,))
    assert labelled == same
    assert counted.conversation == same.conversation


@pytest.mark.parametrize("display", [None, "summarized", "full", "omitted", "updates", "x" * 99])
def test_every_display_of_thoughts_is_accepted(display: str | None) -> None:
    """Claude Code has new ones; what is not known shows the whole text, and is named."""
    report = ParameterReport()
    token = parameter_report.set(report)
    body = parse_message(
        BASE | {"messages": [user("hi")], "thinking": {"type": "enabled", "display": display}}
    )
    message_request(body)
    parameter_report.reset(token)

    assert body.shows_thinking == (display != "omitted")
    assert report.names == (("thinking.display",) if display in ("updates", "x" * 99) else ())


def listed(content: Any) -> Any:
    """Blocks as JSON has them."""
    return content if isinstance(content, str) else list(content)


def said(request: MessageRequest) -> list[Any]:
    """The messages: role, then texts, calls and the rest of what is set."""
    found = []
    for message in request.proto.conversation.messages:
        fields = MessageToDict(message)
        texts = [part.get("text") for part in fields.pop("parts", [])]
        role = fields.pop("role").removeprefix("ROLE_").lower()
        found.append((role, texts, *fields.values()))
    return found


CALL = {"id": "toolu_1", "name": "look", "argumentsJson": '{"a":[1]}'}
CASES: list[Any] = [
    pytest.param([user("hi")], {}, [("user", ["hi"])], id="text"),
    pytest.param(
        [user("hi")],
        {"system": [text("a"), text("b")]},
        [("system", ["a", "b"]), ("user", ["hi"])],
        id="blocks of the system prompt",
    ),
    pytest.param(
        [{"role": "system", "content": "b"}, user("hi"), {"role": "system", "content": "c"}],
        {"system": "a"},
        [("system", ["a", "b"]), ("user", ["hi", "c"])],
        id="system turns: first ones join the prompt, later ones the user's turn",
    ),
    pytest.param(
        [user("a"), user(text("b", citations=None)), assistant(text("c")), assistant(text("d"))],
        {},
        [("user", ["a", "b"]), ("assistant", ["c", "d"])],
        id="neighbours are joined",
    ),
    pytest.param(
        [
            user("q"),
            assistant(text("t"), LOOK, GO),
            user(text("u"), result("toolu_1"), result("toolu_2")),
        ],
        {},
        [
            ("user", ["q"]),
            (
                "assistant",
                ["t"],
                [CALL, {"id": "toolu_2", "name": "go", "argumentsJson": "{}"}],
            ),
            ("tool", [""], "toolu_1"),
            ("tool", [""], "toolu_2"),
            ("user", ["u"]),
        ],
        id="results come before the rest of the turn, and their content may be absent",
    ),
    pytest.param(
        [
            user("q"),
            assistant(LOOK),
            user(result("toolu_1", content=[text("a"), text("b")], is_error=True)),
        ],
        {},
        [
            ("user", ["q"]),
            ("assistant", [], [CALL]),
            ("tool", ["Error:", "a", "b"], "toolu_1"),
        ],
        id="a failed call says so",
    ),
    pytest.param(
        [
            user("q"),
            assistant(
                {"type": "thinking", "thinking": "I ", "signature": "of another server"},
                {"type": "thinking", "thinking": "see", "signature": None},
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "thinking", "thinking": "", "signature": write_signature(".")},
                {"type": "redacted_thinking", "data": "foreign"},
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
            ),
        ],
        {},
        [("user", ["q"]), ("assistant", [], "I see.")],
        id="thoughts with any signature, and blocks of Anthropic's servers",
    ),
    pytest.param(
        [user("q"), assistant(), user("r")],
        {},
        [("user", ["q"]), ("assistant", [""]), ("user", ["r"])],
        id="an empty answer comes back",
    ),
    pytest.param(
        [
            user(
                {"type": "search_result", "source": "s", "title": "t", "content": [text("c")]},
                {
                    "type": "document",
                    "context": "from a book",
                    "source": {"type": "content", "content": [text("x"), text("y")]},
                },
                {"type": "document", "source": {"type": "content", "content": "z"}},
            )
        ],
        {},
        [("user", ["t\ns\nc", "from a book", "x", "y", "z"])],
        id="search results and documents of texts",
    ),
]


@pytest.mark.parametrize(("messages", "fields", "expected"), CASES)
def test_turns_become_messages(
    messages: list[Any], fields: dict[str, Any], expected: list[Any]
) -> None:
    """Whatever a client sends back is accepted."""
    assert said(convert(*messages, **fields)) == expected


def test_pictures_and_documents_become_media() -> None:
    """In the user's turn and in results."""
    picture = png(2, 2)
    image = {"type": "base64", "media_type": "image/png", "data": encode(picture)}
    block = {"type": "image", "source": image, "cache_control": {"type": "ephemeral"}}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": encode(b"%PDF-")}
    body = BASE | {
        "messages": [
            user("q"),
            assistant(LOOK),
            {
                "role": "user",
                "content": [
                    result("toolu_1", content=[block]),
                    {"type": "image", "source": {"type": "url", "url": "https://a.test/b.png"}},
                    {"type": "document", "title": "T", "source": pdf},
                    {"type": "document", "source": {"type": "text", "data": "words"}},
                ],
            },
        ]
    }
    request = message_request(parse_message(body))

    messages = request.proto.conversation.messages
    assert messages[2].parts[0].image == chat_pb2.Media(data=picture, media_type="image/png")
    assert [MessageToDict(part) for part in messages[3].parts] == [
        {"image": {"url": "https://a.test/b.png"}},
        {
            "document": {
                "data": encode(b"%PDF-"),
                "mediaType": "application/pdf",
                "filename": "T",
            }
        },
        {"document": {"data": encode(b"words"), "mediaType": "text/plain"}},
    ]
    assert request.paths[2:] == [
        ["messages[2].content[0]", "messages[2].content[0].content[0]"],
        ["messages[2]", *(f"messages[2].content[{number}]" for number in (1, 2, 3))],
    ]


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


BAD: list[Any] = [
    pytest.param(
        user({"type": "image", "source": {"type": "file", "file_id": "f"}}),
        UnsupportedValue(field="messages[0].content[0].source.type", value="file"),
        id="a file of Anthropic's",
    ),
    pytest.param(
        user({"type": "document", "source": {"type": "file", "file_id": "f"}}),
        UnsupportedValue(field="messages[0].content[0].source.type", value="file"),
        id="a document of Anthropic's",
    ),
    pytest.param(
        user({"type": "container_upload", "file_id": "f"}),
        UnsupportedValue(field="messages[0].content[0].type", value="container_upload"),
        id="an unknown kind",
    ),
    pytest.param(
        user(LOOK),
        InvalidField(
            field="messages[0].content[0]", problem="it is only allowed in assistant messages"
        ),
        id="a call by the user",
    ),
    pytest.param(
        assistant(result("c")),
        InvalidField(field="messages[0].content[0]", problem="it is only allowed in user messages"),
        id="a result by the assistant",
    ),
    pytest.param(
        user(
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "?"},
            }
        ),
        InvalidField(field="messages[0].content[0].source.data", problem="it is not valid base64"),
        id="broken base64",
    ),
]


@pytest.mark.parametrize(("message", "error"), BAD)
def test_what_cannot_be_read_is_refused(message: Any, error: DomainError) -> None:
    with pytest.raises(type(error)) as caught:
        convert(message)
    assert caught.value == error


def test_a_file_that_is_too_large_is_refused() -> None:
    source = {"type": "text", "data": "x" * (MAX_FILE_BYTES + 1)}
    with pytest.raises(TooLong) as caught:
        convert(user({"type": "document", "source": source}))
    assert caught.value.field == "messages[0].content[0]"


OPTIONS: list[Any] = [
    ({}, {"enableThinking": False}),
    (
        {"thinking": {"type": "enabled", "budget_tokens": 9}},
        {"enableThinking": True, "budget": 9},
    ),
    (
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
        {"enableThinking": True, "reasoningEffort": "REASONING_EFFORT_HIGH"},
    ),
    ({"thinking": {"type": "disabled", "budget_tokens": 9}}, {"enableThinking": False}),
    (
        {"chat_template_kwargs": {"enable_thinking": True, "a": 1}},
        {"enableThinking": True, "kwargsJson": '{"a":1}'},
    ),
]


@pytest.mark.parametrize(("fields", "expected"), OPTIONS)
def test_thinking_is_off_unless_asked_for(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """A client that did not ask reads the first block as text."""
    proto = convert(user("hi"), **fields).proto
    template = MessageToDict(proto.conversation.template)
    if proto.options.HasField("thinking_budget_tokens"):
        template["budget"] = proto.options.thinking_budget_tokens
    assert template == expected


def test_two_fields_about_thinking_must_agree() -> None:
    """Neither is preferred."""
    fields = {"thinking": {"type": "adaptive"}, "chat_template_kwargs": {"enable_thinking": False}}
    with pytest.raises(InvalidField) as caught:
        convert(user("hi"), **fields)
    assert caught.value.field == "chat_template_kwargs.enable_thinking"


TOOLS: list[Any] = [
    {"name": "a", "description": "d", "input_schema": {"type": "object"}, "strict": True},
    {"name": "b", "input_schema": {}, "type": "custom"},
]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, None),
        ({"type": "auto"}, {"mode": "MODE_AUTO"}),
        ({"type": "any"}, {"mode": "MODE_REQUIRED"}),
        ({"type": "none"}, {"mode": "MODE_NONE"}),
        ({"type": "tool", "name": "b"}, {"mode": "MODE_REQUIRED", "allowedNames": ["b"]}),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"mode": "MODE_AUTO", "parallel": False},
        ),
    ],
)
def test_tools_and_their_choice_are_converted(choice: Any, expected: Any) -> None:
    proto = convert(user("hi"), tools=TOOLS, tool_choice=choice).proto.conversation

    assert [(t.name, t.description, t.parameters_json, t.strict) for t in proto.tools] == [
        ("a", "d", '{"type":"object"}', True),
        ("b", "", "{}", False),
    ]
    found = MessageToDict(proto.tool_choice) if proto.HasField("tool_choice") else None
    assert found == expected


def test_options_are_converted() -> None:
    """What is not given has the model's default."""
    schema = {"type": "json_schema", "schema": {"type": "object"}}
    options = convert(
        user("hi"),
        temperature=0.5,
        top_k=4,
        stop_sequences=["END"],
        output_config={"format": schema},
    ).proto.options
    plain = convert(user("hi")).proto.options
    older = convert(user("hi"), output_format=schema).proto.options

    assert MessageToDict(options) == {
        "sampling": {"temperature": 0.5, "topK": 4},
        "stopping": {"maxTokens": 8, "stop": ["END"]},
        "constraint": {"jsonSchema": '{"type":"object"}'},
    }
    assert MessageToDict(plain) == {"sampling": {}, "stopping": {"maxTokens": 8}}
    assert older.constraint == options.constraint
    assert not any(plain.sampling.HasField(name) for name in ("temperature", "top_p", "top_k"))


async def test_a_token_count_has_the_same_conversation() -> None:
    """With the prompt's system and tools."""
    fields = {"model": "m", "system": "s", "messages": [user("hi")], "tools": TOOLS}
    count, _ = token_count_request(parse_token_count(fields))

    request = message_request(parse_message(fields | BASE)).proto
    assert count == inference_service_pb2.CountTokensRequest(
        model="m", conversation=request.conversation
    )


@pytest.mark.parametrize(
    "signature", [None, "", "foreign", "corral1.x", "corral1.eJw", "corral1.é"]
)
def test_foreign_signatures_hide_nothing(signature: str | None) -> None:
    """Nor do damaged ones."""
    assert read_signature(signature) == ""


def test_a_long_session_name_is_shortened() -> None:
    """The proto takes 256 bytes."""
    body = parse_message(BASE | {"messages": [user("hi")]})
    names = [message_request(body, name).proto.options.cache.affinity for name in ("s", "s" * 300)]

    assert (names[0], len(names[1])) == ("s", 64)


@pytest.mark.parametrize(
    ("turns", "field", "words"),
    [
        ([assistant(LOOK), user("r")], "messages[1].content[0]",
         "`tool_use` ids were found without `tool_result` blocks: toolu_1."),
        ([user(result("toolu_9"))], "messages[1].content[0].tool_use_id",
         "unexpected `tool_use_id` found in `tool_result` blocks: toolu_9."),
        ([assistant(LOOK), user(result("toolu_1")), user("r", ), user(result("toolu_1"))],
         "messages[4].content[0].tool_use_id", "each tool_use must have a single result."),
        ([assistant(LOOK, LOOK), user(result("toolu_1"))], "messages[1].content[1].id",
         "`tool_use` ids must be unique"),
    ],
)  # fmt: skip
def test_calls_and_results_are_paired_by_id(turns: list[Any], field: str, words: str) -> None:
    """With an error in Anthropic's words; turns may be between them."""
    with pytest.raises(InvalidField) as caught:
        convert(user("q"), *turns)

    assert caught.value.field == field
    assert words in caught.value.message

    between = [assistant(LOOK), user("r"), assistant(text("s")), user(result("toolu_1"))]
    assert convert(user("q"), *between)
