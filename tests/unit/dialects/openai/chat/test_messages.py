"""Pictures, sounds and files in chat messages."""

from base64 import b64encode
from typing import Any

import pytest
from corral.inference.v1.chat_pb2 import ContentPart, Media

from dialects.openai.chat.chat_request import chat_request, parse_chat
from dialects.openai.chat.messages import StoredFiles, referenced_files
from dialects.openai.chat.objects import chat_params
from dialects.openai.errors import error_body, openai_name
from dialects.shared.media import (
    MAX_FILE_BYTES,
    MAX_MEDIA_BYTES,
    FileReference,
    StoredFile,
    decode_base64,
)
from svc_kit.errors import DomainError, InvalidField

PART = "messages[0].content[0]"
PNG = b"\x89PNG\r\n\x1a\n..."
PDF = b"%PDF-1.7"
STORED = {"file-1": StoredFile("a.pdf", PDF), "file-2": StoredFile("cat", PNG)}


def base64_of(data: bytes) -> str:
    return b64encode(data).decode()


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64_of(data)}"


def body_of(*parts: dict[str, Any], role: str = "user") -> dict[str, Any]:
    message = {"role": role, "content": list(parts)}
    if role == "tool":
        message["tool_call_id"] = "call_1"
    return {"model": "m", "messages": [message]}


def converted(body: dict[str, Any], files: StoredFiles = STORED) -> list[ContentPart]:
    (message,) = chat_request(parse_chat(body), files).conversation.messages
    return list(message.parts)


def image(url: object, **fields: object) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def file(**fields: object) -> dict[str, Any]:
    return {"type": "file", "file": fields}


@pytest.mark.parametrize("role", ["user", "tool"])
@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (
            image(data_url(PNG), detail="low"),
            ContentPart(image=Media(data=PNG, media_type="image/png", detail="low")),
        ),
        (image("https://host/x.png"), ContentPart(image=Media(url="https://host/x.png"))),
        (
            image("HTTP://host/x.png", detail="high"),
            ContentPart(image=Media(url="HTTP://host/x.png", detail="high")),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": base64_of(b"RIFF"), "format": "wav"}},
            ContentPart(audio=Media(data=b"RIFF", media_type="audio/wav")),
        ),
        (
            file(file_data=data_url(PDF, "application/pdf"), filename="a.pdf"),
            ContentPart(
                document=Media(data=PDF, media_type="application/pdf", filename="a.pdf"),
            ),
        ),
        (
            file(file_data=base64_of(PDF), filename="a.pdf"),
            ContentPart(document=Media(data=PDF, filename="a.pdf")),
        ),
        (
            file(file_data=data_url(PNG, "application/pdf"), filename="a.pdf"),
            ContentPart(image=Media(data=PNG, media_type="application/pdf")),
        ),
        (file(file_id="file-1"), ContentPart(document=Media(data=PDF, filename="a.pdf"))),
        (
            file(file_id="file-1", filename="b.pdf"),
            ContentPart(document=Media(data=PDF, filename="b.pdf")),
        ),
        (file(file_id="file-2"), ContentPart(image=Media(data=PNG))),
    ],
)
def test_each_part_keeps_its_bytes_and_its_hints(
    part: dict[str, Any], expected: ContentPart, role: str
) -> None:
    assert converted(body_of(part, role=role)) == [expected]


@pytest.mark.parametrize("data", [b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF\x01\x02\n\x04WEBP", PNG])
def test_pictures_are_recognized_by_their_first_bytes(data: bytes) -> None:
    """JPEG, GIF, WebP and PNG."""
    (part,) = converted(body_of(file(file_data=base64_of(data))))

    assert part.image.data == data


@pytest.mark.parametrize(
    ("part", "param", "code"),
    [
        (image("file:///etc/passwd"), "image_url.url", "unsupported_value"),
        (image("ftp://host/x.png"), "image_url.url", "unsupported_value"),
        (image("x.png"), "image_url.url", "invalid_value"),
        (image(""), "image_url.url", "invalid_value"),
        (image("data:image/png;base64,???"), "image_url.url", "invalid_value"),
        (image("data:image/png;base64,"), "image_url.url", "invalid_value"),
        (image("data:image/png,abc"), "image_url.url", "invalid_value"),
        (image(5), "image_url.url", "invalid_type"),
        (image(data_url(PNG), detail="huge"), "image_url.detail", "invalid_value"),
        (image(data_url(PNG), more=1), "image_url.more", "unknown_parameter"),
        ({"type": "image_url", "image_url": "x"}, "image_url", "invalid_type"),
        ({"type": "image_url"}, "image_url", "missing_required_parameter"),
        (
            {"type": "input_audio", "input_audio": {"data": "é", "format": "wav"}},
            "input_audio.data",
            "invalid_value",
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "midi"}},
            "input_audio.format",
            "invalid_value",
        ),
        ({"type": "file"}, "file", "missing_required_parameter"),
        (file(filename="x"), "file.file_data", "missing_required_parameter"),
        (file(file_data="AAAA", file_id="file-1"), "file", "invalid_value"),
        (file(file_data="AAAAA"), "file.file_data", "invalid_value"),
        (file(file_data="data:text/plain,x"), "file.file_data", "invalid_value"),
        (file(file_id=""), "file.file_id", "empty_string"),
        (file(file_id=7), "file.file_id", "invalid_type"),
    ],
)
def test_a_malformed_part_is_refused(part: dict[str, Any], param: str, code: str) -> None:
    """The error names the field of the part."""
    with pytest.raises(DomainError) as caught:
        converted(body_of(part))

    error: Any = error_body(caught.value)["error"]
    assert (error["param"], error["code"]) == (f"{PART}.{param}", code)


@pytest.mark.parametrize("size", [1, 2, 3, 196_607, 196_608, 196_609, 400_000])
def test_base64_of_any_length_is_decoded(size: int) -> None:
    data = (PNG * size)[:size]

    assert decode_base64("f", base64_of(data)) == data
    assert decode_base64("f", f"--{base64_of(data)}", 2) == data


@pytest.mark.parametrize("size", [196_606, 196_607])
def test_padding_is_only_allowed_at_the_end(size: int) -> None:
    text = base64_of(bytes(size)) + base64_of(b"more")

    with pytest.raises(InvalidField):
        decode_base64("f", text)


def test_an_error_in_a_large_file_has_its_field() -> None:
    with pytest.raises(InvalidField) as caught:
        chat_request(parse_chat(body_of(image(data_url(PNG * 30_000) + "?"))))
    assert caught.value.field == f"{PART}.image_url.url"


def test_file_ids_are_found_in_all_messages() -> None:
    """With the field that has each; text parts and parts of other kinds have none."""
    body = body_of({"type": "text", "text": "?"}, file(file_id="file-1"), file(file_data="AAAA"))
    body["messages"] += [
        {"role": "user", "content": "x"},
        {"role": "user", "content": [file(file_id="file-2")]},
    ]

    assert list(referenced_files(parse_chat(body).messages)) == [
        FileReference("messages[0].content[1].file.file_id", "file-1"),
        FileReference("messages[2].content[0].file.file_id", "file-2"),
    ]


def test_errors_of_a_picture_name_the_file_that_it_is() -> None:
    """Its field in the body, whatever part it is sent as."""
    body = parse_chat(body_of(image(data_url(PNG)), file(file_data="AAAA"), file(file_id="file-1")))
    for field, expected in [
        ("messages[0].parts[0].image.data", "messages[0].content[0].image_url.url"),
        ("messages[0].parts[1].image.data", "messages[0].content[1].file.file_data"),
        ("messages[0].parts[1].document.data", "messages[0].content[1].file.file_data"),
        ("messages[0].parts[2].image", "messages[0].content[2].file"),
        ("messages[0].parts[2].image.data", "messages[0].content[2].file.file_id"),
    ]:
        assert openai_name(field, chat_params(body)) == expected


@pytest.mark.parametrize(
    ("sizes", "param"),
    [
        ([MAX_FILE_BYTES + 1], "messages[0].content[0]"),
        ([MAX_FILE_BYTES, MAX_MEDIA_BYTES - MAX_FILE_BYTES, 1], "messages[0].content[2]"),
    ],
)
def test_the_files_of_a_prompt_are_bounded(sizes: list[int], param: str) -> None:
    """The error names the part that is too large, alone or with those before it."""
    names = [f"file-{number}" for number in range(len(sizes))]
    files = {name: StoredFile("x", bytes(size)) for name, size in zip(names, sizes, strict=True)}

    with pytest.raises(DomainError) as caught:
        converted(body_of(*(file(file_id=name) for name in names)), files)

    error: Any = error_body(caught.value)["error"]
    assert (error["param"], error["code"]) == (param, "string_above_max_length")
