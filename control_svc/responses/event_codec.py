"""Encodes response events as the protos that are stored in their stream, and decodes them."""

from collections.abc import Sequence
from datetime import UTC
from typing import Final

from corral.control.v1 import item_pb2
from corral.control.v1 import response_event_pb2 as pb

from control_svc.event_log.model import Event
from control_svc.items.model import Item, ItemStatus, Text, TokenLogprob
from control_svc.items.proto import (
    citation_to_pb,
    content_from_pb,
    item_to_pb,
    logprob_to_pb,
    part_to_pb,
    parts_from_pb,
)
from control_svc.responses.events import (
    AnnotationEvent,
    CallEvent,
    EventCodec,
    EventType,
    ItemEvent,
    PartEvent,
    ResponseEvent,
    StateEvent,
    StepEvent,
    TextEvent,
)
from control_svc.responses.proto import response_to_pb

_STATUSES: Final = {
    item_pb2.Item.STATUS_IN_PROGRESS: ItemStatus.IN_PROGRESS,
    item_pb2.Item.STATUS_COMPLETED: ItemStatus.COMPLETED,
    item_pb2.Item.STATUS_INCOMPLETE: ItemStatus.INCOMPLETE,
}


def event_to_pb(event: Event) -> pb.ResponseEvent:
    """Convert a stored event for the client."""
    message = pb.ResponseEvent.FromString(event.data)
    message.sequence_number = event.number
    return message


def _encode(event: ResponseEvent) -> bytes:
    """Encode an event without its sequence number, which the stream assigns."""
    message = pb.ResponseEvent()
    getattr(message, event.type.value).CopyFrom(_to_pb(event))
    return message.SerializeToString(deterministic=True)


def _to_pb(event: ResponseEvent) -> object:
    match event:
        case StateEvent(response=response):
            return None if response is None else response_to_pb(response)
        case ItemEvent():
            return pb.ResponseItemEvent(
                output_index=event.output_index, item=item_to_pb(event.item)
            )
        case PartEvent():
            return pb.ResponsePartEvent(
                item_id=event.item_id,
                output_index=event.output_index,
                part_index=event.part_index,
                part=part_to_pb(event.part),
            )
        case TextEvent():
            return pb.ResponseTextEvent(
                item_id=event.item_id,
                output_index=event.output_index,
                part_index=event.part_index,
                text=event.text,
                logprobs=map(logprob_to_pb, event.logprobs),
            )
        case AnnotationEvent():
            return pb.ResponseAnnotationEvent(
                item_id=event.item_id,
                output_index=event.output_index,
                part_index=event.part_index,
                annotation_index=event.annotation_index,
                citation=citation_to_pb(event.citation),
            )
        case CallEvent():
            return pb.ResponseCallEvent(
                item_id=event.item_id,
                output_index=event.output_index,
                text=event.text,
                name=event.name,
            )
        case StepEvent():
            return pb.ResponseStepEvent(item_id=event.item_id, output_index=event.output_index)


def _decode(data: bytes) -> ResponseEvent:
    message = pb.ResponseEvent.FromString(data)
    event_type = EventType(message.WhichOneof("event"))
    event = getattr(message, event_type.value)
    match event:
        case pb.ResponseItemEvent():
            return ItemEvent(event_type, event.output_index, _item(event.item))
        case pb.ResponsePartEvent():
            (part,) = parts_from_pb([event.part], "part")
            return PartEvent(event_type, event.item_id, event.output_index, event.part_index, part)
        case pb.ResponseTextEvent():
            return TextEvent(
                event_type,
                event.item_id,
                event.output_index,
                event.part_index,
                event.text,
                _logprobs(event.logprobs),
            )
        case pb.ResponseCallEvent():
            return CallEvent(event_type, event.item_id, event.output_index, event.text, event.name)
        case pb.ResponseStepEvent() | pb.ResponseAnnotationEvent():
            return StepEvent(event_type, event.item_id, event.output_index)
        case _:
            return StateEvent(event_type, None)


def _item(message: item_pb2.Item) -> Item:
    return Item(
        id=message.id,
        status=_STATUSES[message.status],
        created_at=message.create_time.ToDatetime(UTC),
        content=content_from_pb(message, "item"),
    )


def _logprobs(messages: Sequence[item_pb2.ItemLogprob]) -> tuple[TokenLogprob, ...]:
    text = item_pb2.ItemPart(text=item_pb2.TextPart(logprobs=messages))
    (part,) = parts_from_pb([text], "part")
    return part.logprobs if isinstance(part, Text) else ()


RESPONSE_EVENTS: Final = EventCodec(_encode, _decode)
