"""Tool calls of models with an unknown format: JSON that names an offered tool, at the beginning of
a turn, in a Markdown fence, or in common tags.
"""

from inference_svc.chat.parsers.families import HERMES
from inference_svc.chat.parsers.json_calls import Read, read_json_call
from inference_svc.chat.parsers.notation import Calls
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.pythonic import read_python_calls
from inference_svc.chat.parsers.source import ParseSteps, Source

_ENDS = {
    "<tool_call>": "</tool_call>",
    "<tool_calls>": "</tool_calls>",
    "<|tool_call|>": "<|/tool_call|>",
    "<TOOLCALL>": "</TOOLCALL>",
    "<|tool_call_start|>": "<|tool_call_end|>",
    "<|function_call|>": "",
    "<function_call>": "",
    "<|action_start|><|plugin|>": "<|action_end|>",
    "<|action_start|> <|plugin|>": "<|action_end|>",
    " functools": "",
    "functools": "",
    "Action:\n```": "```",
    "```": "```",
}
"""The texts before and after calls: LFM2.5, GigaChat 3, Granite 20B, InternLM2, FireFunction and
Command R+."""
_FENCE = "```"
SEPARATOR, _CALL_ROLE = "<|message_sep|>", "\n\nfunction call<|role_sep|>"
"""What is between the messages of GigaChat 3, and what follows if the next one is a call."""
_LISTS = ("<tool_calls>", "<|tool_call|>", "<TOOLCALL>", "functools")
_CALL = HERMES[0].call
_WITH_ID = _CALL.replace("$arguments", '$arguments, "id": "$id"')
CALLS = (
    *HERMES,
    Calls(_CALL, "<|function_call|>", ", "),
    Calls(_CALL, f"{SEPARATOR}{_CALL_ROLE}\n", ", "),
    Calls(_CALL, "<function_call> ", "$_", encloses_each=True),
    Calls(_CALL, "<|action_start|><|plugin|>\n", "", "<|action_end|>", encloses_each=True),
    *(
        Calls(call, f"{begin}[", ", ", f"]{_ENDS[begin]}")
        for begin in _LISTS
        for call in (_CALL, _WITH_ID)
    ),
    Calls(_CALL, "<tool_calls>\n", "\n", "\n</tool_calls>"),
)
TRIGGERS = (
    "<tool_call>",
    "<|function_call|>",
    "<function_call>",
    "<|action_start|>",
    f"{SEPARATOR}{_CALL_ROLE}",
    *_LISTS[:-1],
    "functools[",
)
MARKERS = (*(text for text in (*_ENDS, *_ENDS.values()) if "<" in text), SEPARATOR, "<|role_sep|>")


def read_any_json(source: Source, output: TurnOutput, tools: OfferedTools) -> ParseSteps[None]:
    """Parse a turn; without tools only separators are removed."""
    if tools and not (yield from read_bare_calls(source, output, tools)):
        source.rewind(0)
    output.add_content(source.since_mark)
    begins = (SEPARATOR, *(_ENDS if tools else ()))
    while begin := (yield from output.content_until(source, begins)):
        if begin == SEPARATOR:
            source.mark()
            if not tools or not (yield from source.literal(_CALL_ROLE)):
                continue
        if begin.endswith(_FENCE):
            yield from source.chars(_in_label)
        end, position = _ENDS.get(begin, ""), source.position
        is_call = yield from read_bare_calls(source, output, tools)
        if not is_call:
            source.rewind(position)
        if not is_call or (end and not (yield from source.literal(end))):
            output.add_content(source.since_mark)


def _in_label(character: str) -> bool:
    return character.isalnum() or character == "_"


_CALL_KEYS = frozenset(
    {'"name"', '"arguments"', '"parameters"', '"function"', '"type"', '"id"', '"tool_call"',
     '"tool_calls"', '"tool_name"', '"tool_call_id"'}
)  # fmt: skip


def read_bare_calls(source: Source, output: TurnOutput, tools: OfferedTools) -> ParseSteps[bool]:
    """Read consecutive calls in JSON or Python syntax; returns whether there was any. `since_mark`
    has the text after the last call, or all text if there was none."""
    num_calls = output.num_calls
    while (yield from _bare_call(source, output, tools)):
        source.mark()
        yield from source.spaces()
        if (yield from source.literal(";", ",")):
            yield from source.spaces()
    return output.num_calls > num_calls


def _bare_call(source: Source, output: TurnOutput, tools: OfferedTools) -> ParseSteps[bool]:
    match (yield from _detect_syntax(source)):
        case "json":
            read = yield from read_json_call(source, output, tools.__contains__)
            if read is Read.BROKEN:
                yield from source.until((), output.add_arguments)
            return read is not Read.NOTHING
        case "python":
            return (yield from read_python_calls(source, output, tools.__contains__))
    return False


def _detect_syntax(source: Source) -> ParseSteps[str]:
    """Return "json" or "python" if the first characters may begin a call, and rewind to it. Other
    JSON is recognized by its first key, so that it is streamed as content."""
    position = source.position
    yield from source.spaces()
    bracket = yield from source.literal("{", "[")
    if bracket == "[":
        yield from source.spaces()
        if (yield from source.peek()).isidentifier():
            source.rewind(position)
            return "python"
        bracket = yield from source.literal("{")
    key = ""
    if bracket == "{":
        yield from source.spaces()
        key = yield from source.string()
    if key in _CALL_KEYS:
        source.rewind(position)
        return "json"
    return ""
