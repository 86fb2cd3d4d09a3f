"""Parts of messages and of tools' outputs as clients write them, as protos."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from corral.control.v1 import item_pb2
from pydantic import ConfigDict, Field, Tag

from openai_wire.requests.fields import BY_KIND, WireModel, validated
from svc_kit.errors import InvalidType, MissingField, UnsupportedField, UnsupportedValue

TextOrParts = Annotated[
    Annotated[str, Tag("~string")] | Annotated[list[dict[str, Any]], Tag("~array")], BY_KIND
]


class EchoedModel(WireModel):
    """Something that clients send back as they got it, with whatever their library added to it."""

    model_config = ConfigDict(extra="ignore")


class TextPart(EchoedModel):
    """Text of anybody."""

    text: str
    annotations: list[dict[str, Any]] | None = None


class RefusalPart(EchoedModel):
    """A refusal of the assistant's."""

    refusal: str


class ImagePart(EchoedModel):
    """A picture, by URL or as a file."""

    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None


class FilePart(EchoedModel):
    """A document, in base64 or as a file."""

    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None


class Annotation(EchoedModel):
    """A place of a text that rests on a file."""

    file_id: str = ""
    filename: str = ""
    index: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0


def parts_from(content: str | Sequence[Mapping[str, Any]], path: str) -> list[item_pb2.ItemPart]:
    """The parts of a content: a text stands for one part. Raises DomainErrors with paths."""
    if isinstance(content, str):
        return [item_pb2.ItemPart(text=item_pb2.TextPart(text=content))]
    return [_part(part, f"{path}[{index}]") for index, part in enumerate(content)]


def _part(part: Mapping[str, Any], path: str) -> item_pb2.ItemPart:
    kind = part.get("type")
    match kind:
        case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
            return item_pb2.ItemPart(text=_text(validated(TextPart, part, path), path))
        case "refusal":
            return item_pb2.ItemPart(refusal=validated(RefusalPart, part, path).refusal)
        case "input_image":
            return item_pb2.ItemPart(image=_image(validated(ImagePart, part, path), path))
        case "input_file":
            return item_pb2.ItemPart(file=_file(validated(FilePart, part, path), path))
        case None:
            raise MissingField(field=f"{path}.type")
        case str():
            raise UnsupportedValue(field=f"{path}.type", value=kind)
        case _:
            raise InvalidType(field=f"{path}.type", expected="a string")


def _text(part: TextPart, path: str) -> item_pb2.TextPart:
    citations = [
        validated(Annotation, each, f"{path}.annotations[{index}]")
        for index, each in enumerate(part.annotations or ())
        if each.get("type") == "file_citation"
    ]
    return item_pb2.TextPart(
        text=part.text,
        citations=[
            item_pb2.FileCitation(
                file_id=each.file_id, filename=each.filename, start=each.index, end=each.index
            )
            for each in citations
        ],
    )


def _image(part: ImagePart, path: str) -> item_pb2.ImagePart:
    if not part.image_url and not part.file_id:
        raise MissingField(field=f"{path}.image_url")
    detail = "high" if part.detail == "original" else part.detail
    return item_pb2.ImagePart(
        url=part.image_url or "", file_id=part.file_id or "", detail=detail or ""
    )


def _file(part: FilePart, path: str) -> item_pb2.FilePart:
    if part.file_url:
        raise UnsupportedField(field=f"{path}.file_url")
    if not part.file_data and not part.file_id:
        raise MissingField(field=f"{path}.file_data")
    return item_pb2.FilePart(
        file_id=part.file_id or "", data_url=part.file_data or "", filename=part.filename or ""
    )
