"""Mappings of items, parts and tool outputs to protos."""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from corral.control.v1 import item_pb2 as pb
from corral.control.v1 import response_pb2

from control_svc.items import model as item_model
from control_svc.items.input_items import Include, InputItem, apply_include
from svc_kit.rpc.message_mapper import EnumMapper, MessageMapper, OneofMapper

CITATION: Final = MessageMapper(item_model.FileCitation, pb.FileCitation)
LOGPROB: Final = MessageMapper(item_model.TokenLogprob, pb.ItemLogprob)
TEXT: Final = MessageMapper(item_model.Text, pb.TextPart, renamed={"annotations": "citations"})
PART: Final = OneofMapper(item_model.Part, pb.ItemPart, uses=[TEXT])
_CONTENTS: Final = (
    PART,
    MessageMapper(item_model.Message, pb.MessageItem, renamed={"content": "parts"}, uses=[PART]),
    MessageMapper(item_model.FunctionCallOutput, pb.ToolOutputItem, uses=[PART]),
    MessageMapper(item_model.CustomToolCallOutput, pb.ToolOutputItem, uses=[PART]),
    MessageMapper(item_model.FileSearchCall, pb.FileSearchCallItem, only_domain=["first"]),
)
ITEM: Final = MessageMapper(item_model.Item, pb.Item, uses=_CONTENTS, only_domain=["origin"])
INPUT_ITEM: Final = MessageMapper(
    InputItem, pb.Item, uses=_CONTENTS, only_domain=["reference"], only_message=["create_time"]
)
_INCLUDES: Final = EnumMapper[Include](Include, response_pb2.ResponseInclude)


def includes_from_pb(values: Iterable[int]) -> frozenset[Include]:
    """Convert the `include` values of a request. Raises MissingField or InvalidField."""
    return frozenset(
        _INCLUDES.decode(value, f"include[{index}]") for index, value in enumerate(values)
    )


def items_to_pb(items: Iterable[item_model.Item], include: Collection[Include]) -> list[pb.Item]:
    """Convert items, filtered by the `include` values of the request."""
    return [ITEM.to_message(apply_include(item, include)) for item in items]


def input_items(messages: Sequence[pb.Item], path: str) -> tuple[InputItem, ...]:
    """Convert the items of a request. `InputItem.check` validates them.

    Raises InvalidField or MissingField.
    """
    return tuple(input_item(message, f"{path}[{index}]") for index, message in enumerate(messages))


def input_item(message: pb.Item, path: str) -> InputItem:
    """Convert an item of a request, or a reference to a stored one."""
    if message.WhichOneof("content") is None:
        return InputItem(reference=message.id)
    return INPUT_ITEM.from_message(message, path)
