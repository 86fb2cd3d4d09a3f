"""Tool calls of models whose notation is not known: JSON at the beginning of a turn, in a Markdown
fence or in tags that some families share, with the name of an offered tool."""

from inference_svc.chat.parsers.bare_calls import read_bare_calls
from inference_svc.chat.parsers.offered import OfferedTools
from inference_svc.chat.parsers.source import Source, Wait
from inference_svc.chat.parsers.writer import TurnWriter

_ENDS = {
    "<tool_call>": "</tool_call>",
    "<tool_calls>": "</tool_calls>",
    "<|tool_call|>": "<|/tool_call|>",
    "<TOOLCALL>": "</TOOLCALL>",
    "```": "```",
}
_FENCE = "```"
MARKERS = tuple(text for text in (*_ENDS, *_ENDS.values()) if text != _FENCE)


def read_any_json(source: Source, writer: TurnWriter, tools: OfferedTools) -> Wait[None]:
    """Read a turn."""
    yield from read_bare_calls(source, writer, tools)
    writer.say(source.since_mark)
    while begin := (yield from source.until(tuple(_ENDS), writer.say)):
        if begin == _FENCE:
            yield from source.chars(_in_label)
        is_call = yield from read_bare_calls(source, writer, tools)
        if not is_call or not (yield from source.literal(_ENDS[begin])):
            writer.say(source.since_mark)


def _in_label(character: str) -> bool:
    return character.isalnum() or character == "_"
