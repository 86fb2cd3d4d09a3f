"""Parts of messages and of tools' outputs between protos and the domain."""

from collections.abc import Iterable, Sequence

from corral.control.v1 import item_pb2 as pb

from control_svc.domain.items import (
    FileCitation,
    FileInput,
    Image,
    Part,
    Refusal,
    Text,
    TokenLogprob,
)
from svc_kit.errors import MissingField


def parts_to_pb(parts: Iterable[Part]) -> list[pb.ItemPart]:
    """The parts, in order."""
    return [part_to_pb(part) for part in parts]


def part_to_pb(part: Part) -> pb.ItemPart:
    """One part."""
    match part:
        case Text():
            text = pb.TextPart(
                text=part.text,
                citations=[citation_to_pb(citation) for citation in part.annotations],
                logprobs=[logprob_to_pb(logprob) for logprob in part.logprobs],
            )
            return pb.ItemPart(text=text)
        case Refusal():
            return pb.ItemPart(refusal=part.refusal)
        case Image():
            image = pb.ImagePart(url=part.url, file_id=part.file_id, detail=part.detail)
            return pb.ItemPart(image=image)
        case FileInput():
            file = pb.FilePart(file_id=part.file_id, data_url=part.data_url, filename=part.filename)
            return pb.ItemPart(file=file)


def parts_from_pb(parts: Sequence[pb.ItemPart], field: str) -> tuple[Part, ...]:
    """The parts, in order. Raises MissingField."""
    return tuple(_part_from_pb(part, f"{field}[{index}]") for index, part in enumerate(parts))


def citation_to_pb(citation: FileCitation) -> pb.FileCitation:
    """A place of a text that rests on a file."""
    return pb.FileCitation(
        file_id=citation.file_id,
        filename=citation.filename,
        marker=citation.marker,
        start=citation.start,
        end=citation.end,
    )


def logprob_to_pb(logprob: TokenLogprob) -> pb.ItemLogprob:
    """A token and how probable it was."""
    return pb.ItemLogprob(
        token=logprob.token,
        logprob=logprob.logprob,
        raw=logprob.raw,
        top=[logprob_to_pb(alternative) for alternative in logprob.top],
    )


def _part_from_pb(part: pb.ItemPart, field: str) -> Part:
    match part.WhichOneof("part"):
        case "text":
            return Text(
                text=part.text.text,
                annotations=tuple(_citation_from_pb(each) for each in part.text.citations),
                logprobs=tuple(_logprob_from_pb(each) for each in part.text.logprobs),
            )
        case "refusal":
            return Refusal(refusal=part.refusal)
        case "image":
            image = part.image
            return Image(url=image.url, file_id=image.file_id, detail=image.detail)
        case "file":
            file = part.file
            return FileInput(file_id=file.file_id, data_url=file.data_url, filename=file.filename)
        case _:
            raise MissingField(field=field)


def _citation_from_pb(citation: pb.FileCitation) -> FileCitation:
    return FileCitation(
        file_id=citation.file_id,
        filename=citation.filename,
        marker=citation.marker,
        start=citation.start,
        end=citation.end,
    )


def _logprob_from_pb(logprob: pb.ItemLogprob) -> TokenLogprob:
    return TokenLogprob(
        token=logprob.token,
        logprob=logprob.logprob,
        raw=logprob.raw,
        top=tuple(_logprob_from_pb(each) for each in logprob.top),
    )
