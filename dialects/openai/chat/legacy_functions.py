"""`functions` and `function_call`, which OpenAI's API had before tools.

A request that has them is converted to one with tools and at most one call; its answer has the call
as `function_call`. Messages of functions name their function instead of a call: each answers the
call before it.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import orjson
from corral.inference.v1 import chat_pb2
from corral.inference.v1.inference_service_pb2 import Conversation
from pydantic import Field, Tag

from dialects.openai.chat.shapes import ChatMessage
from dialects.openai.chat.tools import (
    FunctionDefinition,
    NamedFunction,
    ToolChoiceObject,
    ToolDefinition,
)
from dialects.shared.fields import BY_KIND, WireModel
from svc_kit.errors import InvalidField
from svc_kit.rpc.field_limits import limit

FunctionCallChoice = Annotated[
    Annotated[Literal["none", "auto"], Tag("~string")] | Annotated[NamedFunction, Tag("~object")],
    BY_KIND,
]
FINISH_REASON: Final[Literal["function_call"]] = "function_call"
_FIELDS: Final = ("name", "description", "parameters", "strict")
_OF_TOOLS: Final = ("tools", "tool_choice", "parallel_tool_calls")


class LegacyFunctionFields(WireModel):
    """Functions that the model may call, and whether it does."""

    functions: Annotated[list[FunctionDefinition], limit(Conversation, "tools")] | None = Field(
        None, description="The older form of tools: the answer has at most one function_call."
    )
    function_call: FunctionCallChoice | None = Field(
        None, description="The older form of tool_choice, for functions."
    )


def as_tools(body: Any) -> dict[str, object]:
    """The fields of tools for a body with `functions`; none for others. Raises InvalidField."""
    functions, choice = body.functions or (), body.function_call
    older = "functions" if functions else "function_call"
    for name in _OF_TOOLS:
        if (functions or choice) and getattr(body, name):
            raise InvalidField(field=name, problem=f"it cannot be combined with '{older}'")
    if not functions:
        if isinstance(choice, NamedFunction):
            problem = "it is only allowed when 'functions' are specified"
            raise InvalidField(field="function_call", problem=problem)
        return {} if choice is None else {"tool_choice": choice}
    if isinstance(choice, NamedFunction):
        if choice.name not in [function.name for function in functions]:
            problem = f"'{choice.name}' is not among 'functions'"
            raise InvalidField(field="function_call", problem=problem)
        choice = ToolChoiceObject(type="function", function=choice)
    return {
        "tools": [ToolDefinition(type="function", function=each) for each in functions],
        "tool_choice": choice,
        "parallel_tool_calls": False,
    }


def function_names(functions: Sequence[FunctionDefinition] | None) -> dict[str, str]:
    """The caller's names of fields of tools in errors."""
    if not functions:
        return {}
    names = {"tools": "functions", "tool_choice": "function_call"}
    for path in (f"functions[{index}]" for index in range(len(functions))):
        names[f"{path}.parameters_json"] = f"{path}.parameters"
        names |= {f"{path}.function.{name}": f"{path}.{name}" for name in _FIELDS}
    return names


def call_id(index: int) -> str:
    """The id of the call in message `index`, in the form that all templates take."""
    return f"call{index:05d}"


class FunctionResults:
    """Pairs messages of functions with the calls before them."""

    def __init__(self) -> None:
        self._open: tuple[int, str] | None = None
        """The message and the name of the call that has no result yet."""

    def call(self, index: int, name: str) -> None:
        """Add the call in message `index`. Raises InvalidField if the one before has no result."""
        self.check()
        self._open = index, name

    def result(self, index: int, name: str) -> str:
        """The id of the call that message `index` answers. Raises InvalidField."""
        if self._open is None or self._open[1] != name:
            problem = f"no 'function_call' of '{name}' before it lacks a result"
            raise InvalidField(field=f"messages[{index}].name", problem=problem)
        called, self._open = self._open[0], None
        return call_id(called)

    def check(self) -> None:
        """Raise InvalidField if a call has no result."""
        if self._open is not None:
            problem = "a message with the role 'function' must follow with its result"
            raise InvalidField(field=f"messages[{self._open[0]}].function_call", problem=problem)


def answer_fields(message: ChatMessage) -> ChatMessage:
    """A message of an answer with its call as `function_call`."""
    written = message.copy()
    for call in written.pop("tool_calls", []):
        written["function_call"] = call["function"]
    return written


def call_deltas(call: chat_pb2.ToolCallDelta) -> list[bytes]:
    """The deltas of a call. The first has the name and no arguments."""
    deltas = [{"name": call.name, "arguments": ""}] if call.id else []
    if call.arguments_json:
        deltas.append({"arguments": call.arguments_json})
    return [orjson.dumps({"function_call": delta}) for delta in deltas]
