"""Tool calls in a list between markers, as Cohere's Command models and Apertus write them.

    <|START_ACTION|>[{"tool_call_id": "0", "tool_name": NAME, "parameters": {…}}, …]<|END_ACTION|>
    <|tools_prefix|>[{NAME: {…}}, …]<|tools_suffix|>

Command's answers stand between markers as well, which are no content. Its ids only count, often
from 0 in every turn, so they are not kept.
"""

from typing import NamedTuple

from inference_svc.chat.parsers.json_calls import (
    ReadItem,
    read_json_call,
    read_json_list,
    read_keyed_call,
)
from inference_svc.chat.parsers.offered import OfferedTools
from inference_svc.chat.parsers.source import Source, Wait
from inference_svc.chat.parsers.writer import TurnWriter


class Listing(NamedTuple):
    """How one family writes. `frames`: the texts around answers."""

    begin: str
    end: str
    read_item: ReadItem
    frames: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that must be visible."""
        return (self.begin, self.end, *self.frames)


COHERE = Listing(
    begin="<|START_ACTION|>",
    end="<|END_ACTION|>",
    read_item=read_json_call,
    frames=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)
APERTUS = Listing(begin="<|tools_prefix|>", end="<|tools_suffix|>", read_item=read_keyed_call)


def read_listed(
    listing: Listing, source: Source, writer: TurnWriter, tools: OfferedTools
) -> Wait[None]:
    """Read a turn; without tools it is read for the frames alone."""
    begins = (listing.begin, *listing.frames) if tools else listing.frames
    while begin := (yield from source.until(begins, writer.say)):
        if begin == listing.begin:
            yield from read_json_list(source, writer, (listing.end,), listing.read_item)
