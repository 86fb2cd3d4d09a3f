"""Tool calls of Llama 3 and 4.

Usually a turn consists of `{"name": …, "parameters": {…}}` without markers; several calls follow
each other or are in a list, in JSON or Python syntax. After `<|python_tag|>` there are the same, a
call of a built-in tool (`brave_search.call(query="…")`), or code for an interpreter. Some models
write `<function=NAME>{…}</function>`.
"""

from inference_svc.chat.json_values import json_text
from inference_svc.chat.parsers.call_reader import CallReader
from inference_svc.chat.parsers.families import LLAMA_FUNCTION
from inference_svc.chat.parsers.json_calls import Read
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.pythonic import read_python_arguments
from inference_svc.chat.parsers.source import ParseSteps, Source
from inference_svc.chat.parsers.unmarked import read_bare_calls
from inference_svc.structured_output.spec import ToolCallSyntax

TAGS = ("<|python_tag|>", "<|python_start|>")
TAG_END = "<|python_end|>"
MARKERS = (*TAGS, TAG_END)
_FUNCTION = CallReader(LLAMA_FUNCTION)
SYNTAXES = (
    ToolCallSyntax(head='{"name": "', middle='", "parameters": ', tail="}", between="; "),
    LLAMA_FUNCTION[0].syntax,
)
_INTERPRETERS = ("python", "ipython", "code_interpreter")


def read_llama(source: Source, output: TurnOutput, tools: OfferedTools) -> ParseSteps[None]:
    yield from read_bare_calls(source, output, tools)
    output.add_content(source.since_mark)
    while begin := (yield from output.content_until(source, (*TAGS, *_FUNCTION.begins))):
        if begin in _FUNCTION.begins:
            is_call = yield from _FUNCTION.read(begin, source, output, tools)
        else:
            is_call = yield from _tagged(source, output, tools)
        if not is_call:
            output.add_content(source.since_mark)


def _tagged(source: Source, output: TurnOutput, tools: OfferedTools) -> ParseSteps[bool]:
    """Read calls after the tag; False if the text or its rest is not a call."""
    position = source.position
    if not (yield from read_bare_calls(source, output, tools)):
        source.rewind(position)
        if not (yield from _built_in(source, output, tools)):
            source.rewind(position)
            return (yield from _code(source, output, tools))
    return bool((yield from source.literal(TAG_END)))


def _built_in(source: Source, output: TurnOutput, tools: OfferedTools) -> ParseSteps[bool]:
    name = (yield from source.name()).removesuffix(".call")
    if name not in tools or not (yield from source.literal("(")):
        return False
    read = yield from read_python_arguments(source, output, name)
    if read is Read.BROKEN:
        yield from source.until((TAG_END,), output.add_arguments, stay=True)
    source.mark()
    return read is not Read.NOTHING


def _code(source: Source, output: TurnOutput, tools: OfferedTools) -> ParseSteps[bool]:
    interpreter = next((name for name in _INTERPRETERS if name in tools), "")
    if not interpreter or not (yield from source.peek()):
        return False
    output.begin_call(interpreter)
    output.add_arguments('{"code": "')
    yield from source.until((TAG_END,), lambda text: output.add_arguments(json_text(text)[1:-1]))
    output.add_arguments('"}')
    return True
