"""Tool calls as Hermes and Qwen write them: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

Missing end markers, a brace too few or too many, and other keys are put up with.
"""

from inference_svc.chat.parsers.json_calls import Read, read_json_call
from inference_svc.chat.parsers.offered import OfferedTools
from inference_svc.chat.parsers.source import Source, Wait
from inference_svc.chat.parsers.writer import TurnWriter

BEGIN, END = MARKERS = ("<tool_call>", "</tool_call>")


def read_hermes(source: Source, writer: TurnWriter, _: OfferedTools) -> Wait[None]:
    """Read a turn."""
    while (yield from source.until((BEGIN,), writer.say)):
        read = yield from read_json_call(source, writer)
        if read is Read.NOTHING:
            writer.say(source.since_mark)
        elif read is Read.BROKEN:
            yield from source.until((END,), writer.add_arguments)
        else:
            yield from source.spaces()
            if (yield from source.literal("}")):
                yield from source.spaces()
            yield from source.literal(END)
